"""Captured loops: the body of a loop over a reader becomes a pipeline, which runs ahead of the loop. Called by
`Reader.next_epoch` and `ExternalSource.captured`.

The first body runs like any other code, and the calls that depend on the reader alone are recorded: their plans, their
inputs, and which results the program reads. `captured_pipeline` makes a graph of these calls, compiled once, which the
engine runs ahead of the loop, like any pipeline. A call of the body that equals a recorded one gets the result that is
ready; any other runs as usual. So nothing is assumed of the program's source, and nothing that it does can make a
result wrong:

- a call with another constant is another call, and runs as usual;
- random calls ran with the state that the generator was expected to have; it is compared with the actual state,
  and if they differ, the call runs again with the actual one;
- a call that also takes other values (Tensors of the program) runs as usual, unless they are `invariant`;
- a result that the pipeline does not return is computed again if the program reads it;
- a batch with a sample that fails is left to the loop, which raises the error at the program's line.

If later bodies differ, the graph is built again: at once the first time, then at doubling intervals.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np

from ...ops.batch import Batch as Data
from ...ops.errors import DeviceError, SpecError
from ..user_warnings import warn
from . import calls
from .captured_pipeline import (
    ROOT,
    CapturedPipeline,
    IterationInputs,
    ProgramInputs,
    RecordedCall,
    ResultKey,
    RngForecast,
)
from .contexts import EvalContext
from .data import moved_to
from .devices import Device
from .rng import RNG
from .values import Batch, Value, as_tensor, compute, dispatch, loops, made, value_of

if TYPE_CHECKING:
    from .readers import Reader
    from .sources import ExternalSource

T = TypeVar("T")
_MAX_RECORDED_CALLS = 4096
"""Largest number of calls that are recorded for the body of one loop. More calls mean that their constants change in
every iteration; the recording then starts over."""
_MAX_FED_BATCHES = 4
"""Largest number of batches that a loop whose calls run ahead (a captured loop) takes from its source early."""
_MAX_REBUILD_INTERVAL = 1024
"""Largest number of iterations after which the pipeline of a captured loop is built again, if calls change."""


def invariant(value: T) -> T:
    """Promise that ``value``, an array, Tensor or Batch, stays the same in every iteration of a captured loop. Calls
    with this input can then also run ahead. Numbers, texts and lists need no promise: their values are compared."""
    if isinstance(value, Value):
        marked: Any = value_of(value.data, isinstance(value, Batch))
    elif isinstance(value, np.ndarray) or hasattr(value, "__dlpack__"):
        marked = as_tensor(value)
    else:
        return value
    marked.invariant = True
    result: T = marked
    return result


class Loop:
    """A captured loop: a loop of the user's program whose calls of operators are recorded, so that a pipeline can run
    them ahead of the program. Owned by a reader or source, one per batch size; used by the program's thread."""

    def __init__(self) -> None:
        self.call_numbers: dict[Any, int] = {}
        self.invariants: dict[int, Value] = {}
        """Values that the program marked with `invariant`, by id(). They are kept alive, so that ids stay unique."""
        self.body: dict[int, RecordedCall] = {}
        """The recorded calls that the pipeline should run ahead of the program, by call number."""
        self.times_seen: dict[int, int] = {}
        """For each call that the pipeline does not run, by call number: in how many iterations the program made it."""
        self.results_read: set[ResultKey] = set()
        """Keys of the results that the pipeline returns because the program reads them, or no other call uses them."""
        self.devices: dict[ResultKey, Device] = {}
        """Device of each result of a call, by the result's key."""
        self.first_draws: dict[int, tuple[int, int]] = {}
        """For each random generator, by id(): (number of the first draw in an iteration, number of this iteration)."""
        self.forecast = RngForecast()
        self.pipeline: CapturedPipeline | None = None
        self.start = 0
        """Number of the first iteration of this loop; for a source, the number of batches received from it."""
        self.pending: deque[tuple[Data, ...]] = deque()
        """For a loop over a source: batches that were taken from it ahead, and not received by the loop yet."""
        self.passed_on = 0
        """Number of batches in ``pending`` that were already passed to the pipeline."""
        self.missed_result = False
        """Whether the program has read a result that the pipeline lacks, so that its graph must be built again."""
        self._count = self._not_before = self._graphs = 0
        self._said: set[str] = set()

    def forget(self) -> None:
        """Stop and drop the pipeline. The recorded calls are kept."""
        if self.pipeline is not None:
            self.pipeline.stop()
        self.pipeline, self.passed_on = None, 0

    def note(self, step: LoopIteration) -> None:
        """Record the calls of the finished iteration ``step``. Build the pipeline again if this pays off."""
        self._count += 1
        if len(self.call_numbers) > _MAX_RECORDED_CALLS:  # too many: their constants differ in each iteration
            for cached in (
                self.call_numbers,
                self.body,
                self.times_seen,
                self.invariants,
                self.results_read,
                self.devices,
            ):
                cached.clear()
            self.forget()
            return
        self._note_draws(step)
        unknown = [c for c in step.tape if c.number not in self.body]
        self.body |= {c.number: c for c in step.tape if c.number in self.body}
        for call in unknown:
            self.times_seen[call.number] = self.times_seen.get(call.number, 0) + 1
        known = [c for c in unknown if not self._graphs or self.times_seen[c.number] > 1]
        missing = self.missed_result and self.pipeline is not None and not self.results_read <= self.pipeline.gives
        self.missed_result = False
        if not (self.pipeline is None or known or missing or step.unexpected) or self._count < self._not_before:
            return
        self.body |= {c.number: c for c in known}
        self._begin(step)

    def _note_draws(self, step: LoopIteration) -> None:
        generators = {id(c.rng): c.rng for c in step.tape if c.rng is not None}
        places: dict[int, tuple[RNG, int, int, int]] = {}
        for key, rng in generators.items():
            first = step.first[key]
            before, at = self.first_draws.get(key, (0, -1))
            # The program may draw in between, so the distance of two bodies' first draws says more than the draws of
            # one body.
            each = first - before if at == step.iteration - 1 and first > before else rng.place - first
            places[key] = rng, step.iteration, first + each, each
            self.first_draws[key] = first, step.iteration
        self.forecast.note(places)

    def _begin(self, step: LoopIteration) -> None:
        """Start the pipeline that runs the recorded calls ahead of the program, from the next iteration on."""
        self.forget()
        self._graphs += 1
        self._not_before = self._count + min(2**self._graphs, _MAX_REBUILD_INTERVAL)
        drawn = {id(c.rng) for c in step.tape}
        body = [c for _, c in sorted(self.body.items()) if c.rng is None or id(c.rng) in drawn]
        try:
            self.pipeline = step.make_pipeline(body, self.results_read)
        except SpecError as e:
            self._say("captured loop", f"{calls.line()}: the body runs as usual, not as a pipeline: {e}")
            return
        for call in body:
            if call.number in self.pipeline.refused:
                self.say(call.where, call.name, self.pipeline.refused[call.number])

    def say(self, location: str, name: str, why: str) -> None:
        """Warn the user that the call ``name`` in a captured loop runs in each iteration and not ahead, for the reason
        ``why``. Each warning appears once."""
        self._say(
            f"{location} {name}", f"{location}: {name}: the call is made in each iteration, and not ahead of it: {why}"
        )

    def _say(self, key: str, text: str) -> None:
        if key not in self._said:
            self._said.add(key)
            warn(text)


