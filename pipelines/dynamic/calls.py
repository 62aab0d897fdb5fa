"""Calls of single operators on batches of the engine's: checked once for each kind of call, then run at once.

A plan is an operator with its constants, made the first time that an operator is called with them; it keeps the kinds
of inputs that the operator has accepted. A repeated call costs a look-up, a context and the kernel.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from itertools import pairwise
from typing import Any

import numpy as np

from ...ops.base import Operator, Parameter, Spec, Stage, outputs_of, parameters, strip_optional
from ...ops.batch import Batch, Samples, concat
from ...ops.context import Context
from ...ops.errors import ArgumentTypeError, ArgumentValueError, Reject, SampleError, SpecError, UnlikeSamplesError
from ...ops.gpu.launch_recording import repeats_of
from ...ops.interfaces import Lane
from ...ops.types import DALIDataType, from_numpy
from ..compile.infer import infer_node
from ..engine.nodes.envs import empty, merge
from ..graph.arguments import check_arguments, no_argument
from ..graph.nodes import Edge, Node
from ..user_warnings import user_line
from .contexts import EvalContext
from .devices import Device
from .dtypes import type_id

Constant = tuple[str, Any, Any]
"""An argument's name, the type of its value (those of its elements, for a list), and the value, hashable."""
State = tuple[int, int, int, int]
"""Of a random generator: key, counter (low and high half) and word."""
_WORTH_SHARING = 0.002
"""Seconds of work from which on a call is worth cutting up for several threads: parts have to be joined again."""
_MOST_PLANS = 4096
_MOST_TRIES = 4


class Plan:
    """One operator with its constants on one stage."""

    __slots__ = ("accepted", "device_id", "kernel", "node", "op", "outputs", "pace", "random", "stage", "whole")

    def __init__(self, op: Operator, stage: Stage, device_id: int | None) -> None:
        self.op = op
        self.stage = stage
        self.device_id = device_id
        """The GPU that was asked for, if one was."""
        self.kernel = op.kernel(stage)
        self.outputs = op.num_outputs
        self.random = op.random
        self.whole = op.per_batch
        self.node = Node(0, op, (), {}, op.name)
        self.pace = 1.0 if op.decodes else 0.0
        """Seconds of a processor for a byte of input, in the last call. (Decoding is worth it in any case.)"""
        self.accepted: dict[Any, tuple[Spec, ...]] = {}
        """The outputs for each kind of inputs: dimensions, dtype and layout."""

    def infer(self, kinds: tuple[Any, ...]) -> tuple[Spec, ...]:
        """The outputs for inputs of ``kinds`` (ndim, NumPy dtype or None, layout). Raises SpecError."""
        found = self.accepted.get(kinds)
        if found is None:
            given = [
                Spec(None if n is None else (None,) * n, None if t is None else from_numpy(t), layout)
                for n, t, layout in kinds
            ]
            found = infer_node(self.node, given)
            if len(self.accepted) > _MOST_PLANS:
                self.accepted.clear()
            self.accepted[kinds] = found
        return found


_plans: dict[Any, Plan] = {}


def plan_for(
    cls: type[Operator], inputs: int, device: Device | None, on_device: bool, constants: tuple[Constant, ...],
    per_sample: tuple[str, ...],
) -> Plan:  # fmt: skip
    """The plan of a call: ``cls`` with ``constants`` and arguments ``per_sample`` that come as batches, of inputs that
    are ``on_device`` or not, on ``device`` (None for where the inputs are).

    Raises SpecError, which is a TypeError or ValueError, too, for a call that cannot be.
    """
    key = (cls, inputs, device, on_device, constants, per_sample)
    try:
        found = _plans.get(key)
    except TypeError:  # an argument that cannot be hashed, such as a mapping
        return _made(cls, inputs, device, on_device, constants, per_sample)
    if found is None:
        if len(_plans) > _MOST_PLANS:
            _plans.clear()
        found = _plans[key] = _made(cls, inputs, device, on_device, constants, per_sample)
    return found


