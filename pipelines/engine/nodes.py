"""Run nodes: take the samples of one environment through a list of nodes, dropping what cannot be processed.

An environment maps edges to batches. Batches of different branches hold different samples; what ties them together is
each sample's slot. Because every kernel treats every sample as if it were alone, an environment can be cut by slots,
its parts run anywhere, and the results joined again.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Generator, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager, closing
from dataclasses import dataclass, field
from functools import partial
from itertools import pairwise
from typing import Any, cast

import numpy as np
import numpy.typing as npt

from ...ops.base import Operator, Spec, Stage, outputs_of
from ...ops.batch import Batch, Origin, Samples, concat
from ...ops.context import Context, Helpers, streams_of
from ...ops.errors import DaliRunError, RejectCode, SpecError
from ...ops.gpu.program import Part, Programs, programs_of
from ...ops.gpu.repeated import repeats_of
from ...ops.interfaces import Begun, Copies, Isolation, Lane, Lender, Remembered
from ...ops.types import to_numpy
from ..graph.conditionals import Merge, Split
from ..graph.nodes import Edge, Node
from .memory.budget import Allowance, OverBudgetError

Env = dict[Edge, Batch]
State = tuple[int, int, int, int]
"""Of a random generator: key, counter (low and high half) and word."""
Draws = tuple[tuple[int, int, Mapping[int, State]], ...]
"""Batches by their slots [low, high), each with where the streams of its operators go on from, by their seeds."""
_RAISED_BY = "_dali_run_operator"
"""On an exception: the node whose kernel raised it."""
_RAISED_FOR = "_dali_run_sample"
"""And the sample, if there was only one."""


@dataclass(frozen=True, slots=True)
class Dropped:
    """A sample that was dropped, and where."""

    slot: int
    node: str
    code: RejectCode
    message: str
    kept: bool = False
    """It was not dropped, only noted: it is damaged."""


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
    emulate: bool = False
    """Run the CPU kernels of device nodes (the null device)."""
    states: Mapping[int, Any] = field(default_factory=dict)
    """Open data sets and other state of per_batch nodes, by id."""
    reader_samples: Mapping[int, Samples] = field(default_factory=dict)
    allocate_staging: Callable[[int], npt.NDArray[np.uint8]] | None = None
    lender: Lender | None = None
    """Lends views of containers to readers that feed a device."""
    pool: Helpers | None = None
    allowance: Allowance | None = None
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
    begun: Mapping[int, Begun] = field(default_factory=dict)
    """Results of `begin`, by the node's id."""
    attempt: int = 0
    observe: Callable[[Node, int, int, int, float, float], None] | None = None
    """Called after every kernel: node, samples, bytes in, bytes out, begin and end (perf_counter)."""
    mark_device: Callable[[Node, int, int, int, bool], None] | None = None
    """Called around every kernel on a device: node, samples, bytes in, bytes out, after."""
    mark_whole: Callable[[Sequence[Node], int, Sequence[tuple[int, int]]], None] | None = None
    """Called after nodes that were launched as one: samples, and each node's bytes in and out."""
    dropped: list[Dropped] = field(default_factory=list)
    checks: list[Callable[[], npt.NDArray[Any]]] = field(default_factory=list)
    late: list[tuple[Edge, Callable[[], Batch]]] = field(default_factory=list)
    """Calls that give the late outputs (of some of the samples each) once the device is done."""
    trail: list[Part] | None = None
    """Operators that repeated their launches, one after the other; None where one did not, or nobody asks."""
    results: Env = field(default_factory=dict)
    """Results of a launch on a device, until it is settled."""
    timer: Any = None

    def state(self) -> tuple[int, int, int]:
        """How much it has noted down so far."""
        return len(self.dropped), len(self.checks), len(self.late)

    def undo(self, state: tuple[int, int, int]) -> None:
        """Forget what was noted down since ``state``."""
        del self.dropped[state[0] :], self.checks[state[1] :], self.late[state[2] :]


