"""Repeated: launches of an operator that are taken down once, and repeated for batches of the same shapes.

For two batches of the same shapes, an operator of constant arguments (`Operator.repeats`) tells its kernels the same;
to work that out again takes ten times as long as the launches. With pictures that are on the GPU already, that is what
a batch waits for.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from ..batch import Batch, Samples

_KEPT = 4
"""Shapes of batches that are remembered for an operator and a lane."""
_ALIGNMENT = 256
KEY = "repeated"
"""In `Lane.cache`."""


@dataclass(frozen=True, slots=True)
class _Launch:
    call: Callable[..., None]
    grid: tuple[int, ...]
    block: int
    arguments: tuple[Any, ...]
    """As they were given, 0 for addresses in memory that is another one each time."""
    places: tuple[tuple[int, int, int], ...]
    """Those: which argument, which memory (inputs first, then what is allocated), and how many bytes from its start."""


@dataclass(frozen=True, slots=True)
class _Output:
    memory: int
    start: int
    size: int
    dtype: Any
    like: Batch
    """The same without data."""
    nbytes: int


class Recorder:
    """Stands before a lane while an operator launches for it, and takes down what it does.

    Whatever it asks of the lane besides allocations, uploads and launches cannot be repeated.
    """

    def __init__(self, lane: Any, inputs: Sequence[Batch]) -> None:
        self._lane = lane
        self._memory: list[Any] = [b.data for b in inputs]
        self._allocated: list[tuple[int, Any]] = []
        self._constant: list[Any] = []
        self._launches: list[_Launch] = []
        self._possible = True

    def __getattr__(self, name: str) -> Any:
        self._possible = False
        return getattr(self._lane, name)

    @property
    def index(self) -> int:
        """Number of the device."""
        found: int = self._lane.index
        return found

    def empty(self, n: int, dtype: Any) -> Any:
        """As `Lane.empty`."""
        array = self._lane.empty(n, dtype)
        self._memory.append(array)
        self._allocated.append((n, dtype))
        return array

    def upload(self, *arrays: Any) -> tuple[Any, ...]:
        """As `Lane.upload`."""
        there: tuple[Any, ...] = self._lane.upload(*arrays)
        self._constant += there
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
                continue
            found = self._within(value, self._memory)
            if found is None:
                self._possible = False
                return
            given[k] = 0
            places.append((k, *found))
        self._launches.append(_Launch(function(), grid, block, tuple(given), tuple(places)))

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
        found = []
        for out in outputs:
            place = self._within(out.data, self._memory) if out.data.nbytes else None
            if place is None or not self._possible:
                return None
            data = out.data
            found.append(_Output(*place, data.size, data.dtype, out.replace(data=None), out.nbytes))
        return Recording(tuple(self._allocated), tuple(self._constant), tuple(self._launches), tuple(found))


@dataclass(frozen=True, slots=True)
class Recording:
    """The launches of one operator for batches of some shapes."""

    allocated: tuple[tuple[int, Any], ...]
    constant: tuple[Any, ...]
    """Device arrays that the kernels read, and that are the same each time."""
    launches: tuple[_Launch, ...]
    outputs: tuple[_Output, ...]

    def repeat(self, lane: Any, inputs: Sequence[Batch], samples: Samples) -> tuple[Batch, ...]:
        """The outputs for other ``inputs`` of these shapes."""
        memory = [b.data for b in inputs]
        memory += [lane.empty(n, dtype) for n, dtype in self.allocated]
        starts = [lane.address(a) for a in memory]
        stream = lane.stream
        for launch in self.launches:
            arguments = list(launch.arguments)
            for k, which, start in launch.places:
                arguments[k] = np.uint64(starts[which] + start)
            launch.call(launch.grid, (launch.block,), tuple(arguments), stream=stream)
        found = []
        for out in self.outputs:
            data = memory[out.memory]
            if out.start or data.size != out.size or data.dtype != out.dtype:
                itemsize = out.dtype.itemsize
                data = data.view(np.uint8)[out.start : out.start + out.size * itemsize].view(out.dtype)
            found.append(out.like.with_data(data, samples, out.nbytes))
        return tuple(found)


_Key = tuple[tuple[bytes, bytes, str, str, int], ...]


class Repeats:
    """The recordings of a lane, by operator and shapes. One is made when the same shapes come a second time."""

    def __init__(self) -> None:
        self._kept: dict[int, dict[_Key, Recording | None]] = {}
        self._last: dict[int, _Key] = {}

    def release(self) -> None:
        """Give the memory back that recordings hold."""
        self._kept.clear()
        self._last.clear()

    def run(
        self, lane: Any, node: int, inputs: Sequence[Batch], samples: Samples,
        launch: Callable[[Any], tuple[Sequence[Batch], bool]],
    ) -> Sequence[Batch]:  # fmt: skip
        """The outputs of operator ``node``: repeated, or by ``launch``, which takes a lane and tells besides the
        outputs whether they are all that came of it."""
        if not all(map(lane.holds, inputs)):
            return launch(lane)[0]
        key = tuple(
            (b.shapes.tobytes(), b.offsets.tobytes(), b.layout, b.data.dtype.str, lane.address(b.data) % _ALIGNMENT)
            for b in inputs
        )
        kept = self._kept.setdefault(node, {})
        known = kept.get(key)
        if known is not None:
            return known.repeat(lane, inputs, samples)
        if key in kept or self._last.get(node) != key:
            self._last[node] = key
            return launch(lane)[0]
        recorder = Recorder(lane, inputs)
        outputs, alone = launch(recorder)
        if len(kept) >= _KEPT:
            kept.clear()
        kept[key] = recorder.recording(outputs) if alone else None
        return outputs


def repeats_of(lane: Any) -> Repeats:
    """The recordings of ``lane``."""
    found: Repeats | None = lane.cache.get(KEY)
    if found is None:
        found = lane.cache[KEY] = Repeats()
    return found
