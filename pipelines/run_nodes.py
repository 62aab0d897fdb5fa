"""Run nodes: take the samples of one environment through a list of nodes, dropping what cannot be processed.

An environment maps edges to batches. Batches of different branches hold different samples; what ties them together is
each sample's slot. Because every kernel treats every sample as if it were alone, an environment can be cut by slots,
its parts run anywhere, and the results joined again.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Executor
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from ..ops.base import Spec, Stage, outputs_of
from ..ops.batch import Batch, Samples, concat
from ..ops.context import Context
from ..ops.errors import DaliRunError, RejectCode, SpecError
from ..ops.isolation import Isolation
from ..ops.types import to_numpy
from .graph import Edge, Merge, Node, Split

Env = dict[Edge, Batch]


@dataclass(frozen=True, slots=True)
class Dropped:
    """A sample that was dropped, and where."""

    slot: int
    node: str
    code: RejectCode
    message: str


@dataclass(slots=True)
class Run:
    """What one pass over some nodes needs and leaves behind."""

    samples: Samples
    """All samples of this part of the iteration (for nodes without inputs)."""
    seeds: Mapping[int, int]
    rng: str = "philox"
    device: Any = None
    """The lane of device nodes; None on the host."""
    emulate: bool = False
    """Run the CPU kernels of device nodes (the null device)."""
    states: Mapping[int, Any] = field(default_factory=dict)
    """Open data sets and other state of per_batch nodes, by id."""
    reader_samples: Mapping[int, Samples] = field(default_factory=dict)
    allocate_staging: Callable[[int], npt.NDArray[np.uint8]] | None = None
    pool: Executor | None = None
    isolation: Isolation | None = None
    attempt: int = 0
    observe: Callable[[Node, int, int, int, float, float], None] | None = None
    """Called after every kernel: node, samples, bytes in, bytes out, begin and end (perf_counter)."""
    mark_device: Callable[[Node, int, int, int, bool], None] | None = None
    """Called around every kernel on a device: node, samples, bytes in, bytes out, after."""
    dropped: list[Dropped] = field(default_factory=list)
    checks: list[Callable[[], npt.NDArray[Any]]] = field(default_factory=list)
    late: list[tuple[Edge, Callable[[], Batch]]] = field(default_factory=list)
    """What gives the late outputs (of some of the samples each) once the device is done."""
    results: Env = field(default_factory=dict)
    """What a launch on a device gave, until it is settled."""
    timer: Any = None


def run_nodes(nodes: Sequence[Node], env: Env, run: Run) -> None:
    """Run ``nodes`` in order; their outputs are added to ``env``, samples that fail leave it."""
    for node in nodes:
        if isinstance(node.op, Split):
            _split(node, env)
        elif isinstance(node.op, Merge):
            env[Edge(node.id)] = merge([_placed(env[e], node, run) for e in node.inputs])
        else:
            _run(node, env, run)


def _run(node: Node, env: Env, run: Run) -> None:
    inputs = [_placed(env[e], node, run) for e in node.inputs]
    samples = _samples(node, inputs, env, run)
    if len(samples) == 0:
        for k, spec in enumerate(node.specs):
            env[Edge(node.id, k)] = empty(spec, samples)
        return
    stage: Stage = "cpu" if run.emulate else node.stage
    ctx = Context(
        op=node.op,
        stage=stage,
        samples=samples,
        args={k: env[e] for k, e in node.args.items()},
        seed=run.seeds.get(node.id, 0),
        rng=run.rng,
        device=run.device,
        source=run.states.get(node.id),
        allocate_staging=run.allocate_staging,
        pool=run.pool,
        isolation=run.isolation,
        attempt=run.attempt,
    )
    taken = sum(b.nbytes for b in inputs)
    if run.mark_device:
        run.mark_device(node, len(samples), taken, 0, False)
    began = time.perf_counter()
    outputs = outputs_of(node.op.kernel(stage)(ctx, *inputs))
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
    run.checks += ctx.checks
    if ctx.finish is not None:
        run.late.append((Edge(node.id), ctx.finish))
    if ctx.rejects:
        run.dropped += [Dropped(r.slot, node.name, r.code, r.message) for r in ctx.rejects]
        drop(env, {r.slot for r in ctx.rejects})


def finish_late(run: Run, env: Env) -> None:
    """Put the late outputs of ``run`` in the place of their stand-ins in ``env``, less the samples that were dropped
    since. The device must be done with the run's kernels."""
    if not run.late:
        return
    parts: dict[Edge, list[Batch]] = {}
    with run.device as lane:
        for edge, finish in run.late:
            if edge in env:
                parts.setdefault(edge, []).append(finish())
    lane.synchronize()
    for edge, batches in parts.items():
        whole = batches[0] if len(batches) == 1 else merge(batches)  # several where the batch was cut
        samples = env[edge].samples
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
    gone = np.isin(samples.slot, [d.slot for d in run.dropped])
    return samples.take(~gone) if gone.any() else samples


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


