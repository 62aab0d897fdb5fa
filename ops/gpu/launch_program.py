"""Replay the recorded launches of all operators of a step together, for batches of the same shapes.

Replaying one operator after the other (`launch_recording`) allocates, uploads and launches for each separately. If all
operators of a step can be replayed, only the arrays that depend on arguments change from batch to batch: these are
computed, uploaded in one copy, and all kernels are launched in one call. Called by
`pipelines.engine.nodes.recorded_tail` and `pipelines.engine.caller_thread.replayed_step`.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Hashable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from ..batch import Batch, Samples
from ..context import Context
from .launch_recording import MAX_FAILURES, ChangingArrays, Recording, bytes_of, key_of, output_of

_MAX_PROGRAMS = 4
"""Maximum number of launch programs (recorded kernel launches) per CUDA stream and step of a plan, one for each
combination of input shapes. When one more is recorded, the others are dropped."""
_MAX_HOST_BYTES = 1 << 20
"""Maximum total bytes of the inputs in host memory that a launch program may have. Each replay uploads them."""
KEY = "programs"
"""Key in `Lane.cache` of the `ProgramCache`, which holds recorded kernel launches."""
Edge = Any
"""Identifier of a batch that operators pass to later ones; any hashable value."""
Place = tuple[int, int]
"""Location of an array in device memory: (index of a memory block, byte offset in the block)."""


class ProgramPart:
    """One operator of a `LaunchProgram`: node in the graph, recorded kernel launches, and identifiers of the input and
    output batches. An operator that launches no kernels has ``constant_outputs`` instead: outputs that are equal for
    all batches of the same shapes."""

    __slots__ = ("constant_outputs", "inputs", "node", "outputs", "recording")

    def __init__(
        self, node: Any, recording: Recording | None, inputs: Sequence[Edge], outputs: Sequence[Edge],
        constant_outputs: Sequence[Batch] = (),
    ) -> None:  # fmt: skip
        self.node, self.recording, self.constant_outputs = node, recording, tuple(constant_outputs)
        self.inputs, self.outputs = tuple(inputs), tuple(outputs)


class LaunchProgram:
    """Recorded kernel launches of several consecutive operators, replayed together for each batch of the same shapes.
    Owned by a `ProgramCache`; used by the thread that launches kernels on the CUDA stream."""

    def __init__(
        self, lane: Any, inputs: Mapping[Edge, Batch], parts: Sequence[ProgramPart], outputs: Sequence[Edge]
    ) -> None:
        """``inputs``: by identifier, the batches that the recorded operators get from other operators. ``parts``: the
        recorded operators. ``outputs``: identifiers of the batches that later operators use."""
        sizes = {e: b.nbytes for e, b in inputs.items()}
        for p in parts:
            outputs_: Sequence[Any] = p.constant_outputs or _recorded(p).outputs
            sizes |= {e: o.nbytes for e, o in zip(p.outputs, outputs_, strict=True)}
        self.bytes = [(sum(sizes[e] for e in p.inputs), sum(sizes[e] for e in p.outputs)) for p in parts]
        self.nodes = [p.node for p in parts]
        constant = [(e, b) for p in parts for e, b in zip(p.outputs, p.constant_outputs, strict=False) if e in outputs]
        self._constant_outputs = [(e, b.replace(data=_copy(lane, b))) for e, b in constant]
        parts = [p for p in parts if not p.constant_outputs]
        recordings = [_recorded(p) for p in parts]
        self._changing = [(p.node, r.changing) for p, r in zip(parts, recordings, strict=True) if r.changing]
        tables = [bytes_of(*kind) for _, arrays in self._changing for one in arrays for kind in one.kinds]
        extents = {e: _extent(b) for e, b in inputs.items() if not lane.holds(b)}
        tables += [bytes_of(inputs[e].dtype, (high - low,)) for e, (low, high) in extents.items()]
        starts = np.cumsum([0, *tables]).tolist()
        self._uploaded: int = starts.pop()
        uploaded_at = dict(zip(extents, starts[len(starts) - len(extents) :], strict=True))
        self._tables: list[int] = starts
        """Byte offsets in the scratch block of arrays that are computed again each time the launches are replayed. The
        scratch block is one allocation of device memory, also for intermediate results."""
        self._made: list[tuple[int, Any]] = []
        """Output arrays to allocate each time the launches are replayed, as (number of elements, dtype)."""
        block = len(inputs)
        """Index of the scratch block (intermediate results) in the list of memory blocks, in which inputs come first
        and outputs last."""
        where: dict[Edge, Place] = {
            e: (block, uploaded_at[e]) if e in uploaded_at else (k, 0) for k, e in enumerate(inputs)
        }
        """Location of each batch in device memory, as (index of the memory block, byte offset)."""
        self._host_inputs = [(k, *extents[e], uploaded_at[e]) for k, e in enumerate(inputs) if e in uploaded_at]
        """Copies that upload inputs from host memory, each as (index of the input, first element, end element, byte
        offset in the scratch block)."""
        whose: dict[Edge, Edge] = {}
        """Batches that are views of another batch, such as the result of a cast to the same dtype, with the batch that
        owns their memory."""
        for p, r in zip(parts, recordings, strict=True):
            for e, o in zip(p.outputs, r.outputs, strict=True):
                if o.memory < len(p.inputs):
                    whose[e] = whose.get(p.inputs[o.memory], p.inputs[o.memory])
        last = {whose.get(e, e): k for k, p in enumerate(parts) for e in p.inputs}
        lasting = {whose.get(e, e) for e in outputs}
        self.is_possible = lasting.isdisjoint(uploaded_at)
        """Whether the kernel launches can be replayed: no output may be a view of an input in host memory. Such inputs
        are uploaded to the scratch block, which the next replay overwrites."""
        layout = _BlockLayout(self._uploaded)
        kernels: list[Any] = []
        places: list[tuple[int, int]] = []
        targets: list[Place] = []
        self._outputs: dict[Edge, tuple[int, Any]] = {}
        upcoming = iter(self._tables)
        for number, (part, recording) in enumerate(zip(parts, recordings, strict=True)):
            results = list(zip(recording.outputs, part.outputs, strict=True))
            kept = {o.memory for o, e in results if e in lasting}
            needed = {
                o.memory: max(last.get(e, number) for b, e in results if b.memory == o.memory) for o, _ in results
            }
            memory: list[Place] = [where[e] for e in part.inputs]
            for piece in recording.made:
                if isinstance(piece, ChangingArrays):
                    memory += [(block, next(upcoming)) for _ in piece.kinds]
                elif len(memory) in kept:
                    self._made.append(piece)
                    memory.append((block + len(self._made), 0))
                else:
                    size = bytes_of(piece[1], (piece[0],))
                    memory.append((block, layout.take(size, number, needed.get(len(memory), number))))
            for out, edge in results:
                which, at = memory[out.memory]
                where[edge] = which, at + out.start
                if edge in outputs:
                    self._outputs[edge] = which, replace(out, start=at + out.start)
            for launch in recording.launches:
                kernels.append((launch.function, launch.grid, launch.block, launch.arguments))
                places += [(len(kernels) - 1, argument) for argument, _, _ in launch.places]
                targets += [(memory[w][0], memory[w][1] + start) for _, w, start in launch.places]
        self._block = layout.size
        self._launches = lane.launches(kernels, places) if kernels else None
        self._targets = targets
        self._recordings = recordings
        """Recorded launches of the operators; they own the constant device arrays that kernels read."""

        on_device = any(not b.on_host for _, b in self._constant_outputs)
        self.is_free = self._launches is None and not self._made and not self._block and not on_device
        """Whether replaying launches and allocates nothing on the GPU, because all outputs are views or in host
        memory."""
        self.changes = bool(self._changing)
        """Whether kernels read arrays that depend on the operators' arguments. Each `run` then computes these arrays
        again."""
        self.failures = 0
        """Number of consecutive batches whose arguments needed other kernel launches, so that they could not be
        replayed."""

    def run(
        self, lane: Any, inputs: Sequence[Batch], samples: Samples, context: Callable[[Any], Context],
        *, timed: bool = False,
    ) -> dict[Edge, Batch] | None:  # fmt: skip
        """Launch the recorded kernels for other ``inputs`` of the same shapes. Return the outputs by identifier, or
        None if an operator's arguments need other launches. ``context``: function that creates the Context of an
        operator's node. ``timed``: measure the GPU time, for `milliseconds`."""
        staged = lane.pinned(self._uploaded) if self._uploaded else _NOTHING
        tables = iter(self._tables)
        for node, arrays in self._changing:
            ctx = context(node)
            for one in arrays:
                made = one.recompute(ctx)
                if made is None or ctx.rejects or tuple([(a.dtype, a.shape) for a in made]) != one.kinds:
                    self.failures += 1
                    return None
                for array in made:
                    at = next(tables)
                    staged[at : at + array.nbytes] = np.ascontiguousarray(array).reshape(-1).view(np.uint8)
        self.failures = 0
        for k, low, high, at in self._host_inputs:
            part = np.ascontiguousarray(inputs[k].data[low:high])
            staged[at : at + part.nbytes] = part.view(np.uint8)
        block, first = lane.allocate(self._block) if self._block else (None, 0)
        memory: list[Any] = [b.data for b in inputs]
        starts = [lane.address(data) for data in memory] if not self._host_inputs else [
            lane.address(b.data) if lane.holds(b) else 0 for b in inputs
        ]  # fmt: skip
        memory.append(block)
        starts.append(first)
        for n, dtype in self._made:
            memory.append(output := lane.empty(n, dtype))
            starts.append(lane.address(output))
        if self._launches is not None:
            self._launches.begin([starts[which] + at for which, at in self._targets], first, staged, timed=timed)
        # The block is free again when this returns: later work on this lane may reuse it, because it runs after these
        # launches.
        found = {edge: output_of(memory[which], out, samples) for edge, (which, out) in self._outputs.items()}
        for edge, batch in self._constant_outputs:
            found[edge] = batch.with_data(_copy(lane, batch), samples, batch.nbytes)
        return found

    def milliseconds(self) -> float:
        """Return the milliseconds that the last `run` with ``timed`` took on the GPU; may be called only when the GPU
        has finished."""
        return 0.0 if self._launches is None else float(self._launches.milliseconds())