def run_nodes(nodes: Sequence[Node], env: Env, run: Run, keep: Collection[Edge] | None = None) -> None:
    """Run ``nodes`` in order; their outputs are added to ``env``, samples that fail leave it.

    With ``keep``, a batch leaves ``env`` after the last of ``nodes`` that reads it, unless its edge is in ``keep``:
    what a chain holds at a time is then that of a few steps.
    """
    if run.allowance is not None:
        run.allowance.begin(len(run.samples))
    last = {} if keep is None else {e: node.id for node in nodes for e in node.reads}
    kept = {e.node for e in keep or ()}
    whole = None if keep is None else _repeating(nodes, run)
    for at, node in enumerate(nodes):
        if whole is not None and at == whole.first and whole.run(env, keep or ()):
            return
        if run.allowance is not None:
            run.allowance.lasting = node.id in kept
        if isinstance(node.op, Split):
            _split(node, env)
        elif isinstance(node.op, Merge):
            env[Edge(node.id)] = merge([_placed(env[e], node, run) for e in node.inputs])
        else:
            _run(node, env, run)
        if keep is not None:
            for e in node.reads:
                if last[e] == node.id and e not in keep:
                    env.pop(e, None)
        if run.allowance is not None and node is not nodes[-1]:
            made = {n.id for n in nodes}
            run.allowance.settle(bytes_of(b for e, b in env.items() if e.node in made))
    if whole is not None:
        whole.note(keep or ())


@dataclass(slots=True)
class _Whole:
    """The last of some nodes, all of which repeat their launches: as one program, from the third time on."""

    nodes: Sequence[Node]
    first: int
    """The first of them that belongs to it."""
    run_: Run
    programs: Programs
    samples: Samples
    inputs: dict[Edge, Batch] = field(default_factory=dict)

    def run(self, env: Env, keep: Collection[Edge]) -> bool:
        """Run them as a program, if there is one for these batches."""
        run, nodes = self.run_, self.nodes[self.first :]
        made = {n.id for n in nodes}
        self.inputs = {e: env[e] for n in nodes for e in n.inputs if e.node not in made}
        samples = next(iter(self.inputs.values())).samples if self.inputs else run.samples
        run.trail = None
        if len(samples) == 0 or any(b.samples is not samples for b in self.inputs.values()):
            return False
        if any(not n.inputs for n in nodes) and (run.dropped or samples is not run.samples):
            return False
        self.samples = samples
        run.trail = []
        if run.mark_device is not None:
            run.mark_device(nodes[0], len(samples), 0, 0, False)
        contexts = self.programs.contexts

        def context(node: Node) -> Context:
            known = contexts.get(node.id)
            if known is None or run.draws:
                known = contexts[node.id] = context_of(node, "gpu", samples, env, run)
            else:
                known.samples, known.args = samples, {k: env[e] for k, e in node.args.items()}
            return known

        found = self.programs.run(run.device, self._key, self.inputs, samples, context)
        for known in contexts.values():
            known.args = {}  # no batch is to be held
            known.rejects.clear()
        if found is None:
            return False
        run.trail = None
        outputs, sizes = found
        env |= cast("Env", outputs)
        if run.mark_whole is not None:
            run.mark_whole(nodes, len(samples), sizes)
        return True

    def note(self, keep: Collection[Edge]) -> None:
        """They have run one by one."""
        run, trail = self.run_, self.run_.trail
        run.trail = None
        if trail is not None and len(trail) == len(self.nodes) - self.first and not run.dropped:
            self.programs.note(run.device, self._key, self.inputs, self.samples, trail, keep)

    @property
    def _key(self) -> tuple[int, int]:
        return self.nodes[self.first].id, len(self.nodes)


def repeating(nodes: Sequence[Node]) -> int:
    """The place from which on ``nodes`` may become a program: they repeat their launches, or go by shapes alone."""
    first, read = len(nodes), set[int]()
    while first:
        node = nodes[first - 1]
        told = node.op.of_shapes and node.id not in read
        if not (told or (node.stage == "gpu" and node.op.repeats)) or (node.samples_of is not None and not node.inputs):
            break
        read |= {e.node for e in node.reads}
        first -= 1
    return first


