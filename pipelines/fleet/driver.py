"""The driver: gives parts of a job to workers, wherever they are, hears how far they are, and takes back what the lost
ones had. It holds nothing that the journals do not: killed, it starts again from them."""

from __future__ import annotations

import contextlib
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol, TypeVar

from ...ops.errors import JobError, SpecError
from ...writers.shards.rejects import RejectCounter, RejectLimit
from ..job.run import FAILED, INTERRUPTED, Progress
from ..wording import count
from .job_output import JobOutput, Part
from .messages import PATIENCE, Message
from .reports import Worked
from .watch import Standing, Watch

_TRIES = 3
"""Times that a part may fail before it is left alone."""
_BUSY_WAIT = 2.0
_BUSY_MOST = 20 * 60.0
"""Seconds to wait for a part that somebody else writes: a store's lock of a dead machine is stale after 15 minutes."""
_AHEAD = 4
"""A part is given ahead where it is at most such a part of what is left for each worker."""
_CHECK = 10.0
_SHOW = 0.1
_POLL = 0.5


class _TooManyRejectsError(JobError):
    """All workers together have rejected more samples than are allowed: so many."""

    def __init__(self, counted: int) -> None:
        super().__init__(f"{counted} rejects are too many")
        self.counted = counted


class Worker(Protocol):
    """A worker, as the driver sees it."""

    @property
    def name(self) -> str: ...
    @property
    def node(self) -> str:
        """Its machine."""


W = TypeVar("W", bound=Worker)


class WorkerGroup(Protocol[W]):
    """Where workers come from: this machine's processes, a cluster's actors."""

    def room(self) -> int:
        """How many workers there are, or could be; 0 where none will come any more."""

    def fill(self, wanted: int) -> None:
        """Start workers until there are ``wanted``, as far as there is room."""

    def poll(self, seconds: float) -> Sequence[tuple[W, Message]]:
        """The messages of workers within ``seconds``."""

    def give(self, worker: W, order: Message) -> None:
        """Tell a worker what to do."""

    def stop(self) -> None:
        """Ask all workers to publish what is complete, and to end."""


class WorkerState:
    """The driver's record of a worker."""

    def __init__(self, worker: Worker) -> None:
        self.worker = worker
        self.worked = Worked(worker.name, worker.node)
        self.ready = False
        self.ends = False
        """It has failed, and takes no more parts: its process ends by itself, and a fresh one may have better luck."""
        self.process: Mapping[str, Any] = {}
        self.parts: deque[Part] = deque()
        """The one that it runs, and the next."""
        self.left = self.rejected = 0
        """Of the part that it runs, by its last word."""
        self.done = self.refused = self.finished = 0
        """Samples that it read and that it rejected in parts that it finished, and their number."""
        self.idle_since = 0.0
        """When it had no part any more."""