def _recorded(part: ProgramPart) -> Recording:
    assert part.recording is not None
    return part.recording


def _copy(lane: Any, batch: Batch) -> Any:
    """Return a copy of an operator's constant output, because later operators may write into it."""
    if batch.on_host:
        return batch.data.copy()
    data = lane.empty(batch.data.size, batch.data.dtype)
    lane.copy(lane.address(data), lane.address(batch.data), batch.data.nbytes)
    return data


def _extent(batch: Batch) -> tuple[int, int]:
    """Return the range of elements, as (begin, end), of the batch's array that `Lane.to_device` copies."""
    return int(batch.offsets.min()), int((batch.offsets + batch.sizes).max())


class _BlockLayout:
    """Allocator of byte ranges in one scratch block of device memory. Ranges that are needed at different times may
    overlap."""

    def __init__(self, start: int) -> None:
        self.size = self._start = start
        self._taken: list[tuple[int, int, int]] = []
        """Ranges allocated so far, each as (begin, end, index of the last operator that uses the range)."""

    def take(self, nbytes: int, first: int, last: int) -> int:
        """Reserve ``nbytes`` for use by the operators with indices ``first`` to ``last``. Return the lowest byte offset
        that is free while they run."""
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


class ProgramCache:
    """Cache of launch programs (recorded kernel launches of consecutive operators), by plan step and input shapes.
    Stored in `Lane.cache`; used by the thread that launches kernels on the CUDA stream."""

    def __init__(self) -> None:
        self._kept: dict[Hashable, dict[Any, LaunchProgram]] = {}

    def release(self) -> None:
        """Drop all launch programs and the device memory that they own."""
        self._kept.clear()

    def find(self, step: Hashable, key: Any) -> LaunchProgram | None:
        """Return the launch program of plan step ``step`` for inputs with this ``key`` (their shapes, see `key_of`).
        None if there is none, or if it failed too often."""
        kept = self._kept.get(step)
        found = None if kept is None else kept.get(key)
        return None if found is None or found.failures > MAX_FAILURES else found

    def run(
        self, lane: Any, step: Hashable, inputs: Mapping[Edge, Batch], samples: Samples,
        context: Callable[[Any], Context],
    ) -> tuple[dict[Edge, Batch], list[tuple[int, int]]] | None:  # fmt: skip
        """Launch the recorded kernels of plan step ``step`` for these ``inputs``. Return the outputs by identifier, and
        the bytes that each operator reads and writes. Return None if no launches were recorded for these shapes, or if
        the arguments need other launches."""
        if not self._kept.get(step):
            return None
        given = list(inputs.values())
        known = self.find(step, key_of(lane, given, samples))
        made = None if known is None else known.run(lane, given, samples, context)
        return None if known is None or made is None else (made, known.bytes)

    def record(
        self, lane: Any, step: Hashable, inputs: Mapping[Edge, Batch], samples: Samples, parts: Sequence[ProgramPart],
        outputs: Collection[Edge],
    ) -> None:  # fmt: skip
        """Create a launch program from the recorded launches of the operators ``parts`` of plan step ``step``, for
        later batches with the shapes of ``inputs``."""
        given = list(inputs.values())
        if sum(b.data.nbytes for b in given if not lane.holds(b)) > _MAX_HOST_BYTES:
            return
        kept = self._kept.setdefault(step, {})
        key = key_of(lane, given, samples)
        if key in kept:
            return
        if len(kept) >= _MAX_PROGRAMS:
            kept.clear()
        made = [e for p in parts for e in p.outputs]
        program = LaunchProgram(lane, inputs, parts, [e for e in outputs if e in made])
        if program.is_possible:
            kept[key] = program


def programs_of(lane: Any) -> ProgramCache:
    """Return the cache of recorded kernel launches of ``lane``, a CUDA stream, created on the first call."""
    found: ProgramCache | None = lane.cache.get(KEY)
    if found is None:
        found = lane.cache[KEY] = ProgramCache()
    return found