class LoopIteration:
    """One iteration of a captured loop. A call in it returns the result that the pipeline has computed ahead, or runs
    at once if there is none. Created by `run`, used by the program's thread."""

    def __init__(
        self, loop: Loop, iteration: int, ready: IterationInputs | None, make: Callable[..., CapturedPipeline]
    ) -> None:
        self.loop = loop
        self.iteration = iteration
        self.ready = ready
        self.make_pipeline = make
        self.tape: list[RecordedCall] = []
        self.first: dict[int, int] = {}
        """For each random generator, by id(), the number of its first draw in this iteration."""
        self.unexpected = False
        """Whether a random generator had another state than the pipeline predicted."""
        self._taken: set[ResultKey] = set()
        self._repeated: dict[Any, int] = {}

    # -- the program's values -----------------------------------------------------------------------------------------

    def note_read(self, place: ResultKey) -> None:
        """Record that the program reads the result with the key ``place``."""
        loop = self.loop
        loop.results_read.add(place)
        if self.ready is not None and place not in self.ready.values:
            loop.missed_result = True

    def roots(self, outputs: int, otherwise: Callable[[], tuple[Data, ...]]) -> list[Value]:
        """Return the values that the loop yields in this iteration. A value that the pipeline did not return is read
        with ``otherwise`` when the program needs it."""
        later = calls.DeferredCall(otherwise, (), True)
        return [self._value((ROOT, k), True, True, later, None) for k in range(outputs)]

    def _value(
        self, place: ResultKey, is_batch: bool, sure: bool, later: calls.DeferredCall, data: Data | None
    ) -> Value:
        """Return the value with the key ``place`` in this iteration. It is ``data``, or the pipeline's result, or what
        the deferred call ``later`` will compute. ``sure``: whether the value equals the one in the pipeline."""
        if data is None and self.ready is not None:
            data = self.ready.values.get(place)
        value: Value = made(_KINDS[is_batch], data, None if data is not None else (later, max(place[1], 0)))
        if data is None:
            later.size = None if self.ready is None else len(self.ready.samples)
            later.device = self.loop.devices.get(place)
        value.trace = self, place, sure
        return value

    # -- calls --------------------------------------------------------------------------------------------------------

    def invoke(
        self, plan: calls.CallPlan, values: list[Value], named: dict[str, Value], n: int | None,
        state: calls.State | None, rng: RNG | None,
    ) -> Any:  # fmt: skip
        """Return the results of a call in the loop's body, which runs only if the pipeline has not run it."""
        known_refs = self._refs([*values, *named.values()], plan.op.name)
        if known_refs is None:
            return dispatch(plan, values, named, n, state)
        sure, refs = known_refs
        number = self._number(plan, refs, tuple(named), n)
        at = 0
        if rng is not None:
            before = rng.place - 7
            at = before - self.first.setdefault(id(rng), before)
        count = len(values)
        inputs, others = tuple(refs[:count]), tuple(zip(named, refs[count:], strict=True))
        self._note(RecordedCall(number, plan.op.name, self._where(number), plan, False, inputs, others, n, rng, at))
        ready = self.ready
        answered = ready is not None and sure and number in ready.made
        if answered and ready is not None and plan.random and ready.states.get(number) != state:
            self.unexpected, answered = True, False
        if answered:
            context = EvalContext.current()
            later = calls.DeferredCall(lambda: compute(plan, values, named, n, state, context), (), plan.stage == "cpu")
            results = [self._value((number, k), n is not None, True, later, None) for k in range(plan.outputs)]
        else:
            result = dispatch(plan, values, named, n, state)
            results = [result] if plan.outputs == 1 else list(result)
            self._learn(number, results)
        return results[0] if plan.outputs == 1 else tuple(results)

    def move(self, value: Value, device: Device) -> Value:
        """Return ``value`` of this iteration on ``device``: the pipeline's copy if there is one, else a new one."""
        known_refs = self._refs([value], "to_device")
        if known_refs is None or (not device.on_host and device.device_id != Device.default_device_id("gpu")):
            moved: Value = made(type(value), moved_to(value.data, device))
            return moved
        sure, refs = known_refs
        number = self.loop.call_numbers.setdefault(("move", device.on_host, *refs), len(self.loop.call_numbers))
        self._note(RecordedCall(number, "to_device", self._where(number), None, not device.on_host, tuple(refs), (),
                         None, None, 0))  # fmt: skip
        if self.ready is not None and sure and number in self.ready.made:
            later = calls.DeferredCall(lambda: (moved_to(value.computed_data(), device),), (), device.on_host)
            return self._value((number, 0), type(value) is Batch, True, later, None)
        moved = made(type(value), moved_to(value.computed_data(), device))
        self._learn(number, [moved])
        return moved

    def _refs(self, values: list[Value], name: str) -> tuple[bool, list[Any]] | None:
        """Return a pair for ``values``, the inputs of a call: whether the pipeline has equal values, and the keys of
        the values. Return None if an input is neither from this iteration nor `invariant`."""
        sure = True
        refs: list[Any] = []
        for v in values:
            if v.trace is not None and v.trace[0] is self:
                refs.append((v.trace[1], type(v) is Batch))
                sure = sure and v.trace[2]
            elif v.invariant:
                self.loop.invariants[id(v)] = v
                refs.append(v)
            else:
                self.loop.say(calls.line(), name, "it takes a value from outside of the loop; "
                              "dali_run.dynamic.capture.invariant promises that it stays the same")  # fmt: skip
                return None
        return sure, refs

    def _number(self, plan: calls.CallPlan, refs: list[Any], names: tuple[str, ...], n: int | None) -> int:
        key: Any = (plan, tuple(id(r) if isinstance(r, Value) else r for r in refs), names, n)
        if plan.random:  # equal random calls have different results
            again = self._repeated[key] = self._repeated.get(key, -1) + 1
            key = (*key, again)
        return self.loop.call_numbers.setdefault(key, len(self.loop.call_numbers))

    def _where(self, number: int) -> str:
        known = self.loop.body.get(number)
        return calls.line() if known is None else known.where

    def _note(self, call: RecordedCall) -> None:
        self.tape.append(call)
        for ref in (*call.inputs, *(r for _, r in call.named)):
            if not isinstance(ref, Value):
                self._taken.add(ref[0])

    def _learn(self, number: int, results: list[Value]) -> None:
        """Give keys to the results of a call that the pipeline did not run, so that calls with them can be recorded."""
        for k, value in enumerate(results):
            if value._data is not None:
                self.loop.devices[number, k] = value.device
            value.trace = self, (number, k), False

    def end(self) -> None:
        """Record the calls of this iteration, after the body has run."""
        outputs = {(c.number, k) for c in self.tape for k in range(1 if c.plan is None else c.plan.outputs)}
        self.loop.results_read |= outputs - self._taken
        self.loop.note(self)


