"""Captured loops: the body of a loop over a reader runs ahead of itself, as a pipeline.

The first body runs as any other, and the calls that depend on the reader alone are noted: their plans, and which values
they take. From then on threads read the next batches and make the same calls for them, ahead of the loop. A call of the
body that is one of those is given the result that is there already; any other runs as usual. So nothing is assumed of
the program's source, and nothing that it does can make a result wrong:

- another constant is another plan, and runs as usual;
- random calls were computed with the numbers that the generator was expected to give; what it really gives is
  compared, and where it differs the call runs again with that;
- a call that takes other values too (Tensors of the program's) runs as usual, unless they are `invariant`.
"""

from __future__ import annotations

import os
import threading
from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np

from ...ops.batch import Batch as Data
from ...ops.errors import DaliRunError
from ..engine import gil
from . import calls
from .contexts import EvalContext, ThreadPool
from .invocation import compute, dispatch, loops
from .rng import RNG
from .values import Batch, Value, as_tensor, value_of

if TYPE_CHECKING:
    from .readers import Reader
    from .sources import ExternalSource

T = TypeVar("T")
Place = tuple[int, int]
"""Of a value in a body: the number of the call that makes it, or -1 for the loop's own values; and which output."""
Root = Callable[[], tuple[Data, ...]]
"""Reads the loop's own values of one iteration."""
_ROOT = -1


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


@dataclass(frozen=True, slots=True, eq=False)
class Noted:
    """A call of the body."""

    number: int
    """Equal calls of different iterations have one number."""
    plan: calls.Plan
    inputs: tuple[Any, ...]
    """A `Place` and whether a batch stands there; or an invariant value."""
    named: tuple[tuple[str, Any], ...]
    n: int | None
    rng: RNG | None
    at: int
    """The generator's place before the call, from its place in the first random call of the body."""


Ready = dict[int, tuple[calls.State | None, tuple[Data, ...]]]
"""Results by the numbers of the calls, with the state of the random generator that they were made with."""


class Loop:
    """The record of a body, from the first iteration on, and the batches that are on their way."""

    def __init__(self) -> None:
        self.numbers: dict[Any, int] = {}
        self.held: dict[int, Value] = {}
        """Invariant values, kept so that no other value has their identity."""
        self.tape: list[Noted] = []
        """The calls of the last body."""
        self.draws: dict[int, tuple[RNG, int, int]] = {}
        """The body's generators: each with its place after the body, and the draws of one body."""
        self.waiting: deque[tuple[int, Root, Future[Any]]] = deque()
        """The iterations that are on their way, by their numbers."""
        self.base = 0
        """Where the numbers of iterations begin (of a source: how many there were)."""

    def forget(self) -> None:
        """Stop what is on its way."""
        for _, _, future in self.waiting:
            future.cancel()
        self.waiting.clear()

    def predicted(self, ahead: int) -> list[calls.State | None]:
        """The states of the tape's random calls, ``ahead`` iterations after the last one (the next is 0)."""
        states: list[calls.State | None] = []
        for call in self.tape:
            if call.rng is None:
                states.append(None)
                continue
            rng, end, each = self.draws[id(call.rng)]
            foreseen = rng.clone()
            foreseen.advance(end + ahead * each + call.at - rng.state.at)
            states.append(foreseen.seven())
        return states


class Step:
    """One iteration: its calls are answered from ``ready``, or run."""

    def __init__(self, loop: Loop, ready: Ready) -> None:
        self.loop = loop
        self.ready = ready
        self.tape: list[Noted] = []
        self.first: dict[int, int] = {}
        """The place of each generator before its first call here."""
        self.unexpected = False
        """A generator was not where it was expected."""
        self._repeated: dict[Any, int] = {}

    def invoke(
        self, plan: calls.Plan, values: list[Value], named: dict[str, Value], n: int | None,
        state: calls.State | None, rng: RNG | None,
    ) -> Any:  # fmt: skip
        """The results of a call: those that are ready, if the call is one that was expected."""
        sure = True
        refs: list[Any] = []
        for v in (*values, *named.values()):
            if v.trace is not None and v.trace[0] is self:
                refs.append((v.trace[1], type(v) is Batch))
                sure = sure and v.trace[2]
            elif v.invariant:
                self.loop.held[id(v)] = v
                refs.append(v)
            else:
                return dispatch(plan, values, named, n, state)
        number = self._number(plan, refs, tuple(named), n)
        at = 0
        if rng is not None:
            before = rng.place - 7
            at = before - self.first.setdefault(id(rng), before)
        many = len(values)
        self.tape.append(
            Noted(number, plan, tuple(refs[:many]), tuple(zip(named, refs[many:], strict=True)), n, rng, at)
        )
        found = self.ready.get(number) if sure else None
        if found is not None and found[0] != state:
            self.unexpected, found = True, None
        if found is None:
            result = dispatch(plan, values, named, n, state)
        else:
            made = tuple(value_of(data, n is not None) for data in found[1])
            result = made[0] if plan.outputs == 1 else made
        for k, value in enumerate((result,) if plan.outputs == 1 else result):
            value.trace = self, (number, k), found is not None
        return result

    def _number(self, plan: calls.Plan, refs: list[Any], names: tuple[str, ...], n: int | None) -> int:
        key: Any = (plan, tuple(id(r) if isinstance(r, Value) else r for r in refs), names, n)
        if plan.random:  # equal random calls differ
            again = self._repeated[key] = self._repeated.get(key, -1) + 1
            key = (*key, again)
        return self.loop.numbers.setdefault(key, len(self.loop.numbers))

    def end(self) -> None:
        """Remember what this body did."""
        loop = self.loop
        loop.tape = self.tape
        generators = {id(c.rng): c.rng for c in self.tape if c.rng is not None}
        loop.draws = {k: (rng, rng.place, rng.place - self.first[k]) for k, rng in generators.items()}