def _repeating(nodes: Sequence[Node], run: Run) -> _Whole | None:
    """The last nodes that may become a program."""
    if run.device is None or run.emulate or run.attempt or len(run.draws) > 1 or not hasattr(run.device, "launches"):
        return None
    first = repeating(nodes)
    return _Whole(nodes, first, run, programs_of(run.device), run.samples) if first < len(nodes) else None


def bytes_of(batches: Iterable[Batch]) -> int:
    """Bytes of batches, those that share their memory counted once; what lies between samples is not counted."""
    sizes: dict[int, int] = {}
    for b in batches:
        sizes[id(b.data)] = max(sizes.get(id(b.data), 0), b.nbytes)
    return sum(sizes.values())


def _draw(node: Node, env: Env, run: Run) -> bool:
    """Run a node that does nothing but draw numbers (`Operator.drawn`). Of half a dozen such nodes of a batch, most
    of the time would be what a kernel is given besides."""
    samples = _samples(node, (), env, run)
    if len(samples) == 0 or type(node.op).drawn is Operator.drawn:
        return False
    began = time.perf_counter()
    found = node.op.drawn(streams_of(run.seeds.get(node.id, 0), samples, run.rng), samples)
    if found is None:
        return False
    env[Edge(node.id)] = found
    if run.observe:
        run.observe(node, len(samples), 0, found.nbytes, began, time.perf_counter())
    return True


def _by_batch(node: Node, env: Env, run: Run) -> bool:
    """Run a node whose streams go on from another state in each batch, where several go together: one by one."""
    if run.seeds.get(node.id) not in run.draws[0][2]:
        return False
    slots = (env[node.reads[0]].samples if node.reads else run.samples).slot
    borders = [low for low, high, _ in run.draws if len(slots) and low <= slots[-1] and high > slots[0]]
    if len(borders) < 2:
        return False
    before = len(run.dropped)
    parts: list[Env] = []
    with closing(pieces({e: env[e] for e in node.reads}, run, [*borders, int(slots[-1]) + 1])) as inside:
        for piece in inside:
            _run(node, piece, run)
            parts.append({e: b for e, b in piece.items() if e.node == node.id})
    for k in range(node.op.num_outputs):
        edge = Edge(node.id, k)
        found = [p[edge] for p in parts]
        env[edge] = merge(found, None if run.device is None or found[0].on_host else cast("Lane", run.device).empty)
    if len(run.dropped) > before:
        drop(env, gone(run.dropped))
    return True


