"""Record the launches of an operator once, and replay them for batches of the same shapes.

For batches of equal shapes, an operator with constant arguments (`Operator.replayable`) passes the same parameters to
its kernels. Computing them again takes ten times as long as the launches, and is what a batch waits for if its images
are already on the GPU.

If arguments differ between batches, or random numbers are drawn, a kernel declares which arrays depend on shapes only
(`fixed`), and how to compute the others (`changing`): only those are computed again. A kernel that declares neither is
not replayed with such arguments.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from ..batch import Batch, Samples
from ..context import Context

_MAX_SHAPES = 4
"""Maximum number of input shapes per operator and CUDA stream for which recorded kernel launches are kept. When one
more is recorded, the others are dropped."""
_MAX_RECENT = 8
"""Number of recent input shapes that are remembered per operator. Launches are recorded only for shapes that come a
second time."""
_MAX_OPERATORS = 256
"""Maximum number of operators whose recent input shapes are remembered per CUDA stream. With one more, all shapes and
recorded kernel launches are dropped."""
MAX_FAILURES = 3
"""Number of consecutive failures after which recorded kernel launches are no longer replayed. Replaying fails if a
batch's arguments need other launches."""
_ALIGNMENT = 256
_NOTHING = np.empty(0, np.uint8)
KEY = "repeated"
"""Key in `Lane.cache` of the `RecordingCache`, which holds recorded kernel launches."""


Recompute = Callable[[Context], Sequence[npt.NDArray[Any]] | None]
"""Function that computes the arrays that an operator's kernels read, from the arguments of a new batch. It returns None
if the batch needs other kernel launches."""


FIXED: Any = object()
"""Passed instead of a `Recompute` function if the arrays depend only on input shapes and constants."""


def fixed(lane: Any, *arrays: npt.NDArray[Any]) -> tuple[Any, ...]:
    """Upload arrays that depend only on input shapes and constants. When the recorded kernel launches are replayed,
    kernels read the same arrays again."""
    there: tuple[Any, ...] = (lane.fixed if isinstance(lane, LaunchRecorder) else lane.upload)(*arrays)
    return there


def changing(lane: Any, recompute: Recompute | None, *arrays: npt.NDArray[Any]) -> tuple[Any, ...]:
    """Upload arrays that also depend on the operator's arguments. Each time the recorded kernel launches are replayed,
    ``recompute`` computes these arrays again, with the same types and shapes. If ``recompute`` is None, returns None or
    rejects a sample, the operator runs normally instead. ``recompute`` must not refer to data of a batch (see
    `without_data`)."""
    if recompute is FIXED:
        return fixed(lane, *arrays)
    if isinstance(lane, LaunchRecorder):
        return lane.changing(recompute, arrays)
    there: tuple[Any, ...] = lane.upload(*arrays)
    return there


def fixed_and_changing(
    lane: Any, constant: Sequence[npt.NDArray[Any]], recompute: Recompute | None, *arrays: npt.NDArray[Any]
) -> tuple[tuple[Any, ...], tuple[Any, ...]]:
    """Upload the arrays ``constant`` like `fixed`, and ``arrays`` like `changing`. If no launches are being recorded,
    one copy uploads all of them."""
    if isinstance(lane, LaunchRecorder):
        return fixed(lane, *constant), changing(lane, recompute, *arrays)
    there: tuple[Any, ...] = lane.upload(*constant, *arrays)
    return there[: len(constant)], there[len(constant) :]


def unchanging(lane: Any, *arrays: Any) -> tuple[Any, ...]:
    """Return ``arrays``: device arrays whose contents never change. Recorded launches that read these arrays keep them
    alive."""
    if isinstance(lane, LaunchRecorder):
        lane.unchanging(arrays)
    return arrays


def not_replayable(lane: Any) -> None:
    """Declare that an operator's kernel launches depend on the data of its inputs: they are not recorded."""
    if isinstance(lane, LaunchRecorder):
        lane.not_replayable()


def with_margin(lane: Any, n: int) -> int:
    """Return the number of elements to allocate if this batch needs ``n``: a quarter more while kernel launches are
    recorded, because later batches, for which they are replayed, may need more."""
    return n + n // 4 if isinstance(lane, LaunchRecorder) else n


