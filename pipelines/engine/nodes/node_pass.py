"""One pass of a batch over a list of nodes: its inputs, its callbacks and its results.

`Services` creates a `NodePass` for each step of a batch, and `nodes.run_nodes` works with it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from functools import partial
from typing import Any, ClassVar, Literal, cast

import numpy as np
import numpy.typing as npt

from ....ops.base import Spec, Stage
from ....ops.batch import Batch, Samples
from ....ops.context import Context, Helpers
from ....ops.errors import RejectCode
from ....ops.gpu.launch_program import ProgramPart
from ....ops.interfaces import Copies, FactCache, Isolation, Lane, Lender, StartedWork, Uploader
from ...graph.nodes import Edge, Node
from ..memory.budget import Reservation

Env = dict[Edge, Batch]
"""The batches that exist at some point of a pass, by the edge of the graph that they belong to."""
State = tuple[int, int, int, int]
"""State of a random generator: key, counter (low and high half) and word."""
Draws = tuple[tuple[int, int, Mapping[int, State]], ...]
"""For each request of a merged batch: its slots [low, high), and the states from which the random streams of its
operators continue, by the operators' seeds."""


@dataclass(frozen=True, slots=True)
class Dropped:
    """A sample that a node rejected, with the reason; it becomes a line of the rejects. Created while nodes run."""

    slot: int
    node: str
    code: RejectCode | Literal["left_out"]
    message: str
    kept: bool = False
    """Whether the sample stays in the batch: it is damaged, and only reported."""


@dataclass(frozen=True, slots=True, eq=False)
class LeftOut:
    """Samples that a node left out on purpose in one call. They are arrays, because there may be as many of them as
    of samples that stay."""

    slots: npt.NDArray[np.int32]
    node: str
    values: Mapping[str, npt.NDArray[Any]]
    """Values that the node decided by, [N] each, by their names in the condition."""
    kept: ClassVar[bool] = False

    def take(self, selected: npt.NDArray[np.bool_]) -> LeftOut:
        """Return the ``selected`` samples (bool[N]) as an object of its own."""
        return LeftOut(self.slots[selected], self.node, {name: v[selected] for name, v in self.values.items()})

    def each(self) -> Iterator[Dropped]:
        """The samples one by one, for messages about a few of them."""
        for i, slot in enumerate(self.slots.tolist()):
            shown = ", ".join(f"{name} is {v[i]}" for name, v in self.values.items())
            yield Dropped(slot, self.node, "left_out", f"left out on purpose: {shown}")


Loss = Dropped | LeftOut


def rejected(lost: Iterable[Loss]) -> list[Dropped]:
    """The samples that failed, without those that were left out on purpose."""
    return [d for d in lost if isinstance(d, Dropped)]


def left_out(lost: Iterable[Loss]) -> list[LeftOut]:
    """The samples that were left out on purpose."""
    return [d for d in lost if isinstance(d, LeftOut)]


def one_by_one(lost: Iterable[Loss]) -> Iterator[Dropped]:
    """All lost samples, each with its reason."""
    for d in lost:
        yield from (d,) if isinstance(d, Dropped) else d.each()


class DeferredReports:
    """Calls with facts for the report that kernels of one pass have made, deferred until it is certain that the pass
    counts.

    Contexts of kernels refer to this object, and not to the pass, which refers to them: that would be a reference
    cycle.
    """

    __slots__ = ("_immediate", "_waiting")

    def __init__(self) -> None:
        self._waiting: list[tuple[Callable[..., None], tuple[Any, ...]]] = []
        self._immediate = False

    def __len__(self) -> int:
        return len(self._waiting)

    def add(self, report: Callable[..., None], *facts: Any) -> None:
        """Defer the call ``report(*facts)``, or make it now after `finish`."""
        if self._immediate:
            report(*facts)
        else:
            self._waiting.append((report, facts))

    def discard(self, first: int) -> list[tuple[Callable[..., None], tuple[Any, ...]]]:
        """Remove the deferred calls from index ``first`` on, and return them."""
        discarded = self._waiting[first:]
        del self._waiting[first:]
        return discarded

    def deliver(self) -> None:
        """Make the deferred calls: the results of the pass are used."""
        for report, facts in self.discard(0):
            report(*facts)

    def finish(self) -> None:
        """Make the deferred calls, and from now on every call at once: the results of the pass are used."""
        self._immediate = True
        self.deliver()