def _made(
    cls: type[Operator], inputs: int, device: Device | None, on_device: bool, constants: tuple[Constant, ...],
    per_sample: tuple[str, ...],
) -> Plan:  # fmt: skip
    known = parameters(cls)
    for name in (*(c[0] for c in constants), *per_sample):
        if name not in known:
            raise ArgumentTypeError(no_argument(cls, name))
    for name in per_sample:
        if not known[name].arg.per_sample:
            raise ArgumentTypeError(f"argument {name!r} must be a plain value, not a Tensor or Batch")
    low, high = cls.inputs
    if not low <= inputs <= high:
        wanted = str(low) if low == high else f"{low} to {high}"
        raise ArgumentTypeError(f"takes {wanted} input{'s' * (wanted != '1')}, got {inputs}")
    given = {name: typed(known[name], value) for name, _, value in constants}
    given |= {name: Edge(0) for name in per_sample}
    values, edges, problems = check_arguments(cls, given)
    if problems:
        missing = any(p.required and p.name not in given for p in known.values())
        raise (ArgumentTypeError if missing else ArgumentValueError)("; ".join(problems))
    op = cls(per_sample=frozenset(edges), num_inputs=inputs, **values)
    op.check()
    kind, number = (None, None) if device is None else (device.device_type, device.device_id)
    return Plan(op, _stage(op, kind, on_device), number)


def typed(known: Parameter, value: Any) -> Any:
    """A type by its name in the dynamic mode: ``u8`` is uint8, which NumPy would take for eight bytes. Raises
    ValueError for other names."""
    is_name = isinstance(value, str) and strip_optional(known.type) is DALIDataType
    return type_id(value) if is_name else value


def _stage(op: Operator, device: str | None, on_device: bool) -> Stage:
    stages = op.runs_in()
    if on_device and device == "cpu":
        raise ArgumentValueError("an input is on a GPU, but device is 'cpu'; take its .cpu()")
    if on_device or device == "gpu":
        wanted: Stage = "mixed" if "mixed" in stages and not on_device else "gpu"
        if wanted not in stages:
            raise ArgumentValueError(f"has no GPU kernel (it runs on {', '.join(stages)}); take .cpu() of its inputs")
        return wanted
    if "cpu" not in stages:
        raise ArgumentValueError(f"runs only on {', '.join(stages)}; give device='gpu'")
    return "cpu"


def kind_of(batch: Batch) -> tuple[int, Any, str]:
    """The facts that operators are told of an input before they run."""
    return batch.shapes.shape[1], batch.data.dtype, batch.layout


def run(
    plan: Plan, inputs: Sequence[Batch], args: Mapping[str, Batch], samples: Samples, state: State | None,
    context: EvalContext, where: str = "",
) -> tuple[Batch, ...]:  # fmt: skip
    """The outputs of a call. ``state`` is that of the random generator, ``where`` the program's line, if it is not the
    one that is being run. Raises SpecError for inputs that the operator does not take, SampleError for a sample that
    cannot be processed."""
    try:
        specs = plan.infer(tuple([(b.shapes.shape[1], b.data.dtype, b.layout) for b in inputs]))
        if len(samples.slot) == 0:
            return tuple(empty(s, samples) for s in specs)
        if plan.stage != "cpu":
            return _launched(plan, inputs, args, samples, state, context, where)
        if len(samples.slot) == 1 or plan.whole:
            ctx = _context(plan, args, samples, state)
            outputs = plan.kernel(ctx, *inputs)
        else:
            size = sum([b.nbytes for b in inputs]) + 1
            if plan.pace * size >= _WORTH_SHARING and context.num_threads > 1:
                return _shared(plan, inputs, args, samples, state, context, size, where)
            ctx = _context(plan, args, samples, state)
            begin = time.thread_time()  # of the processor: other programs must not make a call look long
            outputs = plan.kernel(ctx, *inputs)
            _note(plan, (time.thread_time() - begin) / size)
    except SpecError as e:
        raise refused(e, plan.op.name, where) from None
    except UnlikeSamplesError as e:
        return _in_groups(plan, inputs, args, samples, state, context, where or line(), e)
    except PlacedError:
        raise
    except SampleError as e:
        raise PlacedError(e.code, f"{where or line()}: {plan.op.name}: {e}") from None
    if ctx.rejects:
        refuse(plan.op.name, ctx.rejects, samples, where)
    return (outputs,) if plan.outputs == 1 and isinstance(outputs, Batch) else outputs_of(outputs)