LAUNCHERS = 2
"""Threads that run a body ahead which launches on a GPU. More of them wait for the GIL at every launch, each with a
stream, and with what operators keep for it."""


@cache
def _launchers(_process: int) -> ThreadPool:
    return ThreadPool(LAUNCHERS, device_id=None)


class _Local(threading.local):
    def __init__(self) -> None:
        self.contexts: dict[int | None, EvalContext] = {}

    def context(self, device_id: int | None) -> EvalContext:
        """This thread's own, of one thread, with a stream of the GPU."""
        if device_id not in self.contexts:
            self.contexts[device_id] = EvalContext(num_threads=1, device_id=device_id)
        return self.contexts[device_id]


_local = _Local()


def _ahead(
    root: Root, tape: list[Noted], states: list[calls.State | None], device_id: int | None
) -> tuple[tuple[Data, ...], Ready]:
    """The work of a thread: the loop's own values, and the results of the calls of ``tape`` for them. A call that fails
    is left to the loop, which will raise at the program's line."""
    context = _local.context(device_id)
    with context:
        outputs = root()
    ready: Ready = {}

    def value(ref: Any) -> Value:
        if isinstance(ref, Value):
            return ref
        (number, k), many = ref
        made: Value = value_of(outputs[k] if number == _ROOT else ready[number][1][k], many)
        return made

    for call, state in zip(tape, states, strict=True):
        try:
            values, named = [value(r) for r in call.inputs], {name: value(r) for name, r in call.named}
            ready[call.number] = state, compute(call.plan, values, named, call.n, state, context)
        except (KeyError, DaliRunError):
            continue
    return outputs, ready


def run(
    loop: Loop, start: int, count: int | None, root_at: Callable[[int], Root | None],
    given: Callable[[tuple[Data, ...]], Any], context: EvalContext,
) -> Iterator[Any]:  # fmt: skip
    """The loop's values of ``count`` iterations (None: all), the first of which has the number ``start``.

    ``root_at`` is asked for the batches in their order, also beyond ``count``: what is on its way at the end of an
    epoch is the beginning of the next one. ``given`` makes what the body is given of a batch.
    """
    waiting = loop.waiting
    if waiting and waiting[0][0] != start:  # the program went on elsewhere
        loop.forget()

    def workers() -> ThreadPool:
        """The threads that run ahead: few where they launch, and these are not to wait for the GIL."""
        if all(c.plan.stage == "cpu" for c in loop.tape):
            return context.thread_pool
        gil.lower(id(loop))
        return _launchers(os.getpid())

    def send(number: int, root: Root, ahead: int) -> None:
        future = workers().submit(_ahead, root, list(loop.tape), loop.predicted(ahead), context.device_id)
        waiting.append((number, root, future))

    at, ended = start, False
    try:
        while count is None or at < start + count:
            while not ended and len(waiting) <= workers().num_threads:
                number = at + len(waiting)
                root = root_at(number)
                ended = root is None
                if root is not None:
                    send(number, root, len(waiting))
            if not waiting:
                return
            outputs, ready = waiting.popleft()[2].result()
            at += 1
            step = Step(loop, ready)
            body = given(outputs)
            values = body.values() if isinstance(body, dict) else body if isinstance(body, tuple) else (body,)
            for k, value in enumerate(values):
                value.trace = step, (_ROOT, k), True
            loops.steps.append(step)
            try:
                yield body
            finally:
                loops.steps.remove(step)
            is_first = not loop.tape
            step.end()
            if step.unexpected or is_first:  # what is on its way does not know this body
                again = list(waiting)
                loop.forget()
                for ahead, (number, root, _) in enumerate(again):
                    send(number, root, ahead)
    finally:
        gil.restore(id(loop))


def epoch(reader: Reader, n: int, context: EvalContext) -> Iterator[Any]:
    """`Reader.next_epoch` with ``capture``."""
    if reader.captured is None or reader.captured[0] != n:
        reader.captured = n, Loop()
    loop: Loop = reader.captured[1]
    left = reader.begin_epoch()
    base = reader.position % n
    """Iterations are numbered by their places in the endless sequence, which they divide from here on."""
    if loop.base != base:
        loop.forget()
        loop.base = base

    def root_at(number: int) -> Root:
        samples = reader.chosen(base + number * n, n)
        return lambda: reader.read(samples)

    def given(outputs: tuple[Data, ...]) -> Any:
        reader.took(n)
        return reader.given(outputs, True)

    yield from run(loop, reader.position // n, -(-left // n), root_at, given, context)


def source_epoch(source: ExternalSource, batch_size: int, context: EvalContext) -> Iterator[Any]:
    """`ExternalSource.captured`. What was taken of the source when the loop is left comes first in the next one."""
    if source.captured_loop is None or source.captured_loop[0] != batch_size:
        source.captured_loop = batch_size, Loop()
    loop: Loop = source.captured_loop[1]

    def root_at(_: int) -> Root | None:
        try:
            taken = source(batch_size=batch_size)
        except StopIteration:
            return None
        data = tuple(v.data for v in (taken if isinstance(taken, tuple) else (taken,)))
        return lambda: data

    def given(outputs: tuple[Data, ...]) -> Any:
        loop.base += 1
        values = tuple(value_of(data, True) for data in outputs)
        return values[0] if len(values) == 1 else values

    yield from run(loop, loop.base, None, root_at, given, context)
