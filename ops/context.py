"""Context: what a kernel is given besides its inputs. The engine makes one for each call of a kernel."""

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
from .interfaces import Isolation, Kept, Lane, Lender, Remembered, Uploader
from .streams import Streams
from .types import to_numpy

K = TypeVar("K", bound=Kept)

NO_LANE = cast("Lane", None)
"""The cpu stage has none, and its kernels ask for none."""


class Helpers(Protocol):
    """Threads that may lend a hand."""

    @property
    def count(self) -> int:
        """How many may be asked."""
        ...

    @property
    def do(self) -> Callable[..., None]:
        """``do(work, *args)`` has ``work(*args)`` done, some time; it must not raise. Raises RuntimeError at the end of
        a run."""
        ...


@dataclass(slots=True)
class Context:
    """One call of one kernel on ``samples``."""

    op: Operator
    """The operator that is called, with its constant arguments."""
    stage: Stage
    """``cpu``, ``mixed`` or ``gpu``: which of its kernels this is."""
    samples: Samples
    """The samples of this call, which may be a part of a batch."""
    args: Mapping[str, Batch] = field(default_factory=dict)
    """Arguments that arrive as inputs, by name; host batches."""
    seed: int = 0
    """Of this operator: its own, or drawn from the pipeline's."""
    rng: str = "philox"
    """``philox`` keys streams by the sample; ``dali`` by DALI's running count, for parity."""
    state: tuple[int, int, int] | None = None
    """Where the random streams go on from, in the dynamic mode: counter (low and high half) and word of it; ``seed`` is
    the key."""
    first: int = 0
    """The slot of the sample that ``state`` is that of, where several batches go together."""
    device: Lane = NO_LANE
    """The lane of the mixed and gpu stages."""
    kind: Spec | None = None
    """Type and number of dimensions of the first output, if the data set's first sample decides them: the kernel
    rejects samples that have others."""
    source: Any = None
    """The open data set, for readers; else the operator's own state between iterations, for per_batch operators."""
    allocate_staging: Callable[[int], npt.NDArray[np.uint8]] | None = None
    """Where fetched bytes go: page-locked memory when they are bound for a GPU."""
    lender: Lender | None = None
    """Lends views of mapped files that a device fetches by itself; None: bytes are copied to staging memory."""
    uploads: Mapping[int, Uploader] = field(default_factory=dict)
    """Take what is read to the batch's device meanwhile, by the number of the output; others are read as a whole."""
    pool: Helpers | None = None
    """Worker threads, for the few kernels that cut up their own work (readers); None where it is to be done alone."""
    isolation: Isolation | None = None
    """Where decoders run that are not to run in this process; None: all of them do."""
    attempt: int = 0
    """How often these samples were tried before: a decoder leaves out the lanes that have already failed."""
    allocate: Callable[[int, Any], Any] | None = None
    """Where the arrays of `empty` come from, instead of the host's heap or the device."""
    count: Callable[[str, int], None] | None = None
    """Callback for the report: (reason, count) of samples that take a slower path."""
    decoders: Callable[[str, int, float], None] | None = None
    """Callback for the report: a decoder, how many images it took, and seconds of a CPU thread."""
    waited: Callable[[str, float], None] | None = None
    """Callback for the report: the decoder that a batch waited for, and seconds."""
    remembered: Remembered | None = None
    """Facts that are kept of records from one epoch to the next; None where they come once."""
    started: Any = None
    """The result of `Operator.start_early` for these samples."""
    part: str = ""
    """Of a joined operator, see `Reject`."""
    rejects: list[Reject] = field(default_factory=list)
    """Samples that `reject` and `flag` were called for."""
    checks: list[Callable[[], npt.NDArray[Any]]] = field(default_factory=list)
    """Called once the device is done; each gives the slots whose results are wrong, see `check_later`."""
    finish: Callable[[], Batch] | None = None
    """Gives the output once the device is done, see `finish_later`."""

    def reject(self, i: int, code: RejectCode, message: str) -> None:
        """Sample ``i`` of this call cannot be processed; the engine drops it and reports ``message``, the first one."""
        slot = int(self.samples.slot[i])
        if all(r.slot != slot or r.kept for r in self.rejects):
            self.rejects[:] = [r for r in self.rejects if r.slot != slot]
            self.rejects.append(Reject(slot, code, message, self.part))

    def flag(self, i: int, code: RejectCode, message: str) -> None:
        """Sample ``i`` of this call is damaged, and goes on all the same; the reject log tells of it."""
        slot = int(self.samples.slot[i])
        if all(r.slot != slot for r in self.rejects):
            self.rejects.append(Reject(slot, code, message, self.part, kept=True))

    def decoded_by(self, decoder: str, images: int, seconds: float = 0.0) -> None:
        """So many images were taken by ``decoder``, in so many seconds of CPU threads; for the report."""
        if self.decoders is not None and images:
            self.decoders(decoder, images, seconds)

    def waited_for(self, decoder: str, seconds: float) -> None:
        """The batch waited for ``decoder``; for the report."""
        if self.waited is not None:
            self.waited(decoder, seconds)

    def facts(self, make: Callable[[int], K]) -> K | None:
        """The facts that this operator keeps of its samples' data set, where they are whole records and come again;
        ``make`` makes it, given how many bytes it may keep."""
        if self.remembered is None or self.samples.part is not None or self.attempt:
            return None
        key = id(self.op), id(self.samples.origins)
        found = self.remembered.kept.get(key)
        if found is None:  # with the data set itself, so that no other one has its id
            found = self.remembered.kept.setdefault(key, (self.samples.origins, make(self.remembered.budget)))
        return cast("K", found[1])

    def check_later(self, check: Callable[[], npt.NDArray[Any]]) -> None:
        """Call ``check`` once the device is done with this batch. It returns the samples (places in this call) whose
        result is wrong; they are run again alone, with ``attempt`` one higher."""
        slots = self.samples.slot
        self.checks.append(lambda: slots[check()])

    def finish_later(self, finish: Callable[[], Batch]) -> Batch:
        """Return a stand-in for an output whose sizes only the device knows (kernels with
        `Operator.output_after_sync`). The engine calls ``finish`` once the device has finished this batch; ``finish``
        returns the output in host memory, for all samples of this call. It may enqueue copies on the device's stream;
        the engine waits for them."""
        self.finish = finish
        return stand_in(self.samples)

    def empty(self, n: int, dtype: Any) -> Any:
        """An uninitialised flat array where this kernel's outputs live: host memory in the cpu stage."""
        if self.allocate is not None:
            return self.allocate(n, dtype)
        if self.stage == "cpu":
            return host_empty(n, dtype)
        return self.device.empty(n, dtype)

    def staging(self, nbytes: int) -> npt.NDArray[np.uint8]:
        """An uninitialised host buffer for fetched bytes."""
        if self.allocate_staging is not None:
            return self.allocate_staging(nbytes)
        staged: npt.NDArray[np.uint8] = (self.allocate or np.empty)(nbytes, np.uint8)
        return staged

    def arg(self, name: str, dtype: Any = np.float32) -> npt.NDArray[Any]:
        """Argument ``name`` for every sample: [N] for scalars, [N, k] for lists; the constant repeated, or the input.

        Raises UnlikeSamplesError if the samples' lists differ in length: the engine then calls the kernel once for
        each length. Operators that take such lists together ask `lists`, or `alike`.
        """
        n = len(self.samples)
        given = self.args.get(name)
        if given is None:
            value = as_type(getattr(self.op, name), dtype, name)
            repeated = np.empty((n, *value.shape), dtype)  # np.broadcast_to takes ten times as long
            repeated[:] = value
            return repeated
        if not parameter(type(self.op), name).is_vector:
            sizes = given.sizes if given.ndim else None  # numbers are one value each
            if sizes is not None and (sizes != 1).any():
                for i in np.flatnonzero(sizes != 1).tolist():
                    self.reject(i, "bad_argument", f"{name} must be one value, got {int(sizes[i])}")
                if (sizes != 1).all():  # there is no number that could stand for those of rejected samples
                    raise SampleError("bad_argument", f"{name} must be one value, got {int(sizes[0])}")
                given = given.replace(offsets=np.where(sizes == 1, given.offsets, given.offsets[sizes == 1][:1].sum()))
            return np.asarray(given.data[given.offsets]).astype(dtype, copy=False)  # indexing copies
        if n and not given.is_uniform:
            vectors = [b.shapes for k, b in self.args.items() if parameter(type(self.op), k).is_vector]
            raise UnlikeSamplesError(np.concatenate(vectors, axis=1))
        return np.asarray(given.dense()).reshape(n, -1).astype(dtype)

    def lists(self, name: str, dtype: Any = np.float32) -> tuple[npt.NDArray[Any], I64]:
        """Argument ``name`` for every sample, where their lengths may differ: [N, longest], zeros at the ends of the
        shorter ones, and int64[N] how many numbers each has."""
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
        """`arg` with one row that stands for all samples, [1] or [1, k], where the argument is a constant. Not to be
        changed."""
        given = self.args.get(name)
        if given is None:
            return _row(getattr(self.op, name), dtype, name)
        n, vector = len(given), parameter(type(self.op), name).is_vector
        if given.ndim == 0 and not vector and given.dtype == dtype and given.offsets.tobytes() == _count(n):
            numbers: npt.NDArray[Any] = given.data[:n]
            if numbers.flags.writeable:  # as compiled loops take them
                return numbers
        return self.arg(name, dtype)

    def alike(self, *lists: Batch) -> Iterator[tuple[Any, Context]]:
        """The samples in groups whose lists have one length each: those that arrive as arguments, and ``lists``. With
        each group the places of its samples in this call (an index for NumPy), and a context to ask `arg` of. There is
        one group, all of them, where no list differs from another."""
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
        """The random stream of each sample. ``salt`` is XORed into the key (DALI does so for its random crops)."""
        s = self.samples
        key = (self.seed ^ salt) & 0xFFFFFFFFFFFFFFFF
        if self.state is not None:
            low, high, phase = self.state
            return Streams(
                key, np.uint64(high) + (s.slot - self.first).astype(np.uint64) * np.uint64(65537), low, phase
            )
        return streams_of(key, s, self.rng)