def _context(plan: Plan, args: Mapping[str, Batch], samples: Samples, state: State | None, **more: Any) -> Context:
    if state is None:
        return Context(plan.op, plan.stage, samples, args, 0, "dali", **more)
    return Context(plan.op, plan.stage, samples, args, state[0], "dali", state[1:], **more)


def refused(problem: SpecError, name: str, where: str = "") -> SpecError:
    """The error of a call that cannot be, with its place; a ValueError, unless it is a TypeError."""
    kind = ArgumentValueError if type(problem) is SpecError else type(problem)
    return kind(f"{where or line()}: {name}: {problem}")


def line() -> str:
    """The program's line that led here."""
    return "{}:{}".format(*user_line())


class PlacedError(SampleError):
    """Error about a sample that begins with the program's line."""


def _in_groups(
    plan: Plan, inputs: Sequence[Batch], args: Mapping[str, Batch], samples: Samples, state: State | None,
    context: EvalContext, where: str, problem: UnlikeSamplesError,
) -> tuple[Batch, ...]:  # fmt: skip
    """As `run`, one call for each group of samples that the kernel can compute together."""
    known, group = np.unique(problem.shapes, axis=0, return_inverse=True)
    if len(known) < 2:
        raise PlacedError("bad_argument", f"{where}: {plan.op.name}: {problem}")
    parts = []
    for k in range(len(known)):
        at = np.flatnonzero(group.reshape(-1) == k)
        mine = samples.take(at)
        given = [b.take(at, mine) for b in inputs], {name: b.take(at, mine) for name, b in args.items()}
        parts.append(run(plan, *given, mine, state, context, where))
    return tuple(merge(list(part)).replace(samples=samples) for part in zip(*parts, strict=True))


def refuse(name: str, rejects: Sequence[Reject], samples: Samples, where: str = "") -> None:
    """Raise SampleError for the first of ``rejects`` that is not merely noted."""
    for r in rejects:
        if not r.kept:
            source = samples.origin(int(np.flatnonzero(samples.slot == r.slot)[0])).source_info
            from_where = f" ({source})" if source else ""
            raise PlacedError(r.code, f"{where or line()}: {name}: sample {r.slot}{from_where}: {r.message} ({r.code})")


# -- several threads --------------------------------------------------------------------------------------------------


def _note(plan: Plan, pace: float) -> None:
    if not plan.op.decodes:
        plan.pace = pace


def _shared(
    plan: Plan, inputs: Sequence[Batch], args: Mapping[str, Batch], samples: Samples, state: State | None,
    context: EvalContext, size: int, where: str,
) -> tuple[Batch, ...]:  # fmt: skip
    """As `run`, a part of the samples on each thread: every kernel treats each sample as if it were alone."""
    threads = min(context.num_threads, len(samples))
    ends = np.linspace(0, len(samples), threads + 1).astype(int).tolist()

    def part(at: slice) -> tuple[tuple[Batch, ...], list[Reject], float]:
        begin = time.thread_time()
        mine = samples.take(at)
        ctx = _context(plan, {k: b.take(at, mine) for k, b in args.items()}, mine, state)
        made = outputs_of(plan.kernel(ctx, *(b.take(at, mine) for b in inputs)))
        return made, ctx.rejects, time.thread_time() - begin

    cut = [slice(low, high) for low, high in pairwise(ends)]
    try:
        parts = context.thread_pool.map(part, cut)
    except UnlikeSamplesError:  # it tells the samples of one part alone apart
        parts = [part(slice(None))]
    _note(plan, sum(seconds for _, _, seconds in parts) / size)
    refuse(plan.op.name, [r for _, rejects, _ in parts for r in rejects], samples, where)
    return tuple(concat([made[k] for made, _, _ in parts], samples) for k in range(plan.outputs))


# -- a GPU ------------------------------------------------------------------------------------------------------------


