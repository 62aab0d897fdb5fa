"""Run the samples of one pass through a list of nodes, and drop samples that cannot be processed.

Called by `guarded`, for the host's steps and for device steps; `NodePass` holds the inputs and the results.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Iterable, Sequence
from contextlib import closing
from dataclasses import dataclass
from functools import partial
from typing import cast

import numpy as np
import numpy.typing as npt

from ....ops.base import Operator, Spec, Stage, outputs_of
from ....ops.batch import Batch, Samples
from ....ops.compiled.times import times
from ....ops.context import Context, streams_of
from ....ops.errors import RaggedError, SampleError, SpecError, UnlikeSamplesError
from ....ops.gpu.launch_program import ProgramPart
from ....ops.gpu.launch_recording import recordings_of
from ....ops.interfaces import Copies, Lane, StartedWork
from ...graph.conditionals import Merge, Split
from ...graph.nodes import Edge, Node
from .envs import bytes_of, drop, empty, gone, in_order, merge, odd_kind, pieces
from .node_pass import Dropped, Env, LeftOut, NodePass, context_of
from .recorded_tail import recorded_tail_of

RAISED_BY = "_dali_run_operator"
"""Name of the attribute that is set on an exception of a kernel; its value is the node whose kernel raised it."""


def run_nodes(nodes: Sequence[Node], env: Env, run: NodePass, keep: Collection[Edge] | None = None) -> None:
    """Run ``nodes`` in order and add their outputs to ``env``; samples that fail are removed from it.

    With ``keep``, a batch that is not in ``keep`` is removed from ``env`` after the last of ``nodes`` that reads it. A
    chain of nodes then holds only the batches of a few nodes at a time."""
    if run.reservation is not None:
        run.reservation.start_pass(len(run.samples))
    last = {} if keep is None else {e: node.id for node in nodes for e in node.reads}
    output_nodes = {e.node for e in keep or ()}
    tail = None if keep is None else recorded_tail_of(nodes, run)
    for at, node in enumerate(nodes):
        if tail is not None and at == tail.first and tail.run(env, keep or ()):
            return
        if run.reservation is not None:
            run.reservation.for_output = node.id in output_nodes
        _run(node, env, run)
        if keep is not None:
            for e in node.reads:
                if last[e] == node.id and e not in keep:
                    env.pop(e, None)
        if run.reservation is not None and node is not nodes[-1]:
            ids = {n.id for n in nodes}
            run.reservation.keep_only(bytes_of(b for e, b in env.items() if e.node in ids))
    if tail is not None:
        tail.record(keep or ())


def _draw(node: Node, env: Env, run: NodePass) -> bool:
    """Run a node that only draws random numbers (`Operator.drawn`), without creating a context. Return False if the
    node needs one. Contexts would take most of the time of a batch with half a dozen such nodes."""
    if node.stage != "cpu" or node.reads or not node.op.random or type(node.op).drawn is Operator.drawn:
        return False
    samples = _samples(node, (), env, run)
    if len(samples) == 0:
        return False
    began = time.perf_counter()
    found = node.op.drawn(streams_of(run.seeds.get(node.id, 0), samples, run.rng), samples)
    if found is None:
        return False
    env[Edge(node.id)] = found
    if run.observe:
        run.observe(node, len(samples), 0, found.nbytes, began, time.perf_counter())
    return True


def _by_batch(node: Node, env: Env, run: NodePass) -> bool:
    """Run a node once for each request of a merged batch, if its random generator has another state in each request.
    Return False, without running the node, if one call for the whole batch is right."""
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
    _join(node, env, run, parts, before)
    return True


def _in_groups(node: Node, env: Env, run: NodePass, slots: Iterable[npt.NDArray[np.int32]]) -> None:
    """Run one node several times, each time for the samples with the indices in one entry of ``slots``, and join the
    outputs. All entries together cover the node's samples."""
    everything, before = (run.samples, run.reader_samples, run.started, run.recorded), len(run.dropped)
    run.started, run.recorded = {k: v for k, v in run.started.items() if k != node.id}, None
    parts: list[Env] = []
    try:
        for inside in slots:
            run.samples = _at(everything[0], inside)
            run.reader_samples = {k: _at(s, inside) for k, s in everything[1].items()}
            piece = {e: env[e].take(np.flatnonzero(np.isin(env[e].samples.slot, inside))) for e in node.reads}
            _run(node, piece, run)
            parts.append({e: b for e, b in piece.items() if e.node == node.id})
    finally:
        run.samples, run.reader_samples, run.started, _ = everything
    _join(node, env, run, parts, before)


