"""Calls of single operators on the engine's batches, for `values.invoke`: checked once per kind of call, then run at
once.

A plan is an operator with its constant arguments, created by the first call that has them. It caches the kinds of
inputs that the operator has accepted, so a repeated call costs a look-up, a context and the kernel.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import lru_cache, partial
from itertools import pairwise
from typing import Any

import numpy as np

from ...ops.base import Operator, Parameter, Spec, Stage, outputs_of, parameters, strip_optional
from ...ops.batch import Batch, Samples, concat
from ...ops.context import Context
from ...ops.errors import ArgumentTypeError, ArgumentValueError, Reject, SampleError, SpecError, UnlikeSamplesError
from ...ops.gpu.launch_recording import recordings_of
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
"""A constant argument of a call: (name, type of the value or types of a list's elements, value in hashable form)."""
State = tuple[int, int, int, int]
"""State of a random generator: key, low and high half of the counter, index of the word in the counter's block."""
_MIN_SHARED_SECONDS = 0.002
"""Smallest estimated processor seconds of a call that is divided between threads. For less work, joining the outputs
would cost more than it saves."""
_MAX_CACHED_PLANS = 4096
_MAX_DECODE_ATTEMPTS = 4


class CallPlan:
    """One operator with its constant arguments, prepared for one stage (cpu, mixed or gpu). Created by `plan_for` and
    cached for the whole process."""

    __slots__ = ("accepted", "device_id", "kernel", "node", "op", "outputs", "pace", "random", "stage", "whole")

    def __init__(self, op: Operator, stage: Stage, device_id: int | None) -> None:
        self.op = op
        self.stage = stage
        self.device_id = device_id
        """Number of the GPU that the caller requested; None if it requested none."""
        self.kernel = op.kernel(stage)
        self.outputs = op.num_outputs
        self.random = op.random
        self.whole = op.per_batch
        self.node = Node(0, op, (), {}, op.name)
        self.pace = 1.0 if op.decodes else 0.0
        """Processor seconds per byte of input in the last call, from which the duration of the next call is estimated.
        1.0 for decoders, whose calls are always divided between threads."""
        self.accepted: dict[Any, tuple[Spec, ...]] = {}
        """Specs (types and dimensions) of the outputs, by kinds of inputs accepted earlier. A kind is (dimensions,
        dtype, layout) per input."""

    def infer(self, kinds: tuple[Any, ...]) -> tuple[Spec, ...]:
        """Return the specs of the outputs for inputs of ``kinds``, which are (ndim, NumPy dtype or None, layout) per
        input. Raises SpecError."""
        outputs = self.accepted.get(kinds)
        if outputs is None:
            inputs = [
                Spec(None if n is None else (None,) * n, None if t is None else from_numpy(t), layout)
                for n, t, layout in kinds
            ]
            outputs = infer_node(self.node, inputs)
            if len(self.accepted) > _MAX_CACHED_PLANS:
                self.accepted.clear()
            self.accepted[kinds] = outputs
        return outputs


def plan_for(
    cls: type[Operator], inputs: int, device: Device | None, on_device: bool, constants: tuple[Constant, ...],
    per_sample: tuple[str, ...],
) -> CallPlan:  # fmt: skip
    """Return the plan for calling operator ``cls``. ``constants`` are its constant arguments, ``per_sample`` the names
    of arguments that are batches. ``on_device``: whether an input is on a GPU. ``device``: the requested device; None
    to run where the inputs are.

    Raises SpecError, which is also a TypeError or ValueError, if the call is invalid.
    """
    try:
        return _made(cls, inputs, device, on_device, constants, per_sample)  # type: ignore[arg-type]
    except SpecError:
        raise
    except TypeError:  # an argument that cannot be hashed, such as a mapping
        return _made.__wrapped__(cls, inputs, device, on_device, constants, per_sample)


@lru_cache(_MAX_CACHED_PLANS)
def _made(
    cls: type[Operator], inputs: int, device: Device | None, on_device: bool, constants: tuple[Constant, ...],
    per_sample: tuple[str, ...],
) -> CallPlan:  # fmt: skip
    known = parameters(cls)
    for name in (*(c[0] for c in constants), *per_sample):
        if name not in known:
            raise ArgumentTypeError(no_argument(cls, name))
    for name in per_sample:
        if not known[name].arg.per_sample:
            raise ArgumentTypeError(f"argument {name!r} must be a plain value, not a Tensor or Batch")
    low, high = cls.inputs
    if not low <= inputs <= high:
        expected = str(low) if low == high else f"{low} to {high}"
        raise ArgumentTypeError(f"takes {expected} input{'s' * (expected != '1')}, got {inputs}")
    arguments = {name: typed(known[name], value) for name, _, value in constants}
    arguments |= {name: Edge(0) for name in per_sample}
    values, edges, problems = check_arguments(cls, arguments)
    if problems:
        missing = any(p.required and p.name not in arguments for p in known.values())
        raise (ArgumentTypeError if missing else ArgumentValueError)("; ".join(problems))
    op = cls(per_sample=frozenset(edges), num_inputs=inputs, **values)
    op.check()
    kind, number = (None, None) if device is None else (device.device_type, device.device_id)
    return CallPlan(op, _stage(op, kind, on_device), number)


def typed(known: Parameter, value: Any) -> Any:
    """Return the value of an argument. If the argument ``known`` is an element type, and ``value`` a name such as
    ``u8``, return the DALIDataType: NumPy would read ``u8`` as eight bytes. Raises ValueError for unknown names."""
    is_name = isinstance(value, str) and strip_optional(known.type) is DALIDataType
    return type_id(value) if is_name else value


def _stage(op: Operator, device: str | None, on_device: bool) -> Stage:
    stages = op.runs_in()
    if on_device and device == "cpu":
        raise ArgumentValueError("an input is on a GPU, but device is 'cpu'; take its .cpu()")
    if on_device or device == "gpu":
        preferred: Stage = "mixed" if "mixed" in stages and not on_device else "gpu"
        if preferred not in stages:
            raise ArgumentValueError(f"has no GPU kernel (it runs on {', '.join(stages)}); take .cpu() of its inputs")
        return preferred
    if "cpu" not in stages:
        raise ArgumentValueError(f"runs only on {', '.join(stages)}; give device='gpu'")
    return "cpu"


def kind_of(batch: Batch) -> tuple[int, Any, str]:
    """Return (dimensions, dtype, layout) of an input, from which operators infer the specs of outputs."""
    return batch.shapes.shape[1], batch.data.dtype, batch.layout


def run(
    plan: CallPlan, inputs: Sequence[Batch], args: Mapping[str, Batch], samples: Samples, state: State | None,
    context: EvalContext, location: str = "",
) -> tuple[Batch, ...]:  # fmt: skip
    """Run a call and return its outputs. ``state`` is the state of the random generator. ``location`` is the program's
    line that made the call, if not the present one. Raises SpecError for inputs that the operator does not accept,
    SampleError for a sample that cannot be processed."""
    try:
        specs = plan.infer(tuple([(b.shapes.shape[1], b.data.dtype, b.layout) for b in inputs]))
        if len(samples.slot) == 0:
            return tuple(empty(s, samples) for s in specs)
        if plan.stage != "cpu":
            return _launched(plan, inputs, args, samples, state, context, location)
        if len(samples.slot) == 1 or plan.whole:
            ctx = _context(plan, args, samples, state)
            outputs = plan.kernel(ctx, *inputs)
        else:
            size = sum([b.nbytes for b in inputs]) + 1
            if plan.pace * size >= _MIN_SHARED_SECONDS and context.num_threads > 1:
                return _shared(plan, inputs, args, samples, state, context, size, location)
            ctx = _context(plan, args, samples, state)
            begin = time.thread_time()  # processor time, because other programs must not make a call look long
            outputs = plan.kernel(ctx, *inputs)
            _note(plan, (time.thread_time() - begin) / size)
    except SpecError as e:
        raise located(e, plan.op.name, location) from None
    except UnlikeSamplesError as e:
        return _in_groups(plan, inputs, args, samples, state, context, location or line(), e)
    except LocatedError:
        raise
    except SampleError as e:
        raise LocatedError(e.code, f"{location or line()}: {plan.op.name}: {e}") from None
    if ctx.rejects:
        raise_reject(plan.op.name, ctx.rejects, samples, location)
    return (outputs,) if plan.outputs == 1 and isinstance(outputs, Batch) else outputs_of(outputs)


def _context(plan: CallPlan, args: Mapping[str, Batch], samples: Samples, state: State | None, **more: Any) -> Context:
    if state is None:
        return Context(plan.op, plan.stage, samples, args, 0, "dali", **more)
    return Context(plan.op, plan.stage, samples, args, state[0], "dali", state[1:], **more)


def located(problem: SpecError, name: str, location: str = "") -> SpecError:
    """Return ``problem``, the error of an invalid call, with the program's line in front of its message: as a TypeError
    if ``problem`` is one, else a ValueError."""
    kind = ArgumentValueError if type(problem) is SpecError else type(problem)
    return kind(f"{location or line()}: {name}: {problem}")


def line() -> str:
    """Return the line of the user's program that made the current call, as ``file:line``."""
    return "{}:{}".format(*user_line())


class LocatedError(SampleError):
    """Error about a sample whose message already begins with the line of the program that made the call."""


def _in_groups(
    plan: CallPlan, inputs: Sequence[Batch], args: Mapping[str, Batch], samples: Samples, state: State | None,
    context: EvalContext, location: str, problem: UnlikeSamplesError,
) -> tuple[Batch, ...]:  # fmt: skip
    """Run a call and return its outputs, like `run`, but process the samples in groups, because some operators can
    process only certain shapes together."""
    known, group = np.unique(problem.shapes, axis=0, return_inverse=True)
    if len(known) < 2:
        raise LocatedError("bad_argument", f"{location}: {plan.op.name}: {problem}")
    parts = []
    for k in range(len(known)):
        at = np.flatnonzero(group.reshape(-1) == k)
        group_samples = samples.take(at)
        group_inputs = (
            [b.take(at, group_samples) for b in inputs],
            {name: b.take(at, group_samples) for name, b in args.items()},
        )
        parts.append(run(plan, *group_inputs, group_samples, state, context, location))
    return tuple(merge(list(part)).replace(samples=samples) for part in zip(*parts, strict=True))


def raise_reject(name: str, rejects: Sequence[Reject], samples: Samples, location: str = "") -> None:
    """Raise SampleError for the first of ``rejects``, the samples that an operator could not process. Samples that are
    kept anyway, such as damaged images, are ignored."""
    for r in rejects:
        if not r.kept:
            source = samples.origin(int(np.flatnonzero(samples.slot == r.slot)[0])).source_info
            from_where = f" ({source})" if source else ""
            raise LocatedError(
                r.code, f"{location or line()}: {name}: sample {r.slot}{from_where}: {r.message} ({r.code})"
            )


# -- several threads --------------------------------------------------------------------------------------------------


def _note(plan: CallPlan, pace: float) -> None:
    if not plan.op.decodes:
        plan.pace = pace


def _shared(
    plan: CallPlan, inputs: Sequence[Batch], args: Mapping[str, Batch], samples: Samples, state: State | None,
    context: EvalContext, size: int, location: str,
) -> tuple[Batch, ...]:  # fmt: skip
    """Run a call and return its outputs, like `run`, but divide the samples between the threads of the context's pool.
    For operators that process each sample independently."""
    threads = min(context.num_threads, len(samples))
    ends = np.linspace(0, len(samples), threads + 1).astype(int).tolist()

    def part(at: slice) -> tuple[tuple[Batch, ...], list[Reject], float]:
        begin = time.thread_time()
        part_samples = samples.take(at)
        ctx = _context(plan, {k: b.take(at, part_samples) for k, b in args.items()}, part_samples, state)
        outputs = outputs_of(plan.kernel(ctx, *(b.take(at, part_samples) for b in inputs)))
        return outputs, ctx.rejects, time.thread_time() - begin

    cut = [slice(low, high) for low, high in pairwise(ends)]
    try:
        parts = context.thread_pool.map(part, cut)
    except UnlikeSamplesError:  # its groups are those of one part only
        parts = [part(slice(None))]
    _note(plan, sum(seconds for _, _, seconds in parts) / size)
    raise_reject(plan.op.name, [r for _, rejects, _ in parts for r in rejects], samples, location)
    return tuple(concat([made[k] for made, _, _ in parts], samples) for k in range(plan.outputs))


# -- a GPU ------------------------------------------------------------------------------------------------------------


def _launched(
    plan: CallPlan, inputs: Sequence[Batch], args: Mapping[str, Batch], samples: Samples, state: State | None,
    context: EvalContext, location: str, attempt: int = 0,
) -> tuple[Batch, ...]:  # fmt: skip
    """Run a call on the GPU of its inputs, wait for the outputs and return them, like `run`. Samples that a GPU decoder
    fails to decode are decoded again by another decoder."""
    lane = context.lane(_gpu_of(plan, inputs))
    ctx = _context(plan, args, samples, state, device=lane, attempt=attempt)

    def launch(lane: Lane) -> tuple[Sequence[Batch], bool]:
        ctx.device = lane
        batches = outputs_of(plan.kernel(ctx, *placed))
        return batches, not (ctx.rejects or ctx.checks or ctx.finish)

    with lane:
        placed = [lane.to_device(b) for b in inputs] if plan.stage == "gpu" else inputs
        if plan.op.replayable and plan.stage == "gpu" and not attempt:
            anew = partial(_context, plan, args, samples, state) if args or plan.random else None
            outputs = tuple(recordings_of(lane).run(lane, plan, placed, samples, launch, anew))
        else:
            outputs = tuple(launch(lane)[0])
    lane.synchronize()
    finish, ctx.finish = ctx.finish, None  # it refers to the context: a reference cycle would keep the call's memory
    if finish is not None:
        with lane:
            outputs = (finish(),)
        lane.synchronize()
    raise_reject(plan.op.name, ctx.rejects, samples, location)
    failed = [check() for check in ctx.checks]
    ctx.checks.clear()  # the checks refer to the context, too
    slots = np.unique(np.concatenate(failed)) if failed else np.empty(0, np.int32)
    if len(slots) == 0:
        return outputs
    if attempt >= _MAX_DECODE_ATTEMPTS:
        raise LocatedError("corrupt_data", f"{location or line()}: {plan.op.name}: sample {int(slots[0])}: no decoder "
                                          "accepts it")  # fmt: skip
    failed_mask = np.isin(samples.slot, slots)
    failed_samples = samples.take(failed_mask)
    failed_inputs = [b.take(failed_mask, failed_samples) for b in inputs]
    failed_args = {k: b.take(failed_mask, failed_samples) for k, b in args.items()}
    retried = _launched(plan, failed_inputs, failed_args, failed_samples, state, context, location, attempt + 1)
    passed_samples = samples.take(~failed_mask)
    with lane:
        merged = tuple(merge([o.take(~failed_mask, passed_samples), a]) for o, a in zip(outputs, retried, strict=True))
    lane.synchronize()
    return merged


def _gpu_of(plan: CallPlan, inputs: Sequence[Batch]) -> int | None:
    """Return the number of the inputs' GPU or, without one, of the requested GPU; None to use the context's GPU. Raises
    SpecError if inputs are on different GPUs."""
    requested = [] if plan.device_id is None else [plan.device_id]
    numbers = list(dict.fromkeys([int(b.data.device.id) for b in inputs if not b.on_host] + requested))
    if len(numbers) > 1:
        places = " and ".join(f"gpu:{n}" for n in numbers)
        raise ArgumentValueError(
            f"one call runs on one GPU, and this one is on {places}; take .gpu({numbers[0]}) of its inputs"
        )
    return numbers[0] if numbers else None


# -- later ------------------------------------------------------------------------------------------------------------


class DeferredCall:
    """A call that runs when one of its results is first requested. Until then, its result values refer to it."""

    __slots__ = ("__weakref__", "_results", "_work", "device", "on_host", "size", "specs")

    def __init__(self, work: Callable[[], tuple[Batch, ...]], specs: tuple[Spec, ...], on_host: bool) -> None:
        """``specs`` describe the outputs; empty if they are unknown before the call runs. ``on_host``: whether the
        results will be in host memory."""
        self._work: Callable[[], tuple[Batch, ...]] | None = work
        self._results: tuple[Batch, ...] | None = None
        self.specs = specs
        self.on_host = on_host
        self.size: int | None = None
        """Number of samples in each result; None if it is unknown before the call runs."""
        self.device: Device | None = None
        """Device of the results; None if it is unknown before the call runs."""

    def results(self) -> tuple[Batch, ...]:
        """Return the outputs of the call. The first request runs it."""
        if self._results is None:
            assert self._work is not None
            self._results = self._work()
            self._work = None
        return self._results


def renumbered(batch: Batch) -> Batch:
    """Return the batch with its samples numbered from 0, as in the outputs of every call."""
    samples = batch.samples
    slots = np.arange(len(samples), dtype=np.int32)
    return batch.replace(samples=replace(samples, slot=slots))
