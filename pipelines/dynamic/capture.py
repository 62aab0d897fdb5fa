"""Captured loops: the body of a loop over a reader becomes a pipeline, which runs ahead of the loop.

The first body runs like any other code, and the calls that depend on the reader alone are recorded: their plans, their
inputs, and which results the program reads. `captured_pipeline` makes a graph of these calls, compiled once, which the
engine runs ahead of the loop, like any pipeline. A call of the body that equals a recorded one gets the result that is
ready; any other runs as usual. So nothing is assumed of the program's source, and nothing that it does can make a
result wrong:

- another constant is another call, and runs as usual;
- random calls were made with the numbers that the generator was expected to give; what it really gives is compared,
  and where it differs the call runs again with that;
- a call that takes other values too (Tensors of the program's) runs as usual, unless they are `invariant`;
- a result that the pipeline keeps to itself is made again when the program asks for it after all;
- a batch with a sample that fails is left to the loop, which raises the error at the program's line.

Where bodies go on otherwise, the graph is made anew: at once the first time, later ever more rarely.
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
from .captured_pipeline import ROOT, CapturedPipeline, IterationInputs, Place, ProgramInputs, RecordedCall, RngForecast
from .contexts import EvalContext
from .data import moved_to
from .devices import Device
from .rng import RNG
from .values import Batch, Value, as_tensor, compute, dispatch, loops, made, value_of

if TYPE_CHECKING:
    from .readers import Reader
    from .sources import ExternalSource

T = TypeVar("T")
_FORGET = 4096
"""Different calls that are remembered of a body."""
_FED = 4
"""Batches that a source is asked for ahead of the loop."""
_RAREST = 1024
"""Iterations between two graphs, at most."""


def invariant(value: T) -> T:
    """Promise that ``value``, an array, Tensor or Batch, stays the same in every iteration of a captured loop, so that
    calls which take it run ahead, too. Numbers, texts and lists need no promise: they are compared."""
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
    """The record of a body, from the first iteration on, and its pipeline."""

    def __init__(self) -> None:
        self.numbers: dict[Any, int] = {}
        self.held: dict[int, Value] = {}
        """Invariant values, kept so that no other value has their identity."""
        self.body: dict[int, RecordedCall] = {}
        """The calls that the pipeline makes, or may make."""
        self.often: dict[int, int] = {}
        """The bodies in which other calls were made."""
        self.wanted: set[Place] = set()
        """Results that the program has looked at, or that no call of the body takes."""
        self.devices: dict[Place, Device] = {}
        """Where results are."""
        self.firsts: dict[int, tuple[int, int]] = {}
        """Each generator's place before the first draw of a body, and the number of that iteration."""
        self.forecast = RngForecast()
        self.ahead: CapturedPipeline | None = None
        self.base = 0
        """Where the numbers of iterations begin (of a source: how many there were)."""
        self.taken: deque[tuple[Data, ...]] = deque()
        """Of a source: batches that the loop was not given yet."""
        self.fed = 0
        """How many of them the pipeline has."""
        self.missed = False
        """The program has looked at a result that the pipeline had kept to itself."""
        self._count = self._not_before = self._graphs = 0
        self._said: set[str] = set()

    def forget(self) -> None:
        """Stop the pipeline."""
        if self.ahead is not None:
            self.ahead.stop()
        self.ahead, self.fed = None, 0

    def note(self, step: Step) -> None:
        """Remember what a body did, and make the graph anew where that is worth it."""
        self._count += 1
        if len(self.numbers) > _FORGET:  # constants that are others each time
            for kept in (self.numbers, self.body, self.often, self.held, self.wanted, self.devices):
                kept.clear()
            self.forget()
            return
        self._note_draws(step)
        unknown = [c for c in step.tape if c.number not in self.body]
        self.body |= {c.number: c for c in step.tape if c.number in self.body}
        for call in unknown:
            self.often[call.number] = self.often.get(call.number, 0) + 1
        known = [c for c in unknown if not self._graphs or self.often[c.number] > 1]
        missing = self.missed and self.ahead is not None and not self.wanted <= self.ahead.gives
        self.missed = False
        if not (self.ahead is None or known or missing or step.unexpected) or self._count < self._not_before:
            return
        self.body |= {c.number: c for c in known}
        self._begin(step)

    def _note_draws(self, step: Step) -> None:
        generators = {id(c.rng): c.rng for c in step.tape if c.rng is not None}
        places: dict[int, tuple[RNG, int, int, int]] = {}
        for key, rng in generators.items():
            first = step.first[key]
            before, at = self.firsts.get(key, (0, -1))
            # by what the program draws besides, the places of two bodies say more than that of one and its end
            each = first - before if at == step.iteration - 1 and first > before else rng.place - first
            places[key] = rng, step.iteration, first + each, each
            self.firsts[key] = first, step.iteration
        self.forecast.note(places)

    def _begin(self, step: Step) -> None:
        """Make the pipeline that runs ahead from the next iteration on."""
        self.forget()
        self._graphs += 1
        self._not_before = self._count + min(2**self._graphs, _RAREST)
        drawn = {id(c.rng) for c in step.tape}
        body = [c for _, c in sorted(self.body.items()) if c.rng is None or id(c.rng) in drawn]
        try:
            self.ahead = step.pipeline(body, self.wanted)
        except SpecError as e:
            self._say("captured loop", f"{calls.line()}: the body runs as usual, not as a pipeline: {e}")
            return
        for call in body:
            if call.number in self.ahead.refused:
                self.say(call.where, call.name, self.ahead.refused[call.number])

    def say(self, where: str, name: str, why: str) -> None:
        """Tell the program, once, of a call that its captured body makes as usual."""
        self._say(f"{where} {name}", f"{where}: {name}: the call is made in each iteration, and not ahead of it: {why}")

    def _say(self, key: str, text: str) -> None:
        if key not in self._said:
            self._said.add(key)
            warn(text)


