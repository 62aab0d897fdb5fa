"""One pass of a batch over a list of nodes: its inputs, its callbacks and its results.

`Services` creates a `NodePass` for each step of a batch, and `nodes.run_nodes` works with it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from typing import Any, ClassVar, Literal, cast

import numpy as np
import numpy.typing as npt

from ....ops.base import Spec, Stage
from ....ops.batch import Batch, Samples
from ....ops.context import NO_SERVICES, Context, KernelServices
from ....ops.errors import RejectCode
from ....ops.gpu.launch_program import ProgramPart
from ....ops.interfaces import Copies, Lane, StartedWork, Uploader
from ...graph.nodes import Edge, Node
from ..memory.budget import Reservation

Env = dict[Edge, Batch]
"""The batches that exist at some point while nodes run, each by its edge of the graph (output of a node)."""
State = tuple[int, int, int, int]
"""State of a random generator: key, counter (low and high half) and word."""
Draws = tuple[tuple[int, int, Mapping[int, State]], ...]
"""States with which the operators' random generators continue. For each request of a merged batch: its sample indices
[low, high), and the states by the operators' seeds."""


@dataclass(frozen=True, slots=True)
class Dropped:
    """A sample that a node rejected, with the reason; it becomes a line of the output's ``rejects.jsonl``. Created
    while nodes run."""

    slot: int
    node: str
    code: RejectCode | Literal["left_out"]
    message: str
    kept: bool = False
    """Whether the sample stays in the batch although it is damaged; it is then only reported."""


@dataclass(frozen=True, slots=True, eq=False)
class LeftOut:
    """Samples that a node left out on purpose in one call, as `keep_if` does. They are stored as arrays, because there
    may be as many of them as of samples that stay."""

    slots: npt.NDArray[np.int32]
    node: str
    values: Mapping[str, npt.NDArray[Any]]
    """Values by which the node decided, for each sample left out ([N] each), by their names in the condition."""
    kept: ClassVar[bool] = False

    def take(self, selected: npt.NDArray[np.bool_]) -> LeftOut:
        """Return a new object with only the ``selected`` samples (bool[N])."""
        return LeftOut(self.slots[selected], self.node, {name: v[selected] for name, v in self.values.items()})

    def each(self) -> Iterator[Dropped]:
        """Yield the samples that were left out one by one, for messages about a few of them."""
        for i, slot in enumerate(self.slots.tolist()):
            shown = ", ".join(f"{name} is {v[i]}" for name, v in self.values.items())
            yield Dropped(slot, self.node, "left_out", f"left out on purpose: {shown}")


Loss = Dropped | LeftOut


def rejected(lost: Iterable[Loss]) -> list[Dropped]:
    """Return the samples that failed, without those that were left out on purpose."""
    return [d for d in lost if isinstance(d, Dropped)]


def left_out(lost: Iterable[Loss]) -> list[LeftOut]:
    """Return the samples that were left out on purpose, without those that failed."""
    return [d for d in lost if isinstance(d, LeftOut)]


def one_by_one(lost: Iterable[Loss]) -> Iterator[Dropped]:
    """Yield all samples that failed or were left out, each with its reason."""
    for d in lost:
        yield from (d,) if isinstance(d, Dropped) else d.each()


class DeferredReports:
    """Reports of facts by kernels, such as counts of decoded images. The calls are deferred until it is certain that
    the results of the pass are used. Contexts of kernels refer to this object and not to the pass, to avoid a reference
    cycle."""

    __slots__ = ("_immediate", "_waiting")

    def __init__(self) -> None:
        self._waiting: list[tuple[Callable[..., None], tuple[Any, ...]]] = []
        self._immediate = False

    def __len__(self) -> int:
        return len(self._waiting)

    def add(self, report: Callable[..., None], *facts: Any) -> None:
        """Defer the call ``report(*facts)``; after `finish`, call it immediately."""
        if self._immediate:
            report(*facts)
        else:
            self._waiting.append((report, facts))

    def discard(self, first: int) -> list[tuple[Callable[..., None], tuple[Any, ...]]]:
        """Remove and return the deferred calls from index ``first`` on."""
        discarded = self._waiting[first:]
        del self._waiting[first:]
        return discarded

    def deliver(self) -> None:
        """Make the deferred calls, because the results of the pass are used."""
        for report, facts in self.discard(0):
            report(*facts)

    def finish(self) -> None:
        """Make the deferred calls, because the results of the pass are used. From now on `add` calls immediately."""
        self._immediate = True
        self.deliver()