def _run(node: Node, env: Env, run: Run) -> None:
    if run.draws:
        if _by_batch(node, env, run):
            return
    elif node.stage == "cpu" and not node.reads and node.op.random and _draw(node, env, run):
        return
    there = node.inputs[:1] if node.op.host_inputs else node.inputs
    inputs = [_placed(env[e], node, run) for e in there] + [env[e] for e in node.inputs[len(there) :]]
    samples = _samples(node, inputs, env, run)
    if len(samples) == 0:
        for k, spec in enumerate(node.specs):
            env[Edge(node.id, k)] = empty(spec, samples)
        return
    stage: Stage = "cpu" if run.emulate else node.stage
    made: list[Context] = []

    def launch(device: Copies | None) -> tuple[Sequence[Batch], bool]:
        ctx = context_of(node, stage, samples, env, run)
        ctx.device = cast("Lane", device)
        made.append(ctx)
        outputs = outputs_of(node.op.kernel(stage)(ctx, *inputs))
        return outputs, not (ctx.rejects or ctx.checks or ctx.finish)

    taken = sum(b.nbytes for b in inputs)
    if run.mark_device:
        run.mark_device(node, len(samples), taken, 0, False)
    began = time.perf_counter()
    try:
        if stage == "gpu" and node.op.repeats and run.attempt == 0:
            context = partial(context_of, node, stage, samples, env, run) if node.args or node.op.random else None
            repeats = repeats_of(run.device)
            outputs = repeats.run(run.device, node.id, inputs, samples, launch, context)
            if run.trail is not None and repeats.used is not None:
                gives = [Edge(node.id, k) for k in range(node.op.num_outputs)]
                run.trail.append(Part(node, repeats.used, node.inputs, gives))
        else:
            outputs, _ = launch(run.device)
            if run.trail is not None and node.op.of_shapes:
                gives = [Edge(node.id, k) for k in range(node.op.num_outputs)]
                run.trail.append(Part(node, None, node.inputs, gives, outputs))
    except SpecError as e:
        raise e.at(node.where) from None
    except Exception as e:
        e.__dict__.setdefault(_RAISED_BY, node)
        raise
    ended = time.perf_counter()
    if len(outputs) != node.op.num_outputs:
        raise AssertionError(f"{node.op.name} gave {len(outputs)} outputs, not {node.op.num_outputs}")
    for k, batch in enumerate(outputs):
        if len(batch) != len(samples):
            raise AssertionError(f"{node.op.name} gave {len(batch)} samples for {len(samples)}")
        env[Edge(node.id, k)] = batch if batch.samples is samples else batch.replace(samples=samples)
    given = sum(b.nbytes for b in outputs)
    if run.observe:
        run.observe(node, len(samples), taken, given, began, ended)
    if run.mark_device:
        run.mark_device(node, len(samples), taken, given, True)
    if not made:
        return
    (ctx,) = made
    run.checks += ctx.checks
    if ctx.finish is not None:
        run.late.append((Edge(node.id), ctx.finish))
    # They refer to the context, and to others that share its list: a ring would keep the batch's memory until the
    # collector comes.
    ctx.checks.clear()
    ctx.finish = None
    if ctx.rejects:
        run.dropped += [
            Dropped(r.slot, node.parts.get(r.part, node.name), r.code, r.message, r.kept) for r in ctx.rejects
        ]
        drop(env, gone(run.dropped))


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
        allocate_staging=run.allocate_staging,
        lender=run.lender,
        pool=run.pool,
        isolation=run.isolation,
        count=run.count,
        decoders=run.decoders,
        waited=run.waited,
        remembered=run.remembered,
        begun=run.begun.get(node.id),
        attempt=run.attempt,
        allocate=run.allocate if run.allowance is None else run.allowance.empty,
    )


def begin(nodes: Sequence[Node], env: Env, run: Run) -> dict[int, Begun]:
    """Have mixed kernels whose inputs are there start what the host does of their work; see `Operator.begin`."""
    begun = {}
    for node in nodes:
        if node.stage == "mixed" and all(e in env for e in (*node.inputs, *node.args.values())):
            inputs = [env[e] for e in node.inputs]
            samples = inputs[0].samples if inputs else run.reader_samples.get(node.id)
            if samples is None or not len(samples):
                continue
            found = node.op.begin(context_of(node, "mixed", samples, env, run), *inputs)
            if found is not None:
                begun[node.id] = found
    return begun


def finish_late(run: Run, env: Env, tried: Callable[[Callable[[], Batch]], Batch] = lambda finish: finish()) -> None:
    """Replace the stand-ins in ``env`` by the late outputs of ``run``, less the samples that were dropped
    since. The device must be done with the run's kernels. ``tried`` calls what allocates."""
    if not run.late or run.device is None:
        return
    parts: dict[Edge, list[Batch]] = {}
    with run.device as lane:
        for edge, finish in run.late:
            if edge in env:
                parts.setdefault(edge, []).append(tried(finish))
    lane.synchronize()
    for edge, batches in parts.items():
        whole = batches[0] if len(batches) == 1 else merge(batches)  # several where the batch was cut
        samples = env[edge].samples
        if whole.samples is samples:  # nothing was dropped since, as a rule
            env[edge] = whole
        else:
            env[edge] = whole.take(np.searchsorted(whole.samples.slot, samples.slot), samples)


def _samples(node: Node, inputs: Sequence[Batch], env: Env, run: Run) -> Samples:
    if inputs:
        return inputs[0].samples
    if node.id not in run.reader_samples and node.samples_of is not None:
        return env[node.samples_of].samples
    samples = run.reader_samples.get(node.id, run.samples)
    if not run.dropped:
        return samples
    # What an earlier node dropped must not come back: inputs and arguments of one kernel hold the same samples.
    lost = np.isin(samples.slot, list(gone(run.dropped)))
    return samples.take(~lost) if lost.any() else samples