def _at(samples: Samples, slots: npt.NDArray[np.int32]) -> Samples:
    return samples.take(np.isin(samples.slot, slots))


def _join(node: Node, env: Env, run: NodePass, parts: Sequence[Env], dropped: int) -> None:
    """Join the outputs of ``node`` from ``parts``, which have different samples, and add them to ``env``. ``dropped``:
    number of samples that had been dropped before the node ran."""
    for k in range(node.op.num_outputs):
        edge = Edge(node.id, k)
        batches = [p[edge] for p in parts if len(p[edge])] or [parts[0][edge]]
        env[edge] = in_order(batches, None if batches[0].on_host else cast("Lane", run.device).empty)
    if len(run.dropped) > dropped:
        drop(env, gone(run.dropped))


def _merge(node: Node, env: Env, run: NodePass) -> None:
    """Join the outputs of both branches of a conditional. A sample is dropped if its type differs from the type that
    the data set's first sample decides."""
    before = len(run.dropped)
    for e in node.inputs:
        if len(env[e]) and (odd := odd_kind(env[e], run.kinds.get(Edge(node.id)))):
            why = f"{odd}: the branches of a conditional give different types; cast or reshape one of them"
            run.dropped += [Dropped(int(s), node.name, "bad_shape", why) for s in env[e].samples.slot]
    if len(run.dropped) > before:
        drop(env, gone(run.dropped))
    env[Edge(node.id)] = merge([_placed(env[e], node, run) for e in node.inputs])


def _halve(node: Node, env: Env, run: NodePass, samples: Samples) -> None:
    half = len(samples) // 2
    _in_groups(node, env, run, (samples.slot[:half], samples.slot[half:]))


def _reject(node: Node, env: Env, run: NodePass, samples: Samples, problem: SampleError) -> None:
    """Drop the sample for which a kernel raised ``problem``. If the kernel had several samples, the failing sample is
    found by halving them. If the kernel must see a whole batch, all its samples are dropped."""
    if len(samples) > 1 and not node.op.per_batch:
        _halve(node, env, run, samples)
        return
    run.dropped += [Dropped(int(s), node.name, problem.code, str(problem)) for s in samples.slot]
    for k in range(node.op.num_outputs):
        env[Edge(node.id, k)] = empty(node.specs[k] if k < len(node.specs) else Spec(), samples.take(slice(0, 0)))
    drop(env, gone(run.dropped))


@dataclass(slots=True)
class _Call:
    """One call of a node's kernel: its inputs and its context. Created and used by `_run`."""

    node: Node
    stage: Stage
    inputs: list[Batch]
    samples: Samples
    env: Env
    run: NodePass
    ctx: Context | None = None
    """Context of the kernel; None while the kernel was not called, because its recorded launches were replayed."""

    def launch(self, device: Copies | None) -> tuple[Sequence[Batch], bool]:
        """Call the kernel. Return its outputs, and whether these are all that it produced."""
        self.ctx = ctx = context_of(self.node, self.stage, self.samples, self.env, self.run)
        ctx.device = cast("Lane", device)
        outputs = outputs_of(self.node.op.kernel(self.stage)(ctx, *self.inputs))
        return outputs, not (ctx.rejects or ctx.checks or ctx.finish)

    def outputs(self) -> Sequence[Batch]:
        """Call the kernel, or replay its recorded launches. Return its outputs."""
        node, run = self.node, self.run
        gives = [Edge(node.id, k) for k in range(node.op.num_outputs)]
        if self.stage == "gpu" and node.op.replayable and run.attempt == 0:
            needs_context = bool(node.args) or node.op.random
            context = partial(context_of, node, self.stage, self.samples, self.env, run) if needs_context else None
            repeats = recordings_of(run.device)
            outputs = repeats.run(run.device, node.id, self.inputs, self.samples, self.launch, context)
            if run.recorded is not None and repeats.used is not None:
                run.recorded.append(ProgramPart(node, repeats.used, node.inputs, gives))
        else:
            outputs, _ = self.launch(run.device)
            if run.recorded is not None and node.op.shape_only:
                run.recorded.append(ProgramPart(node, None, node.inputs, gives, outputs))
        return outputs


