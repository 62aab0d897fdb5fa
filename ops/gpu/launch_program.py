"""Program: the recorded launches of all operators of a step as one, for batches of the same shapes.

Each operator's recording (`launch_recording`) allocates, uploads and launches separately, and its output is a batch
that the next operator inspects. If all operators of a step can be replayed, nothing of this changes from batch to
batch but the arrays that follow from arguments: they are computed, uploaded in one copy, and all kernels are launched
in one call.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Hashable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from ..batch import Batch, Samples
from ..context import Context
from .launch_recording import IN_VAIN, Changing, Recording, bytes_of, key_of, output_of

_KEPT = 4
"""Shapes of batches that are remembered for a step and a lane."""
_SMALL = 1 << 20
"""Bytes of inputs that may be on the host: they are copied once more, to where all uploads are."""
KEY = "programs"
"""In `Lane.cache`."""
Edge = Any
"""Names a batch; hashable."""
Place = tuple[int, int]
"""A memory of the program, and bytes from its start."""


class Part:
    """An operator of a step: its recording, or what it tells of all batches of these shapes, and the batches that it
    takes and gives."""

    __slots__ = ("gives", "node", "recording", "takes", "told")

    def __init__(
        self, node: Any, recording: Recording | None, takes: Sequence[Edge], gives: Sequence[Edge],
        told: Sequence[Batch] = (),
    ) -> None:  # fmt: skip
        self.node, self.recording, self.told = node, recording, tuple(told)
        self.takes, self.gives = tuple(takes), tuple(gives)


class Program:
    """The launches of some operators in their order."""

    def __init__(self, lane: Any, inputs: Mapping[Edge, Batch], parts: Sequence[Part], outputs: Sequence[Edge]) -> None:
        """``inputs`` are the batches that the program is given, ``outputs`` those that outlive it."""
        sizes = {e: b.nbytes for e, b in inputs.items()}
        for p in parts:
            given: Sequence[Any] = p.told or _recorded(p).outputs
            sizes |= {e: o.nbytes for e, o in zip(p.gives, given, strict=True)}
        self.bytes = [(sum(sizes[e] for e in p.takes), sum(sizes[e] for e in p.gives)) for p in parts]
        self.nodes = [p.node for p in parts]
        told = [(e, b) for p in parts for e, b in zip(p.gives, p.told, strict=False) if e in outputs]
        self._told = [(e, b.replace(data=_again(lane, b))) for e, b in told]
        parts = [p for p in parts if not p.told]
        recordings = [_recorded(p) for p in parts]
        self._changing = [(p.node, r.changing) for p, r in zip(parts, recordings, strict=True) if r.changing]
        tables = [bytes_of(*kind) for _, arrays in self._changing for one in arrays for kind in one.kinds]
        extents = {e: _extent(b) for e, b in inputs.items() if not lane.holds(b)}
        tables += [bytes_of(inputs[e].dtype, (high - low,)) for e, (low, high) in extents.items()]
        starts = np.cumsum([0, *tables]).tolist()
        self._uploaded: int = starts.pop()
        brought = dict(zip(extents, starts[len(starts) - len(extents) :], strict=True))
        self._tables: list[int] = starts
        """Where the arrays that are made anew begin, in one block with memory that is no output."""
        self._made: list[tuple[int, Any]] = []
        """Outputs' memory, to be allocated."""
        block = len(inputs)
        """The number of the block's memory; those of outputs come after it."""
        where: dict[Edge, Place] = {e: (block, brought[e]) if e in brought else (k, 0) for k, e in enumerate(inputs)}
        """Where batches begin."""
        self._brought = [(k, *extents[e], brought[e]) for k, e in enumerate(inputs) if e in brought]
        """Inputs that are on the host: which, the elements that are copied, and where to."""
        whose: dict[Edge, Edge] = {}
        """Of batches that are views of others, such as casts to the type that is there: which has the memory."""
        for p, r in zip(parts, recordings, strict=True):
            for e, o in zip(p.gives, r.outputs, strict=True):
                if o.memory < len(p.takes):
                    whose[e] = whose.get(p.takes[o.memory], p.takes[o.memory])
        last = {whose.get(e, e): k for k, p in enumerate(parts) for e in p.takes}
        lasting = {whose.get(e, e) for e in outputs}
        self.is_possible = lasting.isdisjoint(brought)
        """No output is a view of what lies in the block."""
        room = _Room(self._uploaded)
        kernels: list[Any] = []
        places: list[tuple[int, int]] = []
        targets: list[Place] = []
        self._outputs: dict[Edge, tuple[int, Any]] = {}
        upcoming = iter(self._tables)
        for number, (part, recording) in enumerate(zip(parts, recordings, strict=True)):
            results = list(zip(recording.outputs, part.gives, strict=True))
            kept = {o.memory for o, e in results if e in lasting}
            needed = {
                o.memory: max(last.get(e, number) for b, e in results if b.memory == o.memory) for o, _ in results
            }
            memory: list[Place] = [where[e] for e in part.takes]
            for piece in recording.made:
                if isinstance(piece, Changing):
                    memory += [(block, next(upcoming)) for _ in piece.kinds]
                elif len(memory) in kept:
                    self._made.append(piece)
                    memory.append((block + len(self._made), 0))
                else:
                    size = bytes_of(piece[1], (piece[0],))
                    memory.append((block, room.take(size, number, needed.get(len(memory), number))))
            for out, edge in results:
                which, at = memory[out.memory]
                where[edge] = which, at + out.start
                if edge in outputs:
                    self._outputs[edge] = which, replace(out, start=at + out.start)
            for launch in recording.launches:
                kernels.append((launch.function, launch.grid, launch.block, launch.arguments))
                places += [(len(kernels) - 1, argument) for argument, _, _ in launch.places]
                targets += [(memory[w][0], memory[w][1] + start) for _, w, start in launch.places]
        self._block = room.size
        self._launches = lane.launches(kernels, places) if kernels else None
        self._targets = targets
        self._constant = recordings
        """Which hold the arrays that kernels read and that are the same each time."""

        told_there = any(not b.on_host for _, b in self._told)
        self.is_free = self._launches is None and not self._made and not self._block and not told_there
        """It gives nothing but views: the device has nothing to do."""
        self.changes = bool(self._changing)
        """It asks for contexts."""
        self.in_vain = 0
        """Batches in a row whose arguments asked for other launches."""

    def run(
        self, lane: Any, inputs: Sequence[Batch], samples: Samples, context: Callable[[Any], Context],
        *, timed: bool = False,
    ) -> dict[Edge, Batch] | None:  # fmt: skip
        """The outputs for other ``inputs`` of these shapes; None where an operator's arguments, of the Context that
        ``context`` makes for it, ask for other launches. ``timed``: `milliseconds` will be asked."""
        staged = lane.pinned(self._uploaded) if self._uploaded else _NOTHING
        tables = iter(self._tables)
        for node, arrays in self._changing:
            ctx = context(node)
            for one in arrays:
                made = one.again(ctx)
                if made is None or ctx.rejects or tuple([(a.dtype, a.shape) for a in made]) != one.kinds:
                    self.in_vain += 1
                    return None
                for array in made:
                    at = next(tables)
                    staged[at : at + array.nbytes] = np.ascontiguousarray(array).reshape(-1).view(np.uint8)
        self.in_vain = 0
        for k, low, high, at in self._brought:
            part = np.ascontiguousarray(inputs[k].data[low:high])
            staged[at : at + part.nbytes] = part.view(np.uint8)
        block, first = lane.allocate(self._block) if self._block else (None, 0)
        memory: list[Any] = [b.data for b in inputs]
        starts = [lane.address(data) for data in memory] if not self._brought else [
            lane.address(b.data) if lane.holds(b) else 0 for b in inputs
        ]  # fmt: skip
        memory.append(block)
        starts.append(first)
        for n, dtype in self._made:
            memory.append(output := lane.empty(n, dtype))
            starts.append(lane.address(output))
        if self._launches is not None:
            self._launches.begin([starts[which] + at for which, at in self._targets], first, staged, timed=timed)
        # what is done on this lane from here on may have the block again
        found = {edge: output_of(memory[which], out, samples) for edge, (which, out) in self._outputs.items()}
        for edge, told in self._told:
            found[edge] = told.with_data(_again(lane, told), samples, told.nbytes)
        return found

    def milliseconds(self) -> float:
        """The device's time for the last `run` that was timed, once that is done."""
        return 0.0 if self._launches is None else float(self._launches.milliseconds())