def run(
    loop: Loop, start: int, count: int | None, make: Callable[..., CapturedPipeline], outputs: int,
    read_iteration: Callable[[int, IterationInputs | None], Callable[[], tuple[Data, ...]]], convert:
    Callable[[list[Value]], Any], before: Callable[[int], bool],
) -> Iterator[Any]:  # fmt: skip
    """Yield the values for the body of a captured loop, for ``count`` iterations (None: all) from number ``start`` on.
    ``make`` creates the pipeline that begins at an iteration. ``read_iteration`` returns a function that reads an
    iteration's values without the pipeline. ``convert`` converts the values for the body. ``before`` is called before
    each iteration, and returns False at the end."""
    if loop.pipeline is not None and loop.pipeline.iteration != start:  # the program continued at another iteration
        loop.forget()
    at = start
    while (count is None or at < start + count) and before(at):
        ready = None
        if loop.pipeline is not None:
            try:
                ready = loop.pipeline.take()
            except DeviceError:
                raise
            except Exception:  # the call that runs as usual raises it, at the program's line
                loop.forget()
        step = LoopIteration(loop, at, ready, lambda body, wanted, at=at: make(body, wanted, loop.forecast, at + 1))
        values = step.roots(outputs, read_iteration(at, ready))
        if ready is None:
            for k, value in enumerate(values):
                value.computed_data()
                loop.devices[ROOT, k] = value.device
        body = convert(values)
        at += 1
        loops.steps.append(step)
        try:
            yield body
        finally:
            loops.steps.remove(step)
        step.end()