def kind_text(kind: Spec) -> str:
    """``float32, 2-D``: type and number of dimensions."""
    return f"{'?' if kind.dtype is None else to_numpy(kind.dtype).name}, {kind.ndim}-D"


def streams_of(key: int, samples: Samples, rng: str) -> Streams:
    """The random stream of each of ``samples``, for an operator of seed ``key``."""
    if rng != "dali":
        return Streams(key & 0xFFFFFFFFFFFFFFFF, samples.keys)
    # semantics: sequence = samples of earlier iterations + place in the batch x 65537. With batches of one size, the
    # first is position - slot.
    slot = samples.slot.astype(np.uint64)
    return Streams(
        key & 0xFFFFFFFFFFFFFFFF, (samples.position - samples.slot).astype(np.uint64) + slot * np.uint64(65537)
    )


@lru_cache(256)
def _row(value: Any, dtype: Any, name: str) -> npt.NDArray[Any]:
    return as_type([value], dtype, name)


def as_type(value: Any, dtype: Any, name: str) -> npt.NDArray[Any]:
    """The constant ``value`` of argument ``name`` as an array. Raises SpecError for integers beyond the type."""
    try:
        return np.array(value, dtype)
    except OverflowError:
        ends = np.iinfo(dtype)
        raise SpecError(f"{name} must be within {ends.min} and {ends.max}, got {value!r:.80}") from None


@lru_cache(64)
def _count(n: int) -> bytes:
    """The offsets of ``n`` numbers one after the other, as bytes: comparing those does not release the GIL."""
    return np.arange(n, dtype=np.int64).tobytes()


def stand_in(samples: Samples) -> Batch:
    """An empty output for each of ``samples``, until the real one comes."""
    n = len(samples)
    offsets, shapes = np.frombuffer(bytearray(8 * n), np.int64), np.frombuffer(bytearray(4 * n), np.int32)
    return Batch(np.empty(0, np.uint8), offsets, shapes.reshape(n, 1), "", samples)  # np.zeros lets go of the GIL