def _recorded(part: Part) -> Recording:
    assert part.recording is not None
    return part.recording


def _again(lane: Any, told: Batch) -> Any:
    """The data of ``told`` once more: whoever is given an output may write into it."""
    if told.on_host:
        return told.data.copy()
    data = lane.empty(told.data.size, told.data.dtype)
    lane.copy(lane.address(data), lane.address(told.data), told.data.nbytes)
    return data


def _extent(batch: Batch) -> tuple[int, int]:
    """The elements that `Lane.to_device` copies."""
    return int(batch.offsets.min()), int((batch.offsets + batch.sizes).max())


class _Room:
    """Places in a block for memory that is needed for a while."""

    def __init__(self, start: int) -> None:
        self.size = self._start = start
        self._taken: list[tuple[int, int, int]] = []
        """Begin and end of a piece, and the last operator that needs it."""

    def take(self, nbytes: int, first: int, last: int) -> int:
        """The first place for ``nbytes`` that operators ``first`` to ``last`` may use."""
        busy = sorted(t for t in self._taken if t[2] >= first)
        at = self._start
        for begin, end, _ in busy:
            if begin - at >= nbytes:
                break
            at = max(at, end)
        self._taken = [*busy, (at, at + nbytes, last)]
        self.size = max(self.size, at + nbytes)
        return at