def _launched(
    plan: Plan, inputs: Sequence[Batch], args: Mapping[str, Batch], samples: Samples, state: State | None,
    context: EvalContext, where: str, attempt: int = 0,
) -> tuple[Batch, ...]:  # fmt: skip
    """As `run`, on the GPU where the inputs are, waiting for the result. Samples whose check fails go to the next
    decoder."""
    lane = context.lane(_gpu_of(plan, inputs))
    ctx = _context(plan, args, samples, state, device=lane, attempt=attempt)

    def launch(where: Lane) -> tuple[Sequence[Batch], bool]:
        ctx.device = where
        made = outputs_of(plan.kernel(ctx, *placed))
        return made, not (ctx.rejects or ctx.checks or ctx.finish)

    with lane:
        placed = [lane.to_device(b) for b in inputs] if plan.stage == "gpu" else inputs
        if plan.op.replayable and plan.stage == "gpu" and not attempt:
            anew = partial(_context, plan, args, samples, state) if args or plan.random else None
            outputs = tuple(repeats_of(lane).run(lane, plan, placed, samples, launch, anew))
        else:
            outputs = tuple(launch(lane)[0])
    lane.synchronize()
    finish, ctx.finish = ctx.finish, None  # it refers to the context: a ring would keep the call's memory
    if finish is not None:
        with lane:
            outputs = (finish(),)
        lane.synchronize()
    refuse(plan.op.name, ctx.rejects, samples, where)
    failed = [check() for check in ctx.checks]
    ctx.checks.clear()  # and so do they
    slots = np.unique(np.concatenate(failed)) if failed else np.empty(0, np.int32)
    if len(slots) == 0:
        return outputs
    if attempt >= _MOST_TRIES:
        raise PlacedError("corrupt_data", f"{where or line()}: {plan.op.name}: sample {int(slots[0])}: no decoder "
                                          "takes it")  # fmt: skip
    bad = np.isin(samples.slot, slots)
    mine = samples.take(bad)
    again = _launched(plan, [b.take(bad, mine) for b in inputs], {k: b.take(bad, mine) for k, b in args.items()}, mine,
                      state, context, where, attempt + 1)  # fmt: skip
    rest = samples.take(~bad)
    with lane:
        merged = tuple(merge([o.take(~bad, rest), a]) for o, a in zip(outputs, again, strict=True))
    lane.synchronize()
    return merged


def _gpu_of(plan: Plan, inputs: Sequence[Batch]) -> int | None:
    """The GPU of the inputs, or the one that was asked for; None for the context's. Raises SpecError where these are
    two."""
    asked = [] if plan.device_id is None else [plan.device_id]
    numbers = list(dict.fromkeys([int(b.data.device.id) for b in inputs if not b.on_host] + asked))
    if len(numbers) > 1:
        places = " and ".join(f"gpu:{n}" for n in numbers)
        raise ArgumentValueError(
            f"one call runs on one GPU, and this one is on {places}; take .gpu({numbers[0]}) of its inputs"
        )
    return numbers[0] if numbers else None


# -- later ------------------------------------------------------------------------------------------------------------


class DeferredCall:
    """A call that runs when its results are asked for."""

    __slots__ = ("__weakref__", "_results", "_work", "device", "on_host", "size", "specs")

    def __init__(self, work: Callable[[], tuple[Batch, ...]], specs: tuple[Spec, ...], on_host: bool) -> None:
        """``specs`` may be empty where nothing is known of the results before."""
        self._work: Callable[[], tuple[Batch, ...]] | None = work
        self._results: tuple[Batch, ...] | None = None
        self.specs = specs
        self.on_host = on_host
        self.size: int | None = None
        """Samples of the results, where that is known."""
        self.device: Device | None = None
        """Where they will be, where that is known."""

    def results(self) -> tuple[Batch, ...]:
        """The outputs; the work is done the first time."""
        if self._results is None:
            assert self._work is not None
            self._results = self._work()
            self._work = None
        return self._results


def renumbered(batch: Batch) -> Batch:
    """The batch with its samples' places counted from 0, as every call does."""
    samples = batch.samples
    slots = np.arange(len(samples), dtype=np.int32)
    return batch.replace(samples=replace(samples, slot=slots))
