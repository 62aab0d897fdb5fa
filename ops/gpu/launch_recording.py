"""Repeated: launches of an operator that are taken down once, and repeated for batches of the same shapes.

For two batches of the same shapes, an operator of constant arguments (`Operator.replayable`) tells its kernels the
same;
to work that out again takes ten times as long as the launches. With pictures that are on the GPU already, that is what
a batch waits for.

Where arguments differ from batch to batch, or numbers are drawn, a kernel says which of its arrays follow from the
shapes (`fixed`) and how those that do not are made (`changing`): these alone are made anew then. A kernel that says
nothing of the kind is not repeated with such arguments.
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

_KEPT = 4
"""Shapes of batches that are remembered for an operator and a lane."""
_LAST = 8
"""Shapes that may come in turns until they are remembered."""
_OPERATORS = 256
"""Operators that a lane remembers."""
IN_VAIN = 3
"""Batches in a row for whose arguments a recording is tried in vain."""
_ALIGNMENT = 256
_NOTHING = np.empty(0, np.uint8)
KEY = "repeated"
"""In `Lane.cache`."""


Again = Callable[[Context], Sequence[npt.NDArray[Any]] | None]
"""The arrays for another call's arguments; None where it would launch something else."""


FIXED: Any = object()
"""Instead of an `Again`: what is launched follows from the inputs' shapes and from constants."""


def fixed(lane: Any, *arrays: npt.NDArray[Any]) -> tuple[Any, ...]:
    """As ``lane.upload``, of what follows from the inputs' shapes and from constants."""
    there: tuple[Any, ...] = (lane.fixed if isinstance(lane, Recorder) else lane.upload)(*arrays)
    return there


def changing(lane: Any, again: Again | None, *arrays: npt.NDArray[Any]) -> tuple[Any, ...]:
    """As ``lane.upload``, of what follows from the arguments, too. ``again`` makes arrays of the same types and shapes
    for another call, with inputs of the same shapes; it must hold no data of a batch (see `shaped`). Without it, or
    where it gives None or rejects a sample, the operator is launched as a whole."""
    if again is FIXED:
        return fixed(lane, *arrays)
    if isinstance(lane, Recorder):
        return lane.changing(again, arrays)
    there: tuple[Any, ...] = lane.upload(*arrays)
    return there


def both(
    lane: Any, constant: Sequence[npt.NDArray[Any]], again: Again | None, *arrays: npt.NDArray[Any]
) -> tuple[tuple[Any, ...], tuple[Any, ...]]:
    """`fixed` for ``constant`` and `changing` for ``arrays``: one copy for all of them where nothing is taken down."""
    if isinstance(lane, Recorder):
        return fixed(lane, *constant), changing(lane, again, *arrays)
    there: tuple[Any, ...] = lane.upload(*constant, *arrays)
    return there[: len(constant)], there[len(constant) :]


def lasting(lane: Any, *arrays: Any) -> tuple[Any, ...]:
    """``arrays`` of the device that stay as they are, and that whoever has them may hold."""
    if isinstance(lane, Recorder):
        lane.hold(arrays)
    return arrays


def once(lane: Any) -> None:
    """Launches follow from data of the inputs, too, and must not be repeated."""
    if isinstance(lane, Recorder):
        lane.give_up()


def room(lane: Any, n: int) -> int:
    """Elements to allocate where ``n`` are needed this time, and about as many for other arguments."""
    return n + n // 4 if isinstance(lane, Recorder) else n


def shaped(batch: Batch) -> Batch:
    """``batch`` without its data, for `changing`."""
    return batch.replace(data=np.empty(0, batch.dtype))


@dataclass(frozen=True, slots=True)
class Changing:
    """Arrays that are made anew for each batch."""

    again: Again
    kinds: tuple[tuple[Any, tuple[int, ...]], ...]
    """Their types and shapes."""