def _placed(batch: Batch, node: Node, run: Run) -> Batch:
    """The batch where the node runs: mixed operators take host input, gpu operators device input."""
    if run.device is None or run.emulate:
        return batch
    if node.stage == "gpu" or isinstance(node.op, (Split, Merge)):
        moved: Batch = run.device.to_device(batch) if node.stage == "gpu" else batch
        return moved
    return batch


def _split(node: Node, env: Env) -> None:
    data, predicate = env[node.inputs[0]], env[node.args["predicate"]]
    truth = np.asarray(predicate.data[predicate.offsets]).astype(bool)
    wanted = predicate.samples.slot[truth]
    first = np.isin(data.samples.slot, wanted)
    env[Edge(node.id, 0)] = data.take(np.flatnonzero(first))
    env[Edge(node.id, 1)] = data.take(np.flatnonzero(~first))


def merge(parts: Sequence[Batch], allocate: Any = None) -> Batch:
    """The samples of all parts (disjoint), ordered by slot; ``allocate(n, dtype)`` makes the array. Raises SpecError
    where branches gave different types or layouts."""
    kinds = {f"{b.dtype}, {b.ndim}-D" for b in parts if len(b)}
    if len(kinds) > 1:
        raise SpecError(f"the branches of a conditional give different types: {' and '.join(sorted(kinds))}; cast or "
                        "reshape one of them")  # fmt: skip
    layouts = {b.layout for b in parts if len(b) and b.layout}
    if len(layouts) > 1:
        raise SpecError(f"the branches of a conditional give different layouts: {' and '.join(sorted(layouts))}; "
                        "transpose one of them")  # fmt: skip
    whole = concat(parts, empty=allocate)
    order = np.argsort(whole.samples.slot, kind="stable")
    return whole if (order[1:] > order[:-1]).all() else whole.take(order)


def empty(spec: Spec, samples: Samples) -> Batch:
    """A batch without samples, of the dtype and dimensions of ``spec`` as far as they are known."""
    dtype = np.dtype(np.uint8) if spec.dtype is None else to_numpy(spec.dtype)
    return Batch(
        np.empty(0, dtype), np.empty(0, np.int64), np.empty((0, spec.ndim or 0), np.int32), spec.layout, samples
    )


def gone(dropped: Iterable[Dropped]) -> set[int]:
    """Slots of the samples that are there no more."""
    return {d.slot for d in dropped if not d.kept}


def drop(env: Env, slots: set[int]) -> None:
    """Take the samples at ``slots`` out of every batch of ``env``."""
    gone = np.fromiter(slots, np.int32, len(slots))
    kept: dict[int, Samples] = {}  # batches of one scope go on sharing their Samples
    for edge, batch in env.items():
        out = np.isin(batch.samples.slot, gone)
        if out.any():
            where = np.flatnonzero(~out)
            key = id(batch.samples)
            if key not in kept:
                kept[key] = batch.samples.take(where)
            env[edge] = batch.take(where, kept[key])


def within(samples: Samples, low: int, high: int, known: dict[int, tuple[slice, Samples]]) -> tuple[slice, Samples]:
    """Where those with slots in [low, high) are, and they; ``known`` keeps them, as most batches share theirs."""
    found = known.get(id(samples))
    if found is None:
        slot = samples.slot
        n = len(slot)
        first = int(slot[0]) if n else 0
        if n and int(slot[-1]) - first == n - 1:  # no sample was dropped; a search releases the GIL
            where = slice(max(low - first, 0), max(high - first, 0))
        else:
            where = slice(*slot.searchsorted((low, high)).tolist())
        found = known[id(samples)] = where, samples.take(where)
    return found


def cut(env: Mapping[Edge, Batch], low: int, high: int, known: dict[int, tuple[slice, Samples]] | None = None) -> Env:
    """The samples with slots in [low, high) of every batch; ``known`` as of `within`."""
    known = {} if known is None else known
    return {edge: batch.take(*within(batch.samples, low, high, known)) for edge, batch in env.items()}