@dataclass(slots=True)
class NodePass:
    """The inputs and results of one pass over some nodes. Created by `Services.node_pass`; used by one thread at a
    time."""

    samples: Samples
    """All samples of the pass (for nodes without inputs)."""
    seeds: Mapping[int, int]
    rng: str = "philox"
    draws: Draws = ()
    """States from which the operators' random streams continue; empty if random numbers follow from ``rng`` alone."""
    device: Copies | None = None
    """The lane of device nodes; None on the host."""
    kinds: Mapping[Edge, Spec] = field(default_factory=dict)
    """Types and numbers of dimensions that the data set's first sample decides; samples with others are rejected."""
    emulate: bool = False
    """Run the CPU kernels of device nodes (the null device)."""
    states: Mapping[int, Any] = field(default_factory=dict)
    """Open data sets and other state of per_batch nodes, by id."""
    reader_samples: Mapping[int, Samples] = field(default_factory=dict)
    """The samples of each reader, by the node's id."""
    allocate_staging: Callable[[int], npt.NDArray[np.uint8]] | None = None
    """Allocates host memory for bytes that will be uploaded; None if the readers' output stays on the host."""
    lender: Lender | None = None
    """Zero-copy source of views of containers, for readers whose output goes to a device."""
    uploads: Mapping[Edge, Uploader] = field(default_factory=dict)
    """Uploader the output of readers to a device while it is read, by the readers' outputs."""
    pool: Helpers | None = None
    """Worker threads that kernels may use."""
    reservation: Reservation | None = None
    """The memory that the kernels may allocate on the host; None for any amount."""
    allocate: Callable[[int, Any], Any] | None = None
    """Allocates the kernels' arrays if there is no `reservation` (the null device)."""
    exclusive: Callable[[], AbstractContextManager[None]] | None = None
    """Context manager that waits until no other task runs, for a sample that found too little memory."""
    isolation: Isolation | None = None
    count: Callable[[str, int], None] | None = None
    """Called with the reason and the number of samples for which a slower path was taken."""
    decoders: Callable[[str, int, float], None] | None = None
    """Called with a decoder's name, the number of images that it decoded, and its seconds."""
    waited: Callable[[str, float], None] | None = None
    """Called with the name of a decoder for which a batch waited, and the seconds."""
    remembered: FactCache | None = None
    """Facts about records that are kept from one epoch to the next."""
    started: Mapping[int, StartedWork] = field(default_factory=dict)
    """Work of mixed kernels that `start_early` has started, by the node's id."""
    attempt: int = 0
    """Index of the decoder that is tried: above 0 for samples that failed on earlier ones."""
    observe: Callable[[Node, int, int, int, float, float], None] | None = None
    """Called after every kernel: node, samples, bytes in, bytes out, begin and end (perf_counter)."""
    mark_device: Callable[[Node, int, int, int, bool], None] | None = None
    """Called around every kernel on a device: node, samples, bytes in, bytes out, whether the kernel has been
    launched."""
    mark_whole: Callable[[Sequence[Node], int, Sequence[tuple[int, int]]], None] | None = None
    """Called after nodes that were launched as one program: nodes, samples, and each node's bytes in and out."""
    reports: DeferredReports = field(default_factory=DeferredReports)
    """Deferred calls of `count`, `decoders` and `waited`."""
    dropped: list[Loss] = field(default_factory=list)
    checks: list[Callable[[], npt.NDArray[Any]]] = field(default_factory=list)
    """Calls that return the slots of samples that failed a kernel's check on the device, once the device is done."""
    late_outputs: list[tuple[Edge, Callable[[], Batch]]] = field(default_factory=list)
    """Calls that return outputs (of some of the samples each) which exist only once the device is done."""
    recorded: list[ProgramPart] | None = None
    """Recorded launches of the operators so far, in order; None if one could not be recorded, or no recording is
    wanted."""
    results: Env = field(default_factory=dict)
    """Results of a launch on a device, until the launch is completed."""
    timer: Any = None
    """The `DeviceTimer` of the launch, if any."""

    def state(self) -> tuple[int, int, int, int]:
        """Return how many results of each kind the pass has so far, for `undo`."""
        return len(self.dropped), len(self.checks), len(self.late_outputs), len(self.reports)

    def undo(self, state: tuple[int, int, int, int]) -> list[tuple[Callable[..., None], tuple[Any, ...]]]:
        """Remove the results since ``state``, because the samples are computed again in another way. Return the removed
        calls for the report, for samples that are not computed again after all."""
        del self.dropped[state[0] :], self.checks[state[1] :], self.late_outputs[state[2] :]
        return self.reports.discard(state[3])


def context_of(node: Node, stage: Stage, samples: Samples, env: Env, run: NodePass) -> Context:
    """Return the context of the kernel of ``node``: all that it is given in addition to its inputs."""
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
        count=None if run.count is None else partial(run.reports.add, run.count),
        decoders=None if run.decoders is None else partial(run.reports.add, run.decoders),
        waited=None if run.waited is None else partial(run.reports.add, run.waited),
        remembered=run.remembered,
        started=run.started.get(node.id),
        attempt=run.attempt,
        allocate=run.allocate if run.reservation is None else run.reservation.empty,
    )