def without_data(batch: Batch) -> Batch:
    """Return ``batch`` with its shapes and layout, but without its data, for functions passed to `changing`, which must
    not keep data alive."""
    return batch.replace(data=np.empty(0, batch.dtype))


@dataclass(frozen=True, slots=True)
class ChangingArrays:
    """Arrays that a kernel reads and that ``recompute`` computes again each time the recorded kernel launches are
    replayed."""

    recompute: Recompute
    kinds: tuple[tuple[Any, tuple[int, ...]], ...]
    """Dtype and shape of each array."""


@dataclass(frozen=True, slots=True)
class RecordedLaunch:
    """One recorded kernel launch."""

    function: Any
    grid: tuple[int, ...]
    block: int
    arguments: tuple[Any, ...]
    """Kernel arguments as NumPy scalars, addresses too. Addresses listed in ``places`` are 0."""
    places: tuple[tuple[int, int, int], ...]
    """Addresses that change from batch to batch, each as (index of the argument, index of the memory block, byte offset
    in the block). Memory blocks are the inputs, then the allocations."""


@dataclass(frozen=True, slots=True)
class RecordedOutput:
    """Position of one output of a recorded operator: ``size`` elements of ``dtype``, from byte ``start`` of memory
    block ``memory`` on."""

    memory: int
    start: int
    size: int
    dtype: Any
    like: Batch
    """The recorded output without its data: outputs of later batches get the same shapes and layout."""
    nbytes: int