def _run(node: Node, env: Env, run: NodePass) -> None:
    """Run one node and add its outputs to ``env``; samples that fail are removed from it."""
    if isinstance(node.op, Split):
        _split(node, env)
    elif isinstance(node.op, Merge):
        _merge(node, env, run)
    elif not (_by_batch(node, env, run) if run.draws else _draw(node, env, run)):
        _run_kernel(node, env, run)


def _run_kernel(node: Node, env: Env, run: NodePass) -> None:
    device_inputs = node.inputs[:1] if node.op.host_arguments else node.inputs
    inputs = [_placed(env[e], node, run) for e in device_inputs] + [env[e] for e in node.inputs[len(device_inputs) :]]
    samples = _samples(node, inputs, env, run)
    if len(samples) == 0:
        for k, spec in enumerate(node.specs):
            env[Edge(node.id, k)] = empty(spec, samples)
        return
    call = _Call(node, "cpu" if run.emulate else node.stage, inputs, samples, env, run)
    taken = sum(b.nbytes for b in inputs)
    if run.mark_device:
        run.mark_device(node, len(samples), taken, 0, False)
    began, compiling = time.perf_counter(), times.in_this_thread()
    try:
        outputs = call.outputs()
    except (UnlikeSamplesError, SampleError, RaggedError, SpecError) as e:
        _isolate(node, env, run, samples, e)
        return
    except Exception as e:
        e.__dict__.setdefault(RAISED_BY, node)
        raise
    ended = time.perf_counter() - (times.in_this_thread() - compiling)
    if not _stored(node, env, run, samples, outputs):
        return
    written = sum(b.nbytes for b in outputs)
    if run.observe:
        run.observe(node, len(samples), taken, written, began, ended)
    if run.mark_device:
        run.mark_device(node, len(samples), taken, written, True)
    if call.ctx is not None:
        _take_results(node, env, run, call.ctx)


def _isolate(node: Node, env: Env, run: NodePass, samples: Samples, problem: Exception) -> None:
    """Handle ``problem``, which the node's kernel raised for some samples: run the node again for groups of samples, or
    drop the samples that cause it. Raise the problem if it concerns the whole batch."""
    if isinstance(problem, UnlikeSamplesError) and not node.op.per_batch:
        group = np.unique(problem.shapes, axis=0, return_inverse=True)[1].reshape(-1)
        _in_groups(node, env, run, [samples.slot[group == k] for k in range(int(group.max()) + 1)])
    elif isinstance(problem, RaggedError) and not isinstance(problem, UnlikeSamplesError):
        if node.op.per_batch:
            raise problem
        _halve(node, env, run, samples)
    elif isinstance(problem, SpecError) and node.op.per_batch:
        raise problem.at(node.where) from None
    else:
        # The spec was checked before there was data: an error that only data show is an error of samples.
        found = problem if isinstance(problem, SampleError) else SampleError("bad_argument", str(problem))
        _reject(node, env, run, samples, found)


def _stored(node: Node, env: Env, run: NodePass, samples: Samples, outputs: Sequence[Batch]) -> bool:
    """Add the node's outputs to ``env``. Return False if samples were rejected instead, because their type differs from
    the one that the data set's first sample decides."""
    if len(outputs) != node.op.num_outputs:
        raise AssertionError(f"{node.op.name} gave {len(outputs)} outputs, not {node.op.num_outputs}")
    for k, batch in enumerate(outputs):
        if len(batch) != len(samples):
            raise AssertionError(f"{node.op.name} gave {len(batch)} samples for {len(samples)}")
        if run.kinds and (odd := odd_kind(batch, run.kinds.get(Edge(node.id, k)))):
            _reject(node, env, run, samples, SampleError("bad_shape", odd))
            return False
        env[Edge(node.id, k)] = batch if batch.samples is samples else batch.replace(samples=samples)
    return True