class Driver:
    """One run of a job by a group."""

    def __init__(
        self, whole: JobOutput, group: WorkerGroup[Any], reject_limit: RejectLimit, device: str,
        progress: Callable[[Progress], None], note: Callable[[str], None], facts: Mapping[str, Any] | None = None,
    ) -> None:  # fmt: skip
        """``facts`` are said of the job where it is watched: name, output."""
        self.whole = whole
        self.group = group
        self.parts: list[Part] = []
        self._left = 0
        """Samples to do in this run."""
        self.read = 0
        """Samples of finished parts of this run."""
        self._reject_limit = reject_limit
        self._device = device
        self._progress = progress
        self._note = note
        self._states: dict[int, WorkerState] = {}
        self._everyone: list[Worked] = []
        self._todo: deque[Part] = deque()
        self._later: list[tuple[float, Part]] = []
        """Parts that somebody else holds: when to ask again."""
        self._busy_since: dict[int, float] = {}
        self._idle: dict[WorkerState, None] = {}
        """Workers without a part."""
        self._soon: dict[WorkerState, None] = {}
        """Those of them that are nearly done with it, and could begin another."""
        self._with_one: dict[WorkerState, None] = {}
        """Workers that run their only part."""
        self._dead: list[Mapping[str, Any]] = []
        self._who: Mapping[str, Any] | None = None
        self._span = range(0)
        self._fails_in_a_row = self._most = 0
        self._failure = ""
        """The last failure that a worker told of, or how one was lost."""
        self._no_device = 0
        """Workers that found no GPU that works."""
        self._reject_counter: RejectCounter | None = None
        self._before = (0, 0, 0)
        self.totals = [0, 0, 0]
        """Samples written, rejected and left out by all parts, earlier runs included."""
        self._rejecting = False
        self._shown = 0.0
        self.watch = Watch()
        self._facts = facts or {}
        self._left_behind: dict[tuple[str, str], list[int]] = {}
        """Samples, rejects and parts of workers that are gone, by name and machine."""
        self.began = time.perf_counter()

    # -- results ------------------------------------------------------------------------------------------------------

    @property
    def workers(self) -> list[Worked]:
        """Everyone that worked."""
        return self._everyone

    @property
    def counts(self) -> dict[str, int]:
        """Samples of this run."""
        names = ("written", "rejected", "left_out")
        changes = {k: now - was for k, now, was in zip(names, self.totals, self._before, strict=True)}
        if not self.whole.config.leaves_out:
            del changes["left_out"]
        return {"read": self.read, **changes}

    # -- the loop -----------------------------------------------------------------------------------------------------

    def run(self) -> tuple[int, str]:
        """Until all parts are finished: (0, ""), or the exit code and why it ended earlier. Raises what keeps the job
        from being opened."""
        try:
            checked = time.monotonic()
            while self._who is None or self._unfinished():
                room = self.group.room()
                if not room and not self._states:
                    return FAILED, self._nobody_left()
                self.group.fill(room if self._who is None else min(room, self._wanted()))
                for worker, told in self.group.poll(_POLL):
                    self._hear(self._state_of(worker), told)
                self._hand_out()
                self._show()
                if time.monotonic() - checked > _CHECK:
                    checked = time.monotonic()
                    self.whole.check()
        except KeyboardInterrupt:
            self._wind_up()
            done = sum(p.done for p in self.parts)
            return INTERRUPTED, (f"interrupted with {done} of {count(len(self.parts), 'part')} done; run the same "
                                 "command again: it continues")  # fmt: skip
        except _TooManyRejectsError as e:
            self._wind_up()
            return FAILED, self._too_many_rejects(e.counted)
        except JobError as e:
            self._wind_up()
            if self._who is None:
                raise  # nothing was begun
            return FAILED, str(e)
        for state in self._idle:
            state.worked.idle += time.monotonic() - state.idle_since
        failed = [p for p in self.parts if not p.done]
        if failed:
            first = failed[0]
            return FAILED, (
                f"{count(len(failed), 'part')} of {len(self.parts)} failed {_TRIES} times, the rest is done. Part "
                f"{first.number}: {first.problem}. Run the same command again: it continues"
            )
        return 0, ""

    def _unfinished(self) -> bool:
        return bool(self._todo or self._later or any(h.parts for h in self._states.values()))

    def _wanted(self) -> int:
        """Workers that can have something to do."""
        return len(self._todo) + len(self._later) + len(self._states)

    def _nobody_left(self) -> str:
        why = f" The last failure: {self._failure}." if self._failure else ""
        return f"no worker is left.{why} Run the same command again: it continues after the last finished shards"

    def _too_many_rejects(self, counted: int) -> str:
        """The message for more rejects than are allowed, as one process gives it: with their codes, and the first."""
        assert self._reject_counter is not None
        rows, begun = self.whole.publish_rejects(), self.whole.begun()
        self._reject_counter.seen = sum(c.stop - c.header["range"][0] for c in begun[1].values()) if begun else 0
        try:
            self._reject_counter.add(0, rows)
            self._reject_counter.rejected = counted  # more than are in the logs of workers that did not end politely
            self._reject_counter.finish()
        except JobError as e:
            return str(e)
        raise AssertionError("too many rejects were counted")

    def _wind_up(self) -> None:
        """Let workers publish what is complete; their parts are the next run's."""
        self.group.stop()
        deadline = time.monotonic() + PATIENCE
        while any(h.parts for h in self._states.values()) and time.monotonic() < deadline:
            for worker, told in self.group.poll(_POLL):
                state = self._states.get(id(worker))
                if state is not None and "gone" in told:
                    del self._states[id(worker)]
                elif state is not None and "ended" in told:
                    with contextlib.suppress(JobError):
                        self._ended(state, told)

    # -- hearing ------------------------------------------------------------------------------------------------------

    def _state_of(self, worker: Worker) -> WorkerState:
        if id(worker) not in self._states:
            state = self._states[id(worker)] = WorkerState(worker)
            self._everyone.append(state.worked)
            self._most = max(self._most, len(self._states))
        return self._states[id(worker)]

    def _hear(self, state: WorkerState, told: Message) -> None:
        """Take a message."""
        if "opened" in told:
            self._welcome(state, told)
        elif "at" in told:
            if state.parts and told["at"] == state.parts[0].number:  # else the next one has begun, too
                state.left, state.rejected = told["left"], told["rejected"]
                self._rejecting |= state.rejected > 0
        elif "soon" in told:
            if len(state.parts) == 1 and told["soon"] == state.parts[0].number:
                self._soon[state] = None
        elif "busy" in told:
            self._busy(state, told)
        elif "ended" in told:
            self._ended(state, told)
        elif "problem" in told:
            self._problem(state, told)
        elif "gone" in told:
            self._gone(state, told["gone"])

    def _welcome(self, state: WorkerState, told: Message) -> None:
        """A worker has opened the job. Raises JobError where it sees other data than those before."""
        state.process = told["process"]
        state.worked.node = state.worker.node
        span = range(*told["opened"])
        if self._who is None:
            self._begin(span, told["who"])
        elif told["who"] != self._who or span != self._span:
            self.group.give(state.worker, {"stop": True})
            raise JobError(
                f"{state.worker.name} on {state.worker.node} sees other inputs, or has other versions, than the "
                "workers before it: all need the same data at the same place, and the same software"
            )
        state.ready = True
        self._feed(state)

    def _begin(self, span: range, who: Mapping[str, Any]) -> None:
        self._span, self._who = span, who
        self.parts = self.whole.parts(span, who, max(1, self.group.room()), self._device)
        self._before = (sum(p.written for p in self.parts), sum(p.rejected for p in self.parts),
                        sum(p.left_out for p in self.parts))  # fmt: skip
        self.totals = list(self._before)
        self._todo.extend(p for p in self.parts if not p.done)
        self._left = sum(p.left for p in self.parts if not p.done)
        self._reject_counter = RejectCounter(self._reject_limit, len(span), f"{self.whole.config.where}/rejects.jsonl")
        self.began = time.perf_counter()

    def _ended(self, state: WorkerState, told: Message) -> None:
        part = state.parts.popleft()
        state.ends |= told["code"] == FAILED
        self._feed(state)
        state.left = state.rejected = 0
        if told["report"]:
            state.worked.reports.append(told["report"])
        self.totals[0] += told["written"] - part.written
        self.totals[1] += told["rejected"] - part.rejected
        self.totals[2] += told.get("left_out", 0) - part.left_out
        before = part.rejected
        part.written, part.rejected, part.left_out = told["written"], told["rejected"], told.get("left_out", 0)
        if told["code"] in (FAILED, INTERRUPTED):
            self._count_rejects()
            if told.get("final"):
                raise JobError(told["text"])
            if told["code"] == FAILED:
                self._failed(part, told["text"])
            else:
                self._todo.appendleft(part)
            return
        self._fails_in_a_row = 0
        state.done += part.left
        state.refused += told["rejected"] - before
        state.finished += 1
        self.read += part.left
        part.left, part.done = 0, True
        self._count_rejects()

    def _count_rejects(self) -> None:
        """Raises _TooManyRejectsError if all workers together have rejected too many."""
        running = sum(h.rejected for h in self._states.values()) if self.totals[1] or self._rejecting else 0
        if self._reject_counter is not None and self._reject_counter.exceeded_by(self.totals[1] + running):
            raise _TooManyRejectsError(self.totals[1] + running)

    def _problem(self, state: WorkerState, told: Message) -> None:
        """A worker cannot open the job, or a part. Raises SpecError for what no worker could open."""
        text = f"{state.worker.name} on {state.worker.node}: {told['problem']}"
        if "part" in told:
            part = state.parts.popleft()
            state.ends |= told["kind"] == "device"
            self._feed(state)
            self._failed(part, text)
            return
        if told["kind"] == "spec":
            raise SpecError(told["problem"])
        room = self.group.room()
        if told["kind"] == "device" and room > 1 and self._no_device < 2 * room:
            self._no_device += 1  # a GPU that is gone says nothing about the others
            self._note(f"{text}; the others go on without it")
            self._failure = text
            return
        self._failure = text
        self._fails_in_a_row += 1
        self._give_up_on(told["problem"])

    def _failed(self, part: Part, why: str) -> None:
        part.tries += 1
        part.problem = self._failure = why
        self._fails_in_a_row += 1
        self._give_up_on(why)
        if part.tries < _TRIES:
            self._todo.append(part)

    def _give_up_on(self, why: str) -> None:
        """Raises JobError where everything fails, one after the other: it is not the workers' fault. A machine that is
        lost with all of its workers is not everything."""
        most = min(_TRIES, self.group.room()) - 1 if self._who is None else max(_TRIES, 2 * self._most)
        if self._fails_in_a_row > most:
            raise JobError(why)

    def _busy(self, state: WorkerState, told: Message) -> None:
        """Somebody else holds the part: a worker that is gone, and whose machine is, or another job."""
        part = state.parts.popleft()
        self._feed(state)
        owner = told["owner"]
        if owner in self._dead:
            self.whole.break_lock((part.number, len(self.parts)), owner)
        since = self._busy_since.setdefault(part.number, time.monotonic())
        if time.monotonic() - since > _BUSY_MOST:
            raise JobError(told["text"])
        self._later.append((time.monotonic() + _BUSY_WAIT, part))

    def _gone(self, state: WorkerState, why: str) -> None:
        """A worker has ended; what it had is to be done again, from its journals on. The failure that it told of before
        stays the reason."""
        del self._states[id(state.worker)]
        if state.finished:
            left = self._left_behind.setdefault((state.worker.name, state.worker.node), [0, 0, 0])
            left[:] = [a + b for a, b in zip(left, (state.done, state.refused, state.finished), strict=True)]
        self._idle.pop(state, None)
        self._with_one.pop(state, None)
        self._soon.pop(state, None)
        if state.process:
            self._dead.append(state.process)
        text = f"{state.worker.name} on {state.worker.node} {why}"
        if why == "ended" and not state.parts:
            return
        state.worked.ended = why
        running = state.parts[0] if state.parts else None
        for part in reversed(state.parts):
            if part is not running:
                self._todo.appendleft(part)
        if state.ends:  # it has not begun this one: the failure was counted when it told of it
            if running is not None:
                self._todo.appendleft(running)
            return
        self._failure = text
        if running is not None:
            running.tries += 1
            running.problem = text
            self._fails_in_a_row += 1
            if running.tries < _TRIES:
                self._todo.appendleft(running)
        self._note(f"{text}; its work goes on elsewhere")
        self._give_up_on(text)

    # -- giving -------------------------------------------------------------------------------------------------------

    def _feed(self, state: WorkerState) -> None:
        """A worker can take another part, unless it ends."""
        self._soon.pop(state, None)
        if state.ends:
            self._with_one.pop(state, None)
        elif state.parts:
            self._with_one[state] = None
        else:
            self._with_one.pop(state, None)
            self._idle[state] = None
            state.idle_since = time.monotonic()

    def _hand_out(self) -> None:
        now = time.monotonic()
        due = [part for at, part in self._later if at <= now]
        self._later = [(at, part) for at, part in self._later if at > now]
        self._todo.extendleft(reversed(due))
        while self._todo and self._idle:
            self._give(self._idle.popitem()[0], self._todo.popleft())
        while self._todo and self._soon:
            state = self._soon.popitem()[0]
            self._with_one.pop(state, None)
            self._give(state, self._todo.popleft())
        # a second part waits with its worker, where there is plenty: nobody then waits for the driver
        most = (self._left - self.read) / _AHEAD / max(1, self.group.room())  # those that have not come yet, too
        while self._with_one and len(self._todo) > 2 * len(self._states) and self._todo[0].left <= most:
            state = self._with_one.popitem()[0]
            self._soon.pop(state, None)
            self._give(state, self._todo.popleft())

    def _give(self, state: WorkerState, part: Part) -> None:
        if not state.parts:
            state.left, state.rejected = part.left, 0
            state.worked.idle += time.monotonic() - state.idle_since
        state.parts.append(part)
        if len(state.parts) == 1:
            self._with_one[state] = None
        self.group.give(state.worker, {"part": [part.number, len(self.parts)], "range": [part.start, part.stop]})

    def _show(self) -> None:
        now = time.monotonic()
        if self._who is None:
            self._progress(Progress(0, 0, 0, self.began))
            return
        if now - self._shown < _SHOW and self._unfinished():
            return
        self._shown = now
        running = [(h.parts[0], h) for h in self._states.values() if h.parts]
        read = self.read + sum(max(0, part.left - state.left) for part, state in running if state.left)
        rejected = self.totals[1] - self._before[1] + sum(h.rejected for _, h in running)
        at = time.perf_counter() - self.began
        if self.watch.due(at, len(self._states)) or not self._unfinished():
            self.watch.look(at, read, rejected, self._standings())
        self._progress(Progress(read, self._left, rejected, self.began, self._status))

    def _standings(self) -> list[Standing]:
        """Every worker that there was, those of one name and machine together."""
        left = dict(self._left_behind)
        found = []
        for state in self._states.values():
            done, rejected, parts = state.done, state.refused, state.finished
            running = state.parts[0] if state.parts else None
            if running is not None:
                done += max(0, running.left - state.left) if state.left else 0
                rejected += state.rejected
            before = left.pop((state.worker.name, state.worker.node), [0, 0, 0])
            found.append(Standing(state.worker.name, state.worker.node, done + before[0], rejected + before[1],
                                  None if running is None else running.number, parts + before[2]))  # fmt: skip
        gone = [Standing(name, node, done, rejected, None, parts)
                for (name, node), (done, rejected, parts) in left.items()]  # fmt: skip
        return [*found, *gone]

    def _status(self) -> dict[str, Any]:
        """The job as `dali-run run --watch` shows it."""
        done = sum(p.done for p in self.parts)
        facts = {"name": "", "output": "", **self._facts, "device": self._device, "part": None, "state": "running"}
        return {**facts, "total": self._left, "parts": [done, len(self.parts)], **self.watch.now()}
