"""Run: all that some nodes are given for one pass over them, and what came of it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from functools import partial
from typing import Any, cast

import numpy as np
import numpy.typing as npt

from ....ops.base import Spec, Stage
from ....ops.batch import Batch, Samples
from ....ops.context import Context, Helpers
from ....ops.errors import RejectCode
from ....ops.gpu.launch_program import ProgramPart
from ....ops.interfaces import Copies, Isolation, Lane, Lender, Remembered, StartedWork, Uploads
from ...graph.nodes import Edge, Node
from ..memory.budget import Reservation

Env = dict[Edge, Batch]
State = tuple[int, int, int, int]
"""Of a random generator: key, counter (low and high half) and word."""
Draws = tuple[tuple[int, int, Mapping[int, State]], ...]
"""Batches by their slots [low, high), each with where the streams of its operators go on from, by their seeds."""


@dataclass(frozen=True, slots=True)
class Dropped:
    """A sample that was dropped, and where."""

    slot: int
    node: str
    code: RejectCode
    message: str
    kept: bool = False
    """It was not dropped, only noted: it is damaged."""


class Notes:
    """Facts that kernels tell of one pass for the report, until it is sure that the pass counts. Contexts refer to it,
    and not to the pass, which refers to them."""

    __slots__ = ("_at_once", "_waiting")

    def __init__(self) -> None:
        self._waiting: list[tuple[Callable[..., None], tuple[Any, ...]]] = []
        self._at_once = False

    def __len__(self) -> int:
        return len(self._waiting)

    def add(self, told: Callable[..., None], *facts: Any) -> None:
        """``told(*facts)`` is to be called."""
        if self._at_once:
            told(*facts)
        else:
            self._waiting.append((told, facts))

    def forget(self, first: int) -> list[tuple[Callable[..., None], tuple[Any, ...]]]:
        """Those from number ``first`` on; they are forgotten."""
        forgotten = self._waiting[first:]
        del self._waiting[first:]
        return forgotten

    def pass_on(self) -> None:
        """The pass counts so far: call what waits."""
        for told, facts in self.forget(0):
            told(*facts)

    def end(self) -> None:
        """The same; later facts are passed on at once."""
        self._at_once = True
        self.pass_on()


@dataclass(slots=True)
class Run:
    """The inputs and results of one pass over some nodes."""

    samples: Samples
    """All samples of this part of the iteration (for nodes without inputs)."""
    seeds: Mapping[int, int]
    rng: str = "philox"
    draws: Draws = ()
    """Of operators whose streams go on from states that they are given; empty where they follow from ``rng``."""
    device: Copies | None = None
    """The lane of device nodes; None on the host."""
    kinds: Mapping[Edge, Spec] = field(default_factory=dict)
    """Types and numbers of dimensions that the data set's first sample decides; samples with others are rejected."""
    emulate: bool = False
    """Run the CPU kernels of device nodes (the null device)."""
    states: Mapping[int, Any] = field(default_factory=dict)
    """Open data sets and other state of per_batch nodes, by id."""
    reader_samples: Mapping[int, Samples] = field(default_factory=dict)
    allocate_staging: Callable[[int], npt.NDArray[np.uint8]] | None = None
    lender: Lender | None = None
    """Lends views of containers to readers that feed a device."""
    uploads: Mapping[Edge, Uploads] = field(default_factory=dict)
    """Takes what readers give to a device while it is read."""
    pool: Helpers | None = None
    reservation: Reservation | None = None
    """The memory that the kernels may allocate on the host; None for any amount."""
    allocate: Callable[[int, Any], Any] | None = None
    """Where the kernels' arrays come from otherwise (the null device)."""
    alone: Callable[[], AbstractContextManager[None]] | None = None
    """Waits until no other work runs, for a sample that found too little memory."""
    isolation: Isolation | None = None
    count: Callable[[str, int], None] | None = None
    """Told of samples that take a slower way."""
    decoders: Callable[[str, int, float], None] | None = None
    """Told which decoder took how many images, in how many seconds."""
    waited: Callable[[str, float], None] | None = None
    """Told which decoder a batch waited for, and how long."""
    remembered: Remembered | None = None
    """Facts that are kept of records from one epoch to the next."""
    begun: Mapping[int, StartedWork] = field(default_factory=dict)
    """Results of `begin`, by the node's id."""
    attempt: int = 0
    observe: Callable[[Node, int, int, int, float, float], None] | None = None
    """Called after every kernel: node, samples, bytes in, bytes out, begin and end (perf_counter)."""
    mark_device: Callable[[Node, int, int, int, bool], None] | None = None
    """Called around every kernel on a device: node, samples, bytes in, bytes out, after."""
    mark_whole: Callable[[Sequence[Node], int, Sequence[tuple[int, int]]], None] | None = None
    """Called after nodes that were launched as one: samples, and each node's bytes in and out."""
    notes: Notes = field(default_factory=Notes)
    """For `count`, `decoders` and `waited`."""
    dropped: list[Dropped] = field(default_factory=list)
    checks: list[Callable[[], npt.NDArray[Any]]] = field(default_factory=list)
    late: list[tuple[Edge, Callable[[], Batch]]] = field(default_factory=list)
    """Calls that give the late outputs (of some of the samples each) once the device is done."""
    trail: list[ProgramPart] | None = None
    """Operators that repeated their launches, one after the other; None where one did not, or nobody asks."""
    results: Env = field(default_factory=dict)
    """Results of a launch on a device, until it is settled."""
    timer: Any = None

    def state(self) -> tuple[int, int, int, int]:
        """How much it has noted down so far."""
        return len(self.dropped), len(self.checks), len(self.late), len(self.notes)

    def undo(self, state: tuple[int, int, int, int]) -> list[tuple[Callable[..., None], tuple[Any, ...]]]:
        """Forget what was noted down since ``state``: these samples go another way, which notes it again. The facts for
        the report, in case they go none."""
        del self.dropped[state[0] :], self.checks[state[1] :], self.late[state[2] :]
        return self.notes.forget(state[3])


def context_of(node: Node, stage: Stage, samples: Samples, env: Env, run: Run) -> Context:
    """All that the kernel of ``node`` is given besides its inputs."""
    seed, first, state = run.seeds.get(node.id, 0), 0, None
    if run.draws and node.id in run.seeds and seed in run.draws[0][2]:
        slot = int(samples.slot[0])
        first, _, states = next(d for d in run.draws if d[0] <= slot < d[1])
        seed, *rest = states[seed]
        state = rest[0], rest[1], rest[2]
    return Context(
        op=node.op,
        stage=stage,
        samples=samples,
        args={k: env[e] for k, e in node.args.items()},
        seed=seed,
        rng=run.rng,
        state=state,
        first=first,
        device=cast("Lane", run.device),
        source=run.states.get(node.id),
        kind=run.kinds.get(Edge(node.id)) if run.kinds else None,
        allocate_staging=run.allocate_staging,
        lender=run.lender,
        uploads={e.output: u for e, u in run.uploads.items() if e.node == node.id} if run.uploads else {},
        pool=run.pool,
        isolation=run.isolation,
        count=None if run.count is None else partial(run.notes.add, run.count),
        decoders=None if run.decoders is None else partial(run.notes.add, run.decoders),
        waited=None if run.waited is None else partial(run.notes.add, run.waited),
        remembered=run.remembered,
        started=run.begun.get(node.id),
        attempt=run.attempt,
        allocate=run.allocate if run.reservation is None else run.reservation.empty,
    )