@dataclass(frozen=True, slots=True)
class Launched:
    function: Any
    grid: tuple[int, ...]
    block: int
    arguments: tuple[Any, ...]
    """NumPy's numbers, addresses among them; 0 for those in memory that is another one each time."""
    places: tuple[tuple[int, int, int], ...]
    """Those: which argument, which memory (inputs first, then what is allocated), and how many bytes from its start."""


@dataclass(frozen=True, slots=True)
class Output:
    memory: int
    start: int
    size: int
    dtype: Any
    like: Batch
    """The same without data."""
    nbytes: int


def bytes_of(dtype: Any, shape: tuple[int, ...]) -> int:
    """Bytes of an array, with those up to where another one may begin."""
    size: int = math.prod(shape) * np.dtype(dtype).itemsize
    return -(-size // _ALIGNMENT) * _ALIGNMENT


class Recorder:
    """Stands before a lane while an operator launches for it, and takes down what it does.

    Whatever it asks of the lane besides allocations, uploads and launches cannot be repeated.
    """

    def __init__(self, lane: Any, inputs: Sequence[Batch], constant: bool) -> None:
        """``constant``: what the operator does follows from the shapes of its ``inputs``."""
        self._lane = lane
        self._all_fixed = constant
        self._memory: list[Any] = [b.data for b in inputs]
        self._inputs = len(inputs)
        self._made: list[tuple[int, Any] | Changing] = []
        self._constant: list[Any] = []
        self._launches: list[Launched] = []
        self._possible = True

    def __getattr__(self, name: str) -> Any:
        self._possible = False
        return getattr(self._lane, name)

    @property
    def index(self) -> int:
        """Number of the device."""
        found: int = self._lane.index
        return found

    @property
    def cache(self) -> dict[str, Any]:
        """As `Lane.cache`."""
        found: dict[str, Any] = self._lane.cache
        return found

    def give_up(self) -> None:
        """See `once`."""
        self._possible = False

    def hold(self, arrays: Sequence[Any]) -> None:
        """See `lasting`."""
        self._constant += arrays

    def empty(self, n: int, dtype: Any) -> Any:
        """As `Lane.empty`."""
        array = self._lane.empty(n, dtype)
        self._memory.append(array)
        self._made.append((n, dtype))
        return array

    def to_device(self, batch: Batch) -> Batch:
        """As `Lane.to_device`; a batch that has to be copied is no place to repeat launches with."""
        self._possible &= self._lane.holds(batch)
        there: Batch = self._lane.to_device(batch)
        return there

    def upload(self, *arrays: Any) -> tuple[Any, ...]:
        """As `Lane.upload`."""
        self._possible &= self._all_fixed
        return self.fixed(*arrays)

    def fixed(self, *arrays: Any) -> tuple[Any, ...]:
        """See `fixed`."""
        there: tuple[Any, ...] = self._lane.upload(*arrays)
        self._constant += there
        return there

    def changing(self, again: Again | None, arrays: Sequence[npt.NDArray[Any]]) -> tuple[Any, ...]:
        """See `changing`."""
        if self._all_fixed:
            return self.fixed(*arrays)
        there: tuple[Any, ...] = self._lane.upload(*arrays)
        self._possible &= again is not None
        if again is not None:
            self._memory += there
            self._made.append(Changing(again, tuple((a.dtype, a.shape) for a in arrays)))
        return there

    def launch(self, source: str, kernel: str, grid: int | tuple[int, ...], block: int, *args: Any) -> None:
        """As `Lane.launch`."""
        self._lane.launch(source, kernel, grid, block, *args)
        self._note(lambda: self._lane.function(source, kernel), grid, block, args)

    def launch_text(self, text: str, kernel: str, grid: int | tuple[int, ...], block: int, *args: Any) -> None:
        """As `Lane.launch_text`."""
        self._lane.launch_text(text, kernel, grid, block, *args)
        self._note(lambda: self._lane.function_of_text(text, kernel), grid, block, args)

    def _note(
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
                self._constant.append(value)  # which holds its memory
                given[k] = np.uint64(self._lane.address(value))
                continue
            found = self._within(value, self._memory)
            if found is None:
                self._possible = False
                return
            given[k] = np.uint64(0)
            places.append((k, *found))
        self._launches.append(Launched(function(), grid, block, tuple(given), tuple(places)))

    def _within(self, array: Any, memory: Sequence[Any]) -> tuple[int, int] | None:
        """In which of ``memory`` an array lies, and how many bytes from its start."""
        at = self._lane.address(array)
        for k, whole in enumerate(memory):
            start = self._lane.address(whole)
            if whole.nbytes and start <= at and at + array.nbytes <= start + whole.nbytes:
                return k, at - start
        return None

    def recording(self, outputs: Sequence[Batch]) -> Recording | None:
        """The work for another batch; None where that is not known."""
        if not self._all_fixed and not any(isinstance(one, Changing) for one in self._made):
            return None  # the operator does not say what its arguments change
        found = []
        for out in outputs:
            place = self._within(out.data, self._memory) if out.data.nbytes else None
            if place is None or not self._possible:
                return None
            data = out.data
            found.append(Output(*place, data.size, data.dtype, out.replace(data=None), out.nbytes))
        return Recording(self._lane, self._inputs, self._made, self._constant, self._launches, found)


class Recording:
    """The launches of one operator for batches of some shapes."""

    def __init__(
        self, lane: Any, inputs: int, made: Sequence[tuple[int, Any] | Changing], constant: Sequence[Any],
        launches: Sequence[Launched], outputs: Sequence[Output],
    ) -> None:  # fmt: skip
        """``made`` is memory that is allocated, and arrays that are made anew, in their order; ``constant`` are device
        arrays that the kernels read, and that are the same each time."""
        self.in_vain = 0
        """Batches in a row whose arguments asked for other launches."""
        self._constant, self.outputs = tuple(constant), tuple(outputs)
        self.made, self.launches = tuple(made), tuple(launches)
        self.changing = [one for one in made if isinstance(one, Changing)]
        tables = [bytes_of(*kind) for one in self.changing for kind in one.kinds]
        at = itertools.accumulate(tables, initial=0)
        self._tables = list(itertools.islice(at, len(tables)))
        """Where the arrays that are made anew begin, in one block with memory that is no output."""
        self._uploaded = self._scratch = sum(tables)
        self._memory: list[int | tuple[int, Any]] = []
        """The place of each piece of memory in that block, or what to allocate."""
        results, places, number = {o.memory for o in outputs}, iter(self._tables), inputs
        for one in made:
            if isinstance(one, Changing):
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

    def repeat(
        self, lane: Any, inputs: Sequence[Batch], samples: Samples, context: Callable[[], Context]
    ) -> tuple[Batch, ...] | None:
        """The outputs for other ``inputs`` of these shapes; None where the arguments of ``context`` ask for other
        launches."""
        changed = self._changed(context)
        if changed is None:
            return None
        staged = lane.pinned(self._uploaded) if self._uploaded else _NOTHING
        for array, at in zip(changed, self._tables, strict=True):
            staged[at : at + array.nbytes] = np.ascontiguousarray(array).reshape(-1).view(np.uint8)
        memory: list[Any] = [b.data for b in inputs]
        starts = [lane.address(data) for data in memory]
        # what is done on this lane from here on may have the block again
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
        """The arrays of this call's arguments."""
        found: list[npt.NDArray[Any]] = []
        if not self.changing:
            return found
        ctx = context()
        for one in self.changing:
            arrays = one.again(ctx)
            if arrays is None or ctx.rejects or tuple((a.dtype, a.shape) for a in arrays) != one.kinds:
                return None
            found += arrays
        return found


def output_of(data: Any, out: Output, samples: Samples) -> Batch:
    """The batch that ``out`` tells of, in the memory ``data``."""
    if out.start or data.size != out.size or data.dtype != out.dtype:
        itemsize = out.dtype.itemsize
        if not out.start and data.nbytes == out.size * itemsize:
            return out.like.with_data(data.view(out.dtype), samples, out.nbytes)
        data = data.view(np.uint8)[out.start : out.start + out.size * itemsize].view(out.dtype)
    return out.like.with_data(data, samples, out.nbytes)


_KeyOfOne = tuple[bytes, bytes, str, str, int]
_Key = tuple[int | _KeyOfOne, ...]


def key_of(lane: Any, inputs: Sequence[Batch], samples: Samples) -> _Key:
    """Equal for batches for which the same is launched."""
    return (count_of(samples), *[key_of_one(lane, b) for b in inputs])


def count_of(samples: Samples) -> int:
    """How many samples there are; less than 0 where some of the iteration are missing, so that places in the batch are
    not places in the iteration."""
    return len(samples.slot) if are_all(samples) else -len(samples.slot)


def are_all(samples: Samples) -> bool:
    """No sample of the iteration is missing: places in the batch are places in the iteration."""
    slot = samples.slot
    return len(slot) == 0 or int(slot[-1]) == len(slot) - 1


def key_of_one(lane: Any, b: Batch) -> _KeyOfOne:
    """`key_of` one of the inputs, on the device or on the host."""
    where = lane.address(b.data) % _ALIGNMENT if lane.holds(b) else -1
    return b.shapes.tobytes(), b.offsets.tobytes(), b.layout, b.data.dtype.str, where


class Repeats:
    """The recordings of a lane, by operator and shapes. One is made when the same shapes come a second time."""

    def __init__(self) -> None:
        self._kept: dict[Hashable, dict[_Key, Recording | None]] = {}
        self._last: dict[Hashable, dict[_Key, None]] = {}
        """The shapes that came last."""
        self.used: Recording | None = None
        """The one that the last call of `run` repeated."""

    def release(self) -> None:
        """Give the memory back that recordings hold."""
        self._kept.clear()
        self._last.clear()

    def run(
        self, lane: Any, node: Hashable, inputs: Sequence[Batch], samples: Samples,
        launch: Callable[[Any], tuple[Sequence[Batch], bool]], context: Callable[[], Context] | None,
    ) -> Sequence[Batch]:  # fmt: skip
        """The outputs of operator ``node``: repeated, or by ``launch``, which takes a lane and tells besides the
        outputs whether they are all that came of it. ``context`` makes a Context with this call's arguments; None where
        all of them are constant, and nothing is drawn."""
        self.used = None
        if not all(map(lane.holds, inputs)):
            return launch(lane)[0]
        key = key_of(lane, inputs, samples)
        if len(self._last) > _OPERATORS:
            self.release()
        kept = self._kept.setdefault(node, {})
        known = kept.get(key)
        if known is not None:
            repeated = known.repeat(lane, inputs, samples, context or _no_context)
            if repeated is not None:
                self.used, known.in_vain = known, 0
                return repeated
            known.in_vain += 1
            if known.in_vain > IN_VAIN:  # with these arguments something else is launched each time
                kept[key] = None
                return launch(lane)[0]
        elif key in kept or key not in (last := self._last.setdefault(node, {})):
            if key not in kept:
                if len(last) >= _LAST:
                    del last[next(iter(last))]
                last[key] = None
            return launch(lane)[0]
        recorder = Recorder(lane, inputs, context is None)
        outputs, alone = launch(recorder)
        if len(kept) >= _KEPT:
            kept.clear()
        if alone or context is None:  # with other arguments none may be rejected
            made = kept[key] = recorder.recording(outputs) if alone else None
            if made is not None and known is not None:
                made.in_vain = known.in_vain
        return outputs


def _no_context() -> Context:
    raise AssertionError("nothing changes that would need one")


def repeats_of(lane: Any) -> Repeats:
    """The recordings of ``lane``."""
    found: Repeats | None = lane.cache.get(KEY)
    if found is None:
        found = lane.cache[KEY] = Repeats()
    return found
