"""Context: everything that a kernel receives besides its inputs. The engine creates one for each call of a kernel."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import lru_cache
from typing import Any, Protocol, TypeVar, cast

import numpy as np
import numpy.typing as npt

from .base import Operator, Spec, Stage, parameter
from .batch import I64, Batch, Samples, host_empty
from .errors import Reject, RejectCode, SampleError, SpecError, UnlikeSamplesError
from .interfaces import FactCache, Isolation, Lane, Lender, RecordFacts, Uploader
from .streams import Streams
from .types import to_numpy

K = TypeVar("K", bound=RecordFacts)

NO_LANE = cast("Lane", None)
"""Placeholder for `Context.device` in the cpu stage, whose kernels use no device."""


class Helpers(Protocol):
    """Worker threads of the engine that a kernel may use to divide its own work."""

    @property
    def count(self) -> int:
        """Maximum number of threads that may help."""
        ...

    @property
    def do(self) -> Callable[..., None]:
        """Return a function ``do(work, *args)`` that schedules ``work(*args)`` on a worker thread. ``work`` must not
        raise. ``do`` raises RuntimeError when the engine is shutting down."""
        ...


@dataclass(frozen=True, slots=True)
class KernelServices:
    """Services of the engine for kernels: memory, threads, processes and reports. Created once per pass of a batch over
    some nodes, and shared by all calls of that pass."""

    allocate_staging: Callable[[int], npt.NDArray[np.uint8]] | None = None
    """Function that allocates memory for bytes read from files: page-locked memory if they will be uploaded to a GPU.
    None for ordinary host memory."""
    lender: Lender | None = None
    """Provider of arrays over memory-mapped files whose bytes the device reads itself. None if the host first copies
    the bytes to staging memory."""
    pool: Helpers | None = None
    """Worker threads for the few kernels that divide their own work (readers); None if the kernel must use one
    thread."""
    isolation: Isolation | None = None
    """Separate processes in which decoders run; None if all decoders run in this process."""
    count: Callable[[str, int], None] | None = None
    """Function that counts samples for the report that were processed in a slower way. Arguments: the reason, and the
    number of samples."""
    decoders: Callable[[str, int, float], None] | None = None
    """Function that counts decoded images for the report. Arguments: the decoder's name, number of images, seconds of
    CPU threads."""
    waited: Callable[[str, float], None] | None = None
    """Function that adds the time that a batch has waited for a decoder to the report. Arguments: the decoder's name,
    and seconds."""
    remembered: FactCache | None = None
    """Cache that keeps facts about records, such as headers, for later epochs. None if records are read only once."""


NO_SERVICES = KernelServices()
"""Services of a call outside of an engine: none."""


@dataclass(slots=True)
class Context:
    """Context of one call of one kernel: arguments, seed, device and callbacks for the samples of the call."""

    op: Operator
    """The operator that is called, with its constant arguments."""
    stage: Stage
    """Stage of the kernel that is called: ``cpu``, ``mixed`` or ``gpu``."""
    samples: Samples
    """Samples that the kernel processes in this call: a whole batch, or a slice of one."""
    args: Mapping[str, Batch] = field(default_factory=dict)
    """Arguments that are inputs instead of constants, by name, as batches in host memory."""
    seed: int = 0
    """Seed of this operator, from the spec or drawn from the pipeline's seed."""
    rng: str = "philox"
    """Rule for the keys of random streams: ``philox`` for keys by the sample's identity, ``dali`` for DALI's running
    count of samples, which gives DALI's numbers."""
    state: tuple[int, int, int] | None = None
    """State of the random generator in the dynamic mode: low and high half of the counter, and index of the next word
    (``seed`` is the key). None if random streams begin at 0."""
    first: int = 0
    """Slot (`Samples.slot`) of the sample to which ``state`` belongs; not 0 if several batches are computed
    together."""
    device: Lane = NO_LANE
    """Lane (CUDA stream with its memory) of the mixed and gpu stages."""
    kind: Spec | None = None
    """Dtype and number of dimensions that samples of the first output must have: those of the data set's first sample.
    The kernel rejects samples that differ. None allows all."""
    source: Any = None
    """Data set of a reader, opened; or state kept between iterations, for operators with `Operator.per_batch`."""
    services: KernelServices = NO_SERVICES
    """Services of the engine: memory, threads and processes that only some readers and decoders use, and reports."""
    uploads: Mapping[int, Uploader] = field(default_factory=dict)
    """Objects that upload an output to the device while the kernel still reads it from files, by number of the output.
    Other outputs are uploaded after the kernel has returned."""
    attempt: int = 0
    """Number of earlier attempts to compute these samples. If it is above 0, decoders skip the methods that have
    already failed."""
    allocate: Callable[[int, Any], Any] | None = None
    """Function that allocates the arrays of `empty`, from (number of elements, dtype). None for the host's heap, or
    device memory."""
    started: Any = None
    """Result of `Operator.start_early` for these samples; None if that method was not called."""
    part: str = ""
    """Name of the operator within a fused operator, such as ``decode.``; see `Reject.part`. Empty outside of fused
    operators."""
    rejects: list[Reject] = field(default_factory=list)
    """Reports of `reject` and `flag` about the samples of this call."""
    left_out: tuple[npt.NDArray[np.int32], Mapping[str, npt.NDArray[Any]]] | None = None
    """Samples that `leave_out` has removed: their slots (`Samples.slot`), and values to log with them. None if there
    are none."""
    checks: list[Callable[[], npt.NDArray[Any]]] = field(default_factory=list)
    """Functions that `check_later` has registered. Called when the device has finished, each returns the slots
    (`Samples.slot`) of samples with wrong results."""
    finish: Callable[[], Batch] | None = None
    """Function that `finish_later` has registered: called when the device has finished, it returns the output. None if
    the kernel itself returned the output."""

    def reject(self, i: int, code: RejectCode, message: str) -> None:
        """Reject sample ``i`` of this call: the engine drops it and logs ``message``. Of several messages, the first
        counts."""
        slot = int(self.samples.slot[i])
        if all(r.slot != slot or r.kept for r in self.rejects):
            self.rejects[:] = [r for r in self.rejects if r.slot != slot]
            self.rejects.append(Reject(slot, code, message, self.part))

    def flag(self, i: int, code: RejectCode, message: str) -> None:
        """Note that sample ``i`` of this call is damaged but processed; it is listed in the reject log."""
        slot = int(self.samples.slot[i])
        if all(r.slot != slot for r in self.rejects):
            self.rejects.append(Reject(slot, code, message, self.part, kept=True))

    def leave_out(self, selected: npt.NDArray[np.bool_], values: Mapping[str, npt.NDArray[Any]]) -> None:
        """Remove the ``selected`` samples of this call, bool[N], because the user wants so; they are not rejects.
        ``values``, [N] each, are logged with them. A kernel may call this method once."""
        self.left_out = self.samples.slot[selected], {name: v[selected] for name, v in values.items()}

    def fell_back(self, reason: str, samples: int) -> None:
        """Add ``samples`` samples that are processed in a slower way, for this ``reason``, to the report."""
        if self.services.count is not None and samples:
            self.services.count(reason, samples)

    def decoded_by(self, decoder: str, images: int, seconds: float = 0.0) -> None:
        """Add ``images`` images that ``decoder`` decoded, in ``seconds`` of CPU threads, to the report."""
        if self.services.decoders is not None and images:
            self.services.decoders(decoder, images, seconds)

    def waited_for(self, decoder: str, seconds: float) -> None:
        """Add ``seconds`` that the batch waited for ``decoder`` to the report."""
        if self.services.waited is not None:
            self.services.waited(decoder, seconds)

    def facts(self, make: Callable[[int], K]) -> K | None:
        """Return this operator's cached facts about the records of the data set, such as headers. The first call
        creates them by ``make(budget)``, in at most ``budget`` bytes. Return None if samples are not whole records, or
        are read once."""
        remembered = self.services.remembered
        if remembered is None or self.samples.part is not None or self.attempt:
            return None
        key = id(self.op), id(self.samples.origins)
        found = remembered.entries.get(key)
        if found is None:  # the data set is stored with its facts, so that no other object gets its id
            found = remembered.entries.setdefault(key, (self.samples.origins, make(remembered.budget)))
        return cast("K", found[1])

    def check_later(self, check: Callable[[], npt.NDArray[Any]]) -> None:
        """Register ``check``, which the engine calls when the device has finished this batch. It returns the indices
        (in this call) of samples with wrong results. The engine computes these samples again, one by one, with
        ``attempt`` increased by one."""
        slots = self.samples.slot
        self.checks.append(lambda: slots[check()])

    def finish_later(self, finish: Callable[[], Batch]) -> Batch:
        """Return a stand-in for an output whose sizes only the device knows (`Operator.output_after_sync`). When the
        device has finished this batch, the engine calls ``finish``, which returns the output in host memory. ``finish``
        may enqueue copies on the device's stream, for which the engine waits."""
        self.finish = finish
        return stand_in(self.samples)

    def empty(self, n: int, dtype: Any) -> Any:
        """Return an uninitialised flat array for outputs of this kernel: in host memory for a cpu kernel, else in
        device memory."""
        if self.allocate is not None:
            return self.allocate(n, dtype)
        if self.stage == "cpu":
            return host_empty(n, dtype)
        return self.device.empty(n, dtype)

    def staging(self, nbytes: int) -> npt.NDArray[np.uint8]:
        """Return an uninitialised host buffer for bytes that are read from files."""
        if self.services.allocate_staging is not None:
            return self.services.allocate_staging(nbytes)
        staged: npt.NDArray[np.uint8] = (self.allocate or np.empty)(nbytes, np.uint8)
        return staged

    def arg(self, name: str, dtype: Any = np.float32) -> npt.NDArray[Any]:
        """Return argument ``name`` for every sample, constants repeated: [N] for scalars, [N, k] for lists. Raises
        UnlikeSamplesError if lists differ in length; the engine then calls the kernel once per length. `lists` and
        `alike` are for operators that can process such lists together."""
        n = len(self.samples)
        given = self.args.get(name)
        if given is None:
            value = as_type(getattr(self.op, name), dtype, name)
            repeated = np.empty((n, *value.shape), dtype)  # np.broadcast_to takes ten times as long
            repeated[:] = value
            return repeated
        if not parameter(type(self.op), name).is_vector:
            sizes = given.sizes if given.ndim else None  # scalar arguments have one value per sample
            if sizes is not None and (sizes != 1).any():
                for i in np.flatnonzero(sizes != 1).tolist():
                    self.reject(i, "bad_argument", f"{name} must be one value, got {int(sizes[i])}")
                if (sizes != 1).all():  # no valid number could stand in for rejected samples
                    raise SampleError("bad_argument", f"{name} must be one value, got {int(sizes[0])}")
                given = given.replace(offsets=np.where(sizes == 1, given.offsets, given.offsets[sizes == 1][:1].sum()))
            return np.asarray(given.data[given.offsets]).astype(dtype, copy=False)  # indexing copies
        if n and not given.is_uniform:
            vectors = [b.shapes for k, b in self.args.items() if parameter(type(self.op), k).is_vector]
            raise UnlikeSamplesError(np.concatenate(vectors, axis=1))
        return np.asarray(given.dense()).reshape(n, -1).astype(dtype)

    def lists(self, name: str, dtype: Any = np.float32) -> tuple[npt.NDArray[Any], I64]:
        """Return argument ``name``, whose lists may differ in length, for every sample: [N, longest], padded with
        zeros, and the lengths, int64[N]."""
        given = self.args.get(name)
        if given is None:
            values = as_type(getattr(self.op, name), dtype, name).reshape(1, -1)
            n = len(self.samples)
            return np.repeat(values, n, axis=0), np.full(n, values.shape[1], np.int64)
        counts = given.sizes
        row = np.repeat(np.arange(len(given)), counts)
        column = np.arange(len(row)) - np.repeat(counts.cumsum() - counts, counts)
        out = np.zeros((len(given), int(counts.max(initial=0))), dtype)
        out[row, column] = given.data[given.offsets[row] + column]
        return out, counts

    def rows(self, name: str, dtype: Any = np.float32) -> npt.NDArray[Any]:
        """Return argument ``name`` like `arg`, but a constant only once: [1] or [1, k]. Do not modify the result."""
        given = self.args.get(name)
        if given is None:
            return _row(getattr(self.op, name), dtype, name)
        n, vector = len(given), parameter(type(self.op), name).is_vector
        if given.ndim == 0 and not vector and given.dtype == dtype and given.offsets.tobytes() == _count(n):
            numbers: npt.NDArray[Any] = given.data[:n]
            if numbers.flags.writeable:  # compiled loops require writable arrays
                return numbers
        return self.arg(name, dtype)

    def alike(self, *lists: Batch) -> Iterator[tuple[Any, Context]]:
        """Divide the samples into groups, so that lists in a group have equal lengths: those of arguments that are
        inputs, and of ``lists``. Yield for each group the indices of its samples in this call (array or slice), and a
        context for the group."""
        vectors = [b for name, b in self.args.items() if parameter(type(self.op), name).is_vector]
        ragged = [b for b in (*vectors, *lists) if len(b) and not b.is_uniform]
        if not ragged:
            yield slice(None), self
            return
        lengths = np.stack([b.sizes for b in ragged], axis=1)
        known, group = np.unique(lengths, axis=0, return_inverse=True)
        for k in range(len(known)):
            where = np.flatnonzero(group.reshape(-1) == k)
            samples = self.samples.take(where)
            yield where, replace(self, samples=samples, args={n: b.take(where, samples) for n, b in self.args.items()})

    def streams(self, salt: int = 0) -> Streams:
        """Return one random stream per sample. ``salt`` is XORed into the key, as DALI does for its random crops."""
        s = self.samples
        key = (self.seed ^ salt) & 0xFFFFFFFFFFFFFFFF
        if self.state is not None:
            low, high, phase = self.state
            return Streams(
                key, np.uint64(high) + (s.slot - self.first).astype(np.uint64) * np.uint64(65537), low, phase
            )
        return streams_of(key, s, self.rng)