class Step:
    """One iteration: its calls are answered by the pipeline, or run."""

    def __init__(
        self, loop: Loop, iteration: int, ready: IterationInputs | None, make: Callable[..., CapturedPipeline]
    ) -> None:
        self.loop = loop
        self.iteration = iteration
        self.ready = ready
        self.pipeline = make
        self.tape: list[RecordedCall] = []
        self.first: dict[int, int] = {}
        """The place of each generator before its first call here."""
        self.unexpected = False
        """A generator was not where it was expected."""
        self._taken: set[Place] = set()
        self._repeated: dict[Any, int] = {}

    # -- the program's values -----------------------------------------------------------------------------------------

    def asked(self, place: Place) -> None:
        """The program looks at a result."""
        loop = self.loop
        loop.wanted.add(place)
        if self.ready is not None and place not in self.ready.values:
            loop.missed = True

    def roots(self, outputs: int, otherwise: Callable[[], tuple[Data, ...]]) -> list[Value]:
        """The loop's own values; those that the pipeline kept to itself are made by ``otherwise``."""
        later = calls.DeferredCall(otherwise, (), True)
        return [self._value((ROOT, k), True, True, later, None) for k in range(outputs)]

    def _value(self, place: Place, many: bool, sure: bool, later: calls.DeferredCall, data: Data | None) -> Value:
        """A value of this iteration: ``data``, or what the pipeline has, or what will be made ``later``."""
        if data is None and self.ready is not None:
            data = self.ready.values.get(place)
        value: Value = made(_KINDS[many], data, None if data is not None else (later, max(place[1], 0)))
        if data is None:
            later.size = None if self.ready is None else len(self.ready.samples)
            later.device = self.loop.devices.get(place)
        value.trace = self, place, sure
        return value

    # -- calls --------------------------------------------------------------------------------------------------------

    def invoke(
        self, plan: calls.Plan, values: list[Value], named: dict[str, Value], n: int | None,
        state: calls.State | None, rng: RNG | None,
    ) -> Any:  # fmt: skip
        """The results of a call: the pipeline's, if it was expected."""
        found = self._refs([*values, *named.values()], plan.op.name)
        if found is None:
            return dispatch(plan, values, named, n, state)
        sure, refs = found
        number = self._number(plan, refs, tuple(named), n)
        at = 0
        if rng is not None:
            before = rng.place - 7
            at = before - self.first.setdefault(id(rng), before)
        many = len(values)
        inputs, others = tuple(refs[:many]), tuple(zip(named, refs[many:], strict=True))
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

    def move(self, value: Value, wanted: Device) -> Value:
        """``value``, which is of this iteration, on another device."""
        found = self._refs([value], "to_device")
        if found is None or (not wanted.on_host and wanted.device_id != Device.default_device_id("gpu")):
            moved: Value = made(type(value), moved_to(value.data, wanted))
            return moved
        sure, refs = found
        number = self.loop.numbers.setdefault(("move", wanted.on_host, *refs), len(self.loop.numbers))
        self._note(RecordedCall(number, "to_device", self._where(number), None, not wanted.on_host, tuple(refs), (),
                         None, None, 0))  # fmt: skip
        if self.ready is not None and sure and number in self.ready.made:
            later = calls.DeferredCall(lambda: (moved_to(value.held(), wanted),), (), wanted.on_host)
            return self._value((number, 0), type(value) is Batch, True, later, None)
        moved = made(type(value), moved_to(value.held(), wanted))
        self._learn(number, [moved])
        return moved

    def _refs(self, values: list[Value], name: str) -> tuple[bool, list[Any]] | None:
        """Whether all of ``values`` are as they were expected, and which they are; None where one is the program's."""
        sure = True
        refs: list[Any] = []
        for v in values:
            if v.trace is not None and v.trace[0] is self:
                refs.append((v.trace[1], type(v) is Batch))
                sure = sure and v.trace[2]
            elif v.invariant:
                self.loop.held[id(v)] = v
                refs.append(v)
            else:
                self.loop.say(calls.line(), name, "it takes a value from outside of the loop; "
                              "dali_run.dynamic.capture.invariant promises that it stays the same")  # fmt: skip
                return None
        return sure, refs

    def _number(self, plan: calls.Plan, refs: list[Any], names: tuple[str, ...], n: int | None) -> int:
        key: Any = (plan, tuple(id(r) if isinstance(r, Value) else r for r in refs), names, n)
        if plan.random:  # equal random calls differ
            again = self._repeated[key] = self._repeated.get(key, -1) + 1
            key = (*key, again)
        return self.loop.numbers.setdefault(key, len(self.loop.numbers))

    def _where(self, number: int) -> str:
        known = self.loop.body.get(number)
        return calls.line() if known is None else known.where

    def _note(self, call: RecordedCall) -> None:
        self.tape.append(call)
        for ref in (*call.inputs, *(r for _, r in call.named)):
            if not isinstance(ref, Value):
                self._taken.add(ref[0])

    def _learn(self, number: int, results: list[Value]) -> None:
        """Mark results that were made as usual."""
        for k, value in enumerate(results):
            if value._data is not None:
                self.loop.devices[number, k] = value.device
            value.trace = self, (number, k), False

    def end(self) -> None:
        """The body is over."""
        outputs = {(c.number, k) for c in self.tape for k in range(1 if c.plan is None else c.plan.outputs)}
        self.loop.wanted |= outputs - self._taken
        self.loop.note(self)