def guarded(nodes: Sequence[Node], env: Env, run: Run, gives: Sequence[Edge], on_error: ErrorHook) -> Env:
    """Run ``nodes`` and return the batches of ``gives``. An exception that is not ours to end the run with is
    narrowed down by halving until the samples that raise it are alone; they are dropped, the rest goes on."""
    before = run.state()
    try:
        here = dict(env)
        run_nodes(nodes, here, run, gives)
        return {e: here[e] for e in gives}
    except DaliRunError:
        raise
    except Exception as e:
        run.undo(before)
        if len(run.samples) == 1:
            e.__dict__.setdefault(_RAISED_FOR, run.samples.origin(0))
        again = run.alone if _may_fit_alone(e, run) else None
        fatal = None if again else on_error(e, len(run.samples))
        if fatal is e:
            raise
        if fatal is not None:
            raise fatal from e
        here.clear()
        problem = e.with_traceback(None)  # whose frames hold what was allocated
    if again:
        run.alone = None
        try:
            with again():
                return guarded(nodes, env, run, gives, on_error)
        finally:
            run.alone = again
    if len(run.samples) <= 1:
        return _refused(nodes, run, gives, problem)
    parts = [guarded(nodes, half, run, gives, on_error) for half in pieces(env, run, middle(run))]
    return {e: concat([p[e] for p in parts]) for e in gives}


def described(problem: Exception) -> str:
    """An exception of a kernel's, with the sample, the operator, and its place in the user's text."""
    node: Node | None = problem.__dict__.get(_RAISED_BY)
    sample: Origin | None = problem.__dict__.get(_RAISED_FOR)
    before = [] if sample is None else [sample.source or sample.key]
    before += [] if node is None else [node.where]
    return ": ".join([*before, type(problem).__name__, str(problem)])


def _may_fit_alone(problem: Exception, run: Run) -> bool:
    """It was not the budget, and others may have had the memory."""
    return isinstance(problem, MemoryError) and not isinstance(problem, OverBudgetError) and len(run.samples) <= 1


ErrorHook = Callable[[Exception, int], Exception | None]
"""Told of an exception and how many samples took part; returns what to raise, or None to narrow it down."""


def middle(run: Run) -> tuple[int, int, int]:
    """Slots that cut the samples of ``run`` in halves, for `pieces`."""
    slots = run.samples.slot
    return int(slots[0]), int(slots[len(slots) // 2]), int(slots[-1]) + 1


def pieces(env: Mapping[Edge, Batch], run: Run, borders: Sequence[int]) -> Generator[Env]:
    """``env`` cut at the slots ``borders``, piece by piece, with ``run`` set to the samples of each meanwhile."""
    whole = run.samples, run.reader_samples
    try:
        for low, high in pairwise(borders):
            run.samples = whole[0].take((whole[0].slot >= low) & (whole[0].slot < high))
            run.reader_samples = {k: s.take((s.slot >= low) & (s.slot < high)) for k, s in whole[1].items()}
            yield cut(env, low, high)
    finally:
        run.samples, run.reader_samples = whole


def _refused(nodes: Sequence[Node], run: Run, gives: Sequence[Edge], problem: Exception) -> Env:
    """Drop the samples of ``run`` (one at most); the batches of ``gives`` without samples."""
    raised_by: Node | None = problem.__dict__.get(_RAISED_BY)
    node = " > ".join(n.name for n in nodes) if raised_by is None else raised_by.name
    code: RejectCode = "internal"
    message = f"{type(problem).__name__}: {problem}"
    if isinstance(problem, MemoryError):
        code = "too_large"
        message = f"there is not enough memory for it: {str(problem) or 'an allocation failed'}; {MORE_MEMORY}"
    run.dropped += [Dropped(int(s), node, code, message) for s in run.samples.slot]
    return nothing(nodes, run.samples, gives)


MORE_MEMORY = "a larger pipeline.memory.host on a machine that has it lets it through (`dali-run retry-failed`)"


def nothing(nodes: Sequence[Node], samples: Samples, gives: Sequence[Edge]) -> Env:
    """The batches of ``gives`` without samples."""
    by_id = {n.id: n for n in nodes}
    nobody = samples.take(slice(0, 0))
    return {e: empty(by_id[e.node].specs[e.output] if by_id[e.node].specs else Spec(), nobody) for e in gives}