def merge(parts: Sequence[Batch]) -> Batch:
    """The samples of all parts (disjoint), ordered by slot. Raises SpecError where branches gave different types."""
    kinds = {f"{b.dtype}, {b.ndim}-D" for b in parts if len(b)}
    if len(kinds) > 1:
        raise SpecError(f"the branches of a conditional give different types: {' and '.join(sorted(kinds))}; cast or "
                        "reshape one of them")  # fmt: skip
    whole = concat(parts)
    order = np.argsort(whole.samples.slot, kind="stable")
    return whole if (order[1:] > order[:-1]).all() else whole.take(order)


def empty(spec: Spec, samples: Samples) -> Batch:
    """A batch without samples, of the dtype and dimensions of ``spec`` as far as they are known."""
    dtype = np.dtype(np.uint8) if spec.dtype is None else to_numpy(spec.dtype)
    return Batch(
        np.empty(0, dtype), np.empty(0, np.int64), np.empty((0, spec.ndim or 0), np.int32), spec.layout, samples
    )


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


def cut(env: Mapping[Edge, Batch], low: int, high: int) -> Env:
    """The samples with slots in [low, high) of every batch."""
    part: Env = {}
    shared: dict[int, Samples] = {}
    for edge, batch in env.items():
        a, b = np.searchsorted(batch.samples.slot, (low, high)).tolist()
        key = id(batch.samples)
        if key not in shared:
            shared[key] = batch.samples.take(slice(a, b))
        part[edge] = batch.take(slice(a, b), shared[key])
    return part


def guarded(nodes: Sequence[Node], env: Env, run: Run, gives: Sequence[Edge], on_error: ErrorHook) -> Env:
    """Run ``nodes`` and return the batches of ``gives``. An exception that is not ours to end the run with is
    narrowed down by halving until the samples that raise it are alone; they are dropped, the rest goes on."""
    seen, checked, late = len(run.dropped), len(run.checks), len(run.late)
    try:
        here = dict(env)
        run_nodes(nodes, here, run)
        return {e: here[e] for e in gives}
    except DaliRunError:
        raise
    except Exception as problem:
        del run.dropped[seen:]
        del run.checks[checked:]
        del run.late[late:]
        fatal = on_error(problem, len(run.samples))
        if fatal is not None:
            raise fatal from problem
        return _narrow(nodes, env, run, gives, on_error, problem)


ErrorHook = Callable[[Exception, int], Exception | None]
"""Told of an exception and how many samples took part; returns what to raise, or None to narrow it down."""


def _narrow(
    nodes: Sequence[Node], env: Env, run: Run, gives: Sequence[Edge], on_error: ErrorHook, problem: Exception
) -> Env:
    slots = run.samples.slot
    if len(slots) <= 1:
        node = nodes[-1].name if len(nodes) == 1 else " > ".join(n.name for n in nodes)
        message = f"{type(problem).__name__}: {problem}"
        run.dropped += [Dropped(int(s), node, "internal", message) for s in slots]
        by_id = {n.id: n for n in nodes}
        nobody = run.samples.take(slice(0, 0))
        return {e: empty(by_id[e.node].specs[e.output] if by_id[e.node].specs else Spec(), nobody) for e in gives}
    middle = int(slots[len(slots) // 2])
    parts = []
    whole = run.samples, run.reader_samples
    for low, high in ((-1, middle), (middle, int(slots[-1]) + 1)):
        run.samples = whole[0].take((whole[0].slot >= low) & (whole[0].slot < high))
        run.reader_samples = {k: s.take((s.slot >= low) & (s.slot < high)) for k, s in whole[1].items()}
        parts.append(guarded(nodes, cut(env, low, high), run, gives, on_error))
    run.samples, run.reader_samples = whole
    return {e: concat([p[e] for p in parts]) for e in gives}