def kind_text(kind: Spec) -> str:
    """Return type and number of dimensions as text: ``float32, 2-D``."""
    return f"{'?' if kind.dtype is None else to_numpy(kind.dtype).name}, {kind.ndim}-D"


def streams_of(key: int, samples: Samples, rng: str) -> Streams:
    """Return one random stream per sample, for an operator with seed ``key``."""
    if rng != "dali":
        return Streams(key & 0xFFFFFFFFFFFFFFFF, samples.keys)
    # semantics: sequence = samples of earlier iterations + index in the batch x 65537. With batches of one size, the
    # first is position - slot.
    slot = samples.slot.astype(np.uint64)
    return Streams(
        key & 0xFFFFFFFFFFFFFFFF, (samples.position - samples.slot).astype(np.uint64) + slot * np.uint64(65537)
    )


@lru_cache(256)
def _row(value: Any, dtype: Any, name: str) -> npt.NDArray[Any]:
    return as_type([value], dtype, name)


def as_type(value: Any, dtype: Any, name: str) -> npt.NDArray[Any]:
    """Return the constant ``value`` of argument ``name`` as an array of ``dtype``. Raises SpecError for integers that
    ``dtype`` cannot represent."""
    try:
        return np.array(value, dtype)
    except OverflowError:
        ends = np.iinfo(dtype)
        raise SpecError(f"{name} must be within {ends.min} and {ends.max}, got {value!r:.80}") from None


@lru_cache(64)
def _count(n: int) -> bytes:
    """Return the bytes of an array of the numbers 0 to ``n`` - 1, for fast comparison with offsets (comparing bytes
    does not release the GIL)."""
    return np.arange(n, dtype=np.int64).tobytes()


def stand_in(samples: Samples) -> Batch:
    """Return a batch of empty outputs for ``samples``, as a stand-in until the real output exists."""
    n = len(samples)
    offsets, shapes = np.frombuffer(bytearray(8 * n), np.int64), np.frombuffer(bytearray(4 * n), np.int32)
    return Batch(np.empty(0, np.uint8), offsets, shapes.reshape(n, 1), "", samples)  # np.zeros would release the GIL