def bytes_of(dtype: Any, shape: tuple[int, ...]) -> int:
    """Return the bytes to reserve for an array: its size, rounded up to the alignment of arrays."""
    size: int = math.prod(shape) * np.dtype(dtype).itemsize
    return -(-size // _ALIGNMENT) * _ALIGNMENT


class LaunchRecorder:
    """Stand-in for a `Lane` (CUDA stream) while an operator runs. It passes allocations, uploads and kernel launches on
    to the lane, and records them for batches of the same shapes. Any other use makes the recording unusable. Created by
    `RecordingCache.run` for one call; used by the thread that launches kernels."""

    def __init__(self, lane: Any, inputs: Sequence[Batch], constant: bool) -> None:
        """``constant``: whether everything that the operator does depends only on the shapes of its ``inputs``."""
        self._lane = lane
        self._all_fixed = constant
        self._memory: list[Any] = [b.data for b in inputs]
        self._inputs = len(inputs)
        self._made: list[tuple[int, Any] | ChangingArrays] = []
        self._constant: list[Any] = []
        self._launches: list[RecordedLaunch] = []
        self._possible = True

    def __getattr__(self, name: str) -> Any:
        self._possible = False
        return getattr(self._lane, name)

    @property
    def index(self) -> int:
        """Return the index of the GPU."""
        found: int = self._lane.index
        return found

    @property
    def cache(self) -> dict[str, Any]:
        """Return the cache of the wrapped `Lane`."""
        found: dict[str, Any] = self._lane.cache
        return found

    def not_replayable(self) -> None:
        """Declare that the operator's kernel launches depend on data and must not be replayed; see the function
        `not_replayable`."""
        self._possible = False

    def unchanging(self, arrays: Sequence[Any]) -> None:
        """Keep references to device arrays that never change; see the function `unchanging`."""
        self._constant += arrays

    def empty(self, n: int, dtype: Any) -> Any:
        """Allocate like `Lane.empty`, and record the allocation."""
        array = self._lane.empty(n, dtype)
        self._memory.append(array)
        self._made.append((n, dtype))
        return array

    def to_device(self, batch: Batch) -> Batch:
        """Return the batch in device memory, like `Lane.to_device`. If the batch has to be uploaded, nothing is
        recorded: the operator then runs normally for every batch."""
        self._possible &= self._lane.holds(batch)
        there: Batch = self._lane.to_device(batch)
        return there

    def upload(self, *arrays: Any) -> tuple[Any, ...]:
        """Upload arrays like `Lane.upload`. Nothing is recorded then, unless the operator depends only on input
        shapes."""
        self._possible &= self._all_fixed
        return self.fixed(*arrays)

    def fixed(self, *arrays: Any) -> tuple[Any, ...]:
        """Upload arrays that kernels read again when the recorded launches are replayed; see the function `fixed`."""
        there: tuple[Any, ...] = self._lane.upload(*arrays)
        self._constant += there
        return there

    def changing(self, recompute: Recompute | None, arrays: Sequence[npt.NDArray[Any]]) -> tuple[Any, ...]:
        """Upload arrays that are computed again each time the recorded launches are replayed; see the function
        `changing`."""
        if self._all_fixed:
            return self.fixed(*arrays)
        there: tuple[Any, ...] = self._lane.upload(*arrays)
        self._possible &= recompute is not None
        if recompute is not None:
            self._memory += there
            self._made.append(ChangingArrays(recompute, tuple((a.dtype, a.shape) for a in arrays)))
        return there

    def launch(self, source: str, kernel: str, grid: int | tuple[int, ...], block: int, *args: Any) -> None:
        """Launch like `Lane.launch`, and record the launch."""
        self._lane.launch(source, kernel, grid, block, *args)
        self._record(lambda: self._lane.function(source, kernel), grid, block, args)

    def launch_text(self, text: str, kernel: str, grid: int | tuple[int, ...], block: int, *args: Any) -> None:
        """Launch like `Lane.launch_text`, and record the launch."""
        self._lane.launch_text(text, kernel, grid, block, *args)
        self._record(lambda: self._lane.function_of_text(text, kernel), grid, block, args)

    def _record(
        self, function: Callable[[], Any], grid: int | tuple[int, ...], block: int, args: tuple[Any, ...]
    ) -> None:
        grid = (grid,) if isinstance(grid, int) else grid
        if min(grid) <= 0 or not self._possible:
            return
        given, places = list(args), []
        for k, value in enumerate(args):
            if not hasattr(value, "nbytes") or isinstance(value, np.generic):
                continue
            if value.nbytes == 0 or self._within(value, self._constant) is not None:
                self._constant.append(value)  # this keeps its memory alive
                given[k] = np.uint64(self._lane.address(value))
                continue
            found = self._within(value, self._memory)
            if found is None:
                self._possible = False
                return
            given[k] = np.uint64(0)
            places.append((k, *found))
        self._launches.append(RecordedLaunch(function(), grid, block, tuple(given), tuple(places)))

    def _within(self, array: Any, memory: Sequence[Any]) -> tuple[int, int] | None:
        """Return (index of the block in ``memory`` that contains ``array``, the array's byte offset in the block); None
        if no block contains it."""
        at = self._lane.address(array)
        for k, whole in enumerate(memory):
            start = self._lane.address(whole)
            if whole.nbytes and start <= at and at + array.nbytes <= start + whole.nbytes:
                return k, at - start
        return None

    def recording(self, outputs: Sequence[Batch]) -> Recording | None:
        """Return the recorded kernel launches, to be replayed for other batches; None if that is impossible."""
        if not self._all_fixed and not any(isinstance(one, ChangingArrays) for one in self._made):
            return None  # the operator does not declare which arrays depend on its arguments
        found = []
        for out in outputs:
            place = self._within(out.data, self._memory) if out.data.nbytes else None
            if place is None or not self._possible:
                return None
            data = out.data
            found.append(RecordedOutput(*place, data.size, data.dtype, out.replace(data=None), out.nbytes))
        return Recording(self._lane, self._inputs, self._made, self._constant, self._launches, found)


class Recording:
    """Recorded kernel launches of one operator, for batches of the same shapes. Owned by a `RecordingCache`; used by
    the thread that launches kernels."""

    def __init__(
        self, lane: Any, inputs: int, made: Sequence[tuple[int, Any] | ChangingArrays], constant: Sequence[Any],
        launches: Sequence[RecordedLaunch], outputs: Sequence[RecordedOutput],
    ) -> None:  # fmt: skip
        """``inputs``: number of input batches. ``made``: in order of creation, the operator's allocations and the
        arrays that are computed again for each batch. ``constant``: device arrays that kernels read for every batch."""
        self.failures = 0
        """Number of consecutive batches whose arguments needed other kernel launches, so that they could not be
        replayed."""
        self._constant, self.outputs = tuple(constant), tuple(outputs)
        self.made, self.launches = tuple(made), tuple(launches)
        self.changing = [one for one in made if isinstance(one, ChangingArrays)]
        tables = [bytes_of(*kind) for one in self.changing for kind in one.kinds]
        at = itertools.accumulate(tables, initial=0)
        self._tables = list(itertools.islice(at, len(tables)))
        """Byte offsets in the scratch block of arrays that are computed again each time the launches are replayed. The
        scratch block is one allocation of device memory, also for intermediate results."""
        self._uploaded = self._scratch = sum(tables)
        self._memory: list[int | tuple[int, Any]] = []
        """Place of each allocation and recomputed array: byte offset in the scratch block or, for an output, (elements,
        dtype) of an array to allocate for each batch."""
        results, places, number = {o.memory for o in outputs}, iter(self._tables), inputs
        for one in made:
            if isinstance(one, ChangingArrays):
                self._memory += itertools.islice(places, len(one.kinds))
                number += len(one.kinds)
                continue
            if number in results:
                self._memory.append(one)
            else:
                self._memory.append(self._scratch)
                self._scratch += bytes_of(one[1], (one[0],))
            number += 1
        self._launches = lane.launches(
            [(one.function, one.grid, one.block, one.arguments) for one in launches],
            [(number, k) for number, one in enumerate(launches) for k, _, _ in one.places],
        )
        self._targets = [(which, start) for one in launches for _, which, start in one.places]

    def replay(
        self, lane: Any, inputs: Sequence[Batch], samples: Samples, context: Callable[[], Context]
    ) -> tuple[Batch, ...] | None:
        """Launch the recorded kernels for other ``inputs`` of the same shapes, and return the outputs. Return None if
        the arguments in ``context`` need other launches."""
        changed = self._changed(context)
        if changed is None:
            return None
        staged = lane.pinned(self._uploaded) if self._uploaded else _NOTHING
        for array, at in zip(changed, self._tables, strict=True):
            staged[at : at + array.nbytes] = np.ascontiguousarray(array).reshape(-1).view(np.uint8)
        memory: list[Any] = [b.data for b in inputs]
        starts = [lane.address(data) for data in memory]
        # The block is free again when this returns: later work on this lane may reuse it, because it runs after these
        # launches.
        block, first = lane.allocate(self._scratch) if self._scratch else (None, 0)
        for one in self._memory:
            if isinstance(one, int):
                memory.append(None)
                starts.append(first + one)
            else:
                memory.append(made := lane.empty(*one))
                starts.append(lane.address(made))
        self._launches.begin([starts[which] + start for which, start in self._targets], first, staged)
        del block
        return tuple([output_of(memory[out.memory], out, samples) for out in self.outputs])

    def _changed(self, context: Callable[[], Context]) -> list[npt.NDArray[Any]] | None:
        """Return the arrays that kernels read, computed from the arguments of this batch. Return None if the arguments
        need other launches, or if a sample was rejected."""
        found: list[npt.NDArray[Any]] = []
        if not self.changing:
            return found
        ctx = context()
        for one in self.changing:
            arrays = one.recompute(ctx)
            if arrays is None or ctx.rejects or tuple((a.dtype, a.shape) for a in arrays) != one.kinds:
                return None
            found += arrays
        return found


def output_of(data: Any, out: RecordedOutput, samples: Samples) -> Batch:
    """Return one output of replayed launches: a batch with the shapes and layout of the recorded output ``out``, and
    its data in the array ``data``."""
    if out.start or data.size != out.size or data.dtype != out.dtype:
        itemsize = out.dtype.itemsize
        if not out.start and data.nbytes == out.size * itemsize:
            return out.like.with_data(data.view(out.dtype), samples, out.nbytes)
        data = data.view(np.uint8)[out.start : out.start + out.size * itemsize].view(out.dtype)
    return out.like.with_data(data, samples, out.nbytes)


_KeyOfOne = tuple[bytes, bytes, str, str, int]
_Key = tuple[int | _KeyOfOne, ...]


def key_of(lane: Any, inputs: Sequence[Batch], samples: Samples) -> _Key:
    """Return a key for finding recorded kernel launches, equal for batches with the same launches: number of samples
    (`count_of`), then shapes and alignment of each input (`key_of_one`)."""
    return (count_of(samples), *[key_of_one(lane, b) for b in inputs])


def count_of(samples: Samples) -> int:
    """Return the number of samples in the batch, as a negative number if samples are missing, such as rejected ones: a
    sample's index in the batch then differs from its position in the iteration."""
    return len(samples.slot) if are_all(samples) else -len(samples.slot)


def are_all(samples: Samples) -> bool:
    """Return whether no sample of the iteration is missing, so that the index of a sample in the batch is its position
    in the iteration."""
    slot = samples.slot
    return len(slot) == 0 or int(slot[-1]) == len(slot) - 1


def key_of_one(lane: Any, b: Batch) -> _KeyOfOne:
    """Return an input's part of `key_of`: shapes, offsets, layout, dtype, and the address modulo the alignment, or -1
    for an input in host memory."""
    where = lane.address(b.data) % _ALIGNMENT if lane.holds(b) else -1
    return b.shapes.tobytes(), b.offsets.tobytes(), b.layout, b.data.dtype.str, where


class RecordingCache:
    """Cache of recorded kernel launches, by operator and input shapes. An operator's launches are recorded when the
    same shapes come a second time. Stored in `Lane.cache`; used by the thread that launches kernels on the CUDA
    stream."""

    def __init__(self) -> None:
        self._kept: dict[Hashable, dict[_Key, Recording | None]] = {}
        self._recent: dict[Hashable, dict[_Key, None]] = {}
        """For each operator, the recent input shapes as keys (see `key_of`), oldest first."""
        self.used: Recording | None = None
        """Recorded launches that the last call of `run` used; None if that call ran the operator instead."""

    def release(self) -> None:
        """Drop all recordings and the device memory that they own."""
        self._kept.clear()
        self._recent.clear()

    def run(
        self, lane: Any, node: Hashable, inputs: Sequence[Batch], samples: Samples,
        launch: Callable[[Any], tuple[Sequence[Batch], bool]], context: Callable[[], Context] | None,
    ) -> Sequence[Batch]:  # fmt: skip
        """Return the outputs of operator ``node``, by replaying its recorded kernel launches if possible, else by
        calling ``launch`` with a lane (CUDA stream). ``launch`` returns the outputs, and whether the operator has no
        other results. ``context``: function that creates a Context with this call's arguments; None if all arguments
        are constant and no random numbers are drawn."""
        self.used = None
        if not all(map(lane.holds, inputs)):
            return launch(lane)[0]
        key = key_of(lane, inputs, samples)
        if len(self._recent) > _MAX_OPERATORS:
            self.release()
        kept = self._kept.setdefault(node, {})
        known = kept.get(key)
        if known is not None:
            replayed = known.replay(lane, inputs, samples, context or _no_context)
            if replayed is not None:
                self.used, known.failures = known, 0
                return replayed
            known.failures += 1
            if known.failures > MAX_FAILURES:  # each call's arguments need other launches
                kept[key] = None
                return launch(lane)[0]
        elif key in kept or key not in (recent := self._recent.setdefault(node, {})):
            if key not in kept:
                if len(recent) >= _MAX_RECENT:
                    del recent[next(iter(recent))]
                recent[key] = None
            return launch(lane)[0]
        recorder = LaunchRecorder(lane, inputs, context is None)
        outputs, complete = launch(recorder)
        if len(kept) >= _MAX_SHAPES:
            kept.clear()
        if complete or context is None:  # if arguments differ, only a call without rejects can be replayed
            made = kept[key] = recorder.recording(outputs) if complete else None
            if made is not None and known is not None:
                made.failures = known.failures
        return outputs


def _no_context() -> Context:
    raise AssertionError("nothing changes that would need one")


def recordings_of(lane: Any) -> RecordingCache:
    """Return the cache of recorded kernel launches of ``lane``, a CUDA stream, created on the first call."""
    found: RecordingCache | None = lane.cache.get(KEY)
    if found is None:
        found = lane.cache[KEY] = RecordingCache()
    return found