def run(
    loop: Loop, start: int, count: int | None, make: Callable[..., CapturedPipeline], outputs: int,
    read: Callable[[int, IterationInputs | None], Callable[[], tuple[Data, ...]]], given: Callable[[list[Value]], Any],
    before: Callable[[int], bool],
) -> Iterator[Any]:  # fmt: skip
    """The loop's values of ``count`` iterations (None: all), the first of which has the number ``start``.

    ``make`` makes the pipeline of a body from an iteration on; ``read`` gives what reads an iteration without it;
    ``given`` makes what the body is given; ``before`` is called before each iteration, and says whether there is one.
    """
    if loop.ahead is not None and loop.ahead.iteration != start:  # the program went on elsewhere
        loop.forget()
    at = start
    while (count is None or at < start + count) and before(at):
        ready = None
        if loop.ahead is not None:
            try:
                ready = loop.ahead.take()
            except DeviceError:
                raise
            except Exception:  # as usual, it is raised at the program's line
                loop.forget()
        step = Step(loop, at, ready, lambda body, wanted, at=at: make(body, wanted, loop.forecast, at + 1))
        values = step.roots(outputs, read(at, ready))
        if ready is None:
            for k, value in enumerate(values):
                value.held()
                loop.devices[ROOT, k] = value.device
        body = given(values)
        at += 1
        loops.steps.append(step)
        try:
            yield body
        finally:
            loops.steps.remove(step)
        step.end()


def epoch(reader: Reader, n: int, context: EvalContext) -> Iterator[Any]:
    """`Reader.next_epoch` with ``capture``."""
    if reader.captured is None or reader.captured[0] != n:
        if reader.captured is not None:
            reader.captured[1].forget()
        reader.captured = n, Loop()
    loop: Loop = reader.captured[1]
    left = reader.begin_epoch()
    base = reader.position % n
    """Iterations are numbered by their places in the endless sequence, which they divide from here on."""
    if loop.base != base:
        loop.forget()
        loop.base = base
    root = reader.records(base)

    def make(body: list[RecordedCall], wanted: set[Place], forecast: RngForecast, at: int) -> CapturedPipeline:
        return CapturedPipeline(root, body, wanted, forecast, n, at, context.num_threads, context.device_id)

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
    """`ExternalSource.captured`. What was taken of the source when the loop is left comes first in the next one."""
    if source.captured_loop is None or source.captured_loop[0] != batch_size:
        if source.captured_loop is not None:
            source.captured_loop[1].forget()
        source.captured_loop = batch_size, Loop()
    loop: Loop = source.captured_loop[1]
    ended = False

    def take(most: int) -> None:
        nonlocal ended
        while not ended and len(loop.taken) < most:
            try:
                taken = source(batch_size=batch_size)
            except StopIteration:
                ended = True
                return
            loop.taken.append(tuple(v.data for v in (taken if isinstance(taken, tuple) else (taken,))))

    def before(at: int) -> bool:
        take(1 if loop.ahead is None else _FED)
        if loop.ahead is not None:
            while loop.fed < len(loop.taken):
                loop.ahead.give(at + loop.fed, loop.taken[loop.fed])
                loop.fed += 1
        return bool(loop.taken)

    def make(body: list[RecordedCall], wanted: set[Place], forecast: RngForecast, at: int) -> CapturedPipeline:
        root = ProgramInputs(source.outputs)
        return CapturedPipeline(root, body, wanted, forecast, batch_size, at, context.num_threads, context.device_id)

    def read(_at: int, _ready: IterationInputs | None) -> Callable[[], tuple[Data, ...]]:
        data = loop.taken.popleft()
        loop.fed = max(0, loop.fed - 1)
        return lambda: data

    def given(values: list[Value]) -> Any:
        loop.base += 1
        return values[0] if len(values) == 1 else tuple(values)

    yield from run(loop, loop.base, None, make, source.outputs, read, given, before)


_KINDS: dict[bool, Any] = {True: Batch}