def _captured_loop(earlier: tuple[int, Loop] | None, n: int) -> tuple[int, Loop]:
    """Return (batch size, captured loop): ``earlier`` if its batch size is ``n``, otherwise with a new loop."""
    if earlier is not None and earlier[0] == n:
        return earlier
    if earlier is not None:
        earlier[1].forget()
    return n, Loop()


def epoch(reader: Reader, n: int, context: EvalContext) -> Iterator[Any]:
    """Yield the batches of one epoch whose loop body is captured: `Reader.next_epoch` with ``capture``."""
    reader.captured = _captured_loop(reader.captured, n)
    loop: Loop = reader.captured[1]
    left = reader.begin_epoch()
    base = reader.position % n
    """Position, in the endless sequence of samples, at which iteration 0 would begin: iteration k begins at ``base + k
    n``."""
    if loop.start != base:
        loop.forget()
        loop.start = base
    root = reader.records(base)

    def make(body: list[RecordedCall], needed: set[ResultKey], forecast: RngForecast, at: int) -> CapturedPipeline:
        return CapturedPipeline(root, body, needed, forecast, n, at, context.num_threads, context.device_id)

    def read(at: int, ready: IterationInputs | None) -> Callable[[], tuple[Data, ...]]:
        samples = reader.chosen(base + at * n, n) if ready is None else ready.samples
        slot = samples.slot
        samples = samples if slot[0] == 0 else replace(samples, slot=slot - slot[0])
        return lambda: reader.read(samples)

    def given(values: list[Value]) -> Any:
        reader.took(n)
        return reader.named(values)

    yield from run(loop, reader.position // n, -(-left // n), make, reader.outputs, read, given, lambda _: True)


def source_epoch(source: ExternalSource, batch_size: int, context: EvalContext) -> Iterator[Any]:
    """Yield the batches of `ExternalSource.captured`. If the program leaves the loop early, the next loop begins with
    the batches that were already taken from the source."""
    source.captured_loop = _captured_loop(source.captured_loop, batch_size)
    loop: Loop = source.captured_loop[1]
    ended = False

    def take(count: int) -> None:
        nonlocal ended
        while not ended and len(loop.pending) < count:
            try:
                batches = source(batch_size=batch_size)
            except StopIteration:
                ended = True
                return
            loop.pending.append(tuple(v.data for v in (batches if isinstance(batches, tuple) else (batches,))))

    def before(at: int) -> bool:
        take(1 if loop.pipeline is None else _MAX_FED_BATCHES)
        if loop.pipeline is not None:
            while loop.passed_on < len(loop.pending):
                loop.pipeline.give(at + loop.passed_on, loop.pending[loop.passed_on])
                loop.passed_on += 1
        return bool(loop.pending)

    def make(body: list[RecordedCall], needed: set[ResultKey], forecast: RngForecast, at: int) -> CapturedPipeline:
        root = ProgramInputs(source.outputs)
        return CapturedPipeline(root, body, needed, forecast, batch_size, at, context.num_threads, context.device_id)

    def read(_at: int, _ready: IterationInputs | None) -> Callable[[], tuple[Data, ...]]:
        data = loop.pending.popleft()
        loop.passed_on = max(0, loop.passed_on - 1)
        return lambda: data

    def given(values: list[Value]) -> Any:
        loop.start += 1
        return values[0] if len(values) == 1 else tuple(values)

    yield from run(loop, loop.start, None, make, source.outputs, read, given, before)


_KINDS: dict[bool, Any] = {True: Batch}