@dataclass(slots=True)
class NodePass:
    """One run of some nodes over the samples of a batch: its inputs, its options, and its results so far. Created by
    `Services.node_pass`; used by one thread at a time."""

    samples: Samples
    """All samples over which the nodes run, as nodes without inputs need them."""
    seeds: Mapping[int, int]
    rng: str = "philox"
    draws: Draws = ()
    """States with which the operators' random generators continue; empty if all random numbers follow from ``rng`` and
    the samples."""
    device: Copies | None = None
    """The lane (a CUDA stream with its memory) on which device nodes run; None on the host."""
    kinds: Mapping[Edge, Spec] = field(default_factory=dict)
    """Types and numbers of dimensions that the data set's first sample decides; samples that differ are rejected."""
    emulate: bool = False
    """Whether device nodes run their CPU kernels, because the device is ``null``."""
    states: Mapping[int, Any] = field(default_factory=dict)
    """State that nodes keep between batches, such as a reader's open data set, by the node's id."""
    reader_samples: Mapping[int, Samples] = field(default_factory=dict)
    """The samples of each reader, by the id of the reader's node."""
    services: KernelServices = NO_SERVICES
    """Functions and objects of the engine that kernels use. Calls of its reports go to `reports`."""
    uploads: Mapping[Edge, Uploader] = field(default_factory=dict)
    """For each reader output that is uploaded to a device while it is read, by its edge in the graph: the object that
    uploads it."""
    reservation: Reservation | None = None
    """The memory that kernels may allocate on the host; None if it is not limited."""
    allocate: Callable[[int, Any], Any] | None = None
    """Function that allocates the kernels' arrays if `reservation` is None, as on the null device."""
    exclusive: Callable[[], AbstractContextManager[None]] | None = None
    """Function that returns a context manager which waits until no other task runs. It is used for a sample that ran
    out of memory. None if there are no other tasks."""
    started: Mapping[int, StartedWork] = field(default_factory=dict)
    """Work of mixed kernels that `start_early` has started ahead of the launch, by the node's id."""
    attempt: int = 0
    """Index of the decoder to use in the list of decoders: higher for samples on which decoders have failed."""
    observe: Callable[[Node, int, int, int, float, float], None] | None = None
    """Called after every kernel with the node, number of samples, bytes read, bytes written, and times of begin and end
    (perf_counter)."""
    mark_device: Callable[[Node, int, int, int, bool], None] | None = None
    """Called before and after every kernel on a device is launched, with the node, number of samples, bytes read, bytes
    written, and whether the kernel has already been launched."""
    mark_whole: Callable[[Sequence[Node], int, Sequence[tuple[int, int]]], None] | None = None
    """Called after nodes that were launched as one program, with the nodes, the number of samples, and each node's
    bytes read and written."""
    reports: DeferredReports = field(default_factory=DeferredReports)
    """Calls of the reports in `services`, deferred until it is certain that the results of the pass are used."""
    dropped: list[Loss] = field(default_factory=list)
    checks: list[Callable[[], npt.NDArray[Any]]] = field(default_factory=list)
    """Functions to call after the device has finished: each returns the indices of the samples that failed a kernel's
    check there."""
    late_outputs: list[tuple[Edge, Callable[[], Batch]]] = field(default_factory=list)
    """Outputs that exist only after the device has finished, for example images that the GPU encoded: for each, its
    edge in the graph and a function that returns its batch. The batch may lack samples."""
    recorded: list[ProgramPart] | None = None
    """Recorded launches of the operators so far, in order; None if one of them could not be recorded, or if nothing is
    to be recorded."""
    results: Env = field(default_factory=dict)
    """Results of a launch on a device, stored here until the launch is completed."""
    timer: Any = None
    """The `DeviceTimer` that measures the launch; None if there is none."""

    def state(self) -> tuple[int, int, int, int]:
        """Return the number of results of each kind (such as dropped samples, checks, reports) so far, to be passed to
        `undo` later."""
        return len(self.dropped), len(self.checks), len(self.late_outputs), len(self.reports)

    def undo(self, state: tuple[int, int, int, int]) -> list[tuple[Callable[..., None], tuple[Any, ...]]]:
        """Remove all results that were added since ``state``, because the samples are computed again in another way.
        Return the removed calls that report facts; they are needed if samples are not computed again after all."""
        del self.dropped[state[0] :], self.checks[state[1] :], self.late_outputs[state[2] :]
        return self.reports.discard(state[3])


def context_of(node: Node, stage: Stage, samples: Samples, env: Env, run: NodePass) -> Context:
    """Return the context of the kernel of ``node``: everything that the kernel gets besides its input batches."""
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
        services=run.services,
        uploads={e.output: u for e, u in run.uploads.items() if e.node == node.id} if run.uploads else {},
        started=run.started.get(node.id),
        attempt=run.attempt,
        allocate=run.allocate if run.reservation is None else run.reservation.empty,
    )