def _take_results(node: Node, env: Env, run: NodePass, ctx: Context) -> None:
    """Move what a kernel produced besides its outputs from its context to ``run``: checks, an output that is still
    to come, and samples that it dropped."""
    run.checks += ctx.checks
    if ctx.finish is not None:
        run.late_outputs.append((Edge(node.id), ctx.finish))
    # Checks and the function refer to the context: the reference cycle would keep the batch's memory until the
    # garbage collector runs.
    ctx.checks.clear()
    ctx.finish = None
    if ctx.rejects or ctx.left_out is not None:
        run.dropped += [
            Dropped(r.slot, node.parts.get(r.part, node.name), r.code, r.message, r.kept) for r in ctx.rejects
        ]
        if ctx.left_out is not None:
            run.dropped.append(LeftOut(ctx.left_out[0], node.name, ctx.left_out[1]))
        drop(env, gone(run.dropped))


def start_early(nodes: Sequence[Node], env: Env, run: NodePass) -> dict[int, StartedWork]:
    """Start the host's part of mixed kernels whose inputs exist already (`Operator.start_early`). Return the started
    work by the node's id.

    Exceptions of operators are ignored: the launch raises them again, names the operator and tries fewer samples.
    Exceptions of readers are raised, because a reader's batches follow one another."""
    begun = {}
    for node in nodes:
        if node.stage == "mixed" and all(e in env for e in (*node.inputs, *node.args.values())):
            inputs = [env[e] for e in node.inputs]
            samples = inputs[0].samples if inputs else run.reader_samples.get(node.id)
            if samples is None or not len(samples):
                continue
            before = run.state()
            try:
                work = node.op.start_early(context_of(node, "mixed", samples, env, run), *inputs)
            except Exception:
                if not inputs:
                    raise
                run.undo(before)
                continue
            if work is not None:
                begun[node.id] = work
    return begun


def finish_late(
    run: NodePass, env: Env, tried: Callable[[Callable[[], Batch]], Batch] = lambda finish: finish()
) -> None:
    """Replace placeholders in ``env`` by the outputs that exist only now, after the device has finished ``run``.
    Samples that were dropped meanwhile are left out. ``tried`` calls the functions that allocate memory."""
    if not run.late_outputs or run.device is None:
        return
    parts: dict[Edge, list[Batch]] = {}
    with run.device as lane:
        for edge, finish in run.late_outputs:
            if edge in env:
                parts.setdefault(edge, []).append(tried(finish))
    lane.synchronize()
    for edge, batches in parts.items():
        whole = batches[0] if len(batches) == 1 else merge(batches)  # several if the batch was cut
        samples = env[edge].samples
        if whole.samples is samples:  # usually no sample was dropped since
            env[edge] = whole
        else:
            env[edge] = whole.take(np.searchsorted(whole.samples.slot, samples.slot), samples)


def _samples(node: Node, inputs: Sequence[Batch], env: Env, run: NodePass) -> Samples:
    if inputs:
        return inputs[0].samples
    if node.id not in run.reader_samples and node.samples_of is not None:
        return env[node.samples_of].samples
    samples = run.reader_samples.get(node.id, run.samples)
    if not run.dropped:
        return samples
    # Dropped samples must not come back: inputs and arguments of one kernel hold the same samples.
    lost = np.isin(samples.slot, list(gone(run.dropped)))
    return samples.take(~lost) if lost.any() else samples


def _placed(batch: Batch, node: Node, run: NodePass) -> Batch:
    """Return the batch in the memory from which the node reads it: of the host (mixed) or the device (gpu)."""
    if run.device is None or run.emulate:
        return batch
    if node.stage == "gpu" or isinstance(node.op, (Split, Merge)):
        moved: Batch = run.device.to_device(batch) if node.stage == "gpu" else batch
        return moved
    return batch


def _split(node: Node, env: Env) -> None:
    data, predicate = env[node.inputs[0]], env[node.args["predicate"]]
    truth = np.asarray(predicate.data[predicate.offsets]).astype(bool)
    true_slots = predicate.samples.slot[truth]
    is_true = np.isin(data.samples.slot, true_slots)
    env[Edge(node.id, 0)] = data.take(np.flatnonzero(is_true))
    env[Edge(node.id, 1)] = data.take(np.flatnonzero(~is_true))