_NOTHING = np.empty(0, np.uint8)


class Programs:
    """The programs of a lane, by step and shapes."""

    def __init__(self) -> None:
        self._kept: dict[Hashable, dict[Any, Program]] = {}

    def release(self) -> None:
        """Give the memory back that programs hold."""
        self._kept.clear()

    def find(self, step: Hashable, key: Any) -> Program | None:
        """The program of ``step`` for inputs of ``key`` (`key_of`)."""
        kept = self._kept.get(step)
        found = None if kept is None else kept.get(key)
        return None if found is None or found.in_vain > IN_VAIN else found

    def run(
        self, lane: Any, step: Hashable, inputs: Mapping[Edge, Batch], samples: Samples,
        context: Callable[[Any], Context],
    ) -> tuple[dict[Edge, Batch], list[tuple[int, int]]] | None:  # fmt: skip
        """The outputs of ``step``, and the bytes that each operator takes and gives; None where there is no program for
        them, yet or this time."""
        if not self._kept.get(step):
            return None
        given = list(inputs.values())
        known = self.find(step, key_of(lane, given, samples))
        made = None if known is None else known.run(lane, given, samples, context)
        return None if known is None or made is None else (made, known.bytes)

    def note(
        self, lane: Any, step: Hashable, inputs: Mapping[Edge, Batch], samples: Samples, trail: Sequence[Part],
        outputs: Collection[Edge],
    ) -> None:  # fmt: skip
        """All operators of ``step``, the ``trail``, were repeated: so will the whole be."""
        given = list(inputs.values())
        if sum(b.data.nbytes for b in given if not lane.holds(b)) > _SMALL:
            return
        kept = self._kept.setdefault(step, {})
        key = key_of(lane, given, samples)
        if key in kept:
            return
        if len(kept) >= _KEPT:
            kept.clear()
        made = [e for p in trail for e in p.gives]
        program = Program(lane, inputs, trail, [e for e in outputs if e in made])
        if program.is_possible:
            kept[key] = program


def programs_of(lane: Any) -> Programs:
    """The programs of ``lane``."""
    found: Programs | None = lane.cache.get(KEY)
    if found is None:
        found = lane.cache[KEY] = Programs()
    return found
