"""Assign the parts of a job to workers, wherever they run, follow their progress, and reassign the parts of lost
workers.

The driver holds nothing that the journals do not contain: if it is killed, it starts again from them. Created by
`fleet.run`.
"""

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
from .reports import WorkerReport
from .watch import ProgressLog, WorkerProgress

_TRIES = 3
"""Number of times that one job part (a range of shards) may fail before the job gives up on it."""
_BUSY_WAIT = 2.0
"""Seconds to wait before a job part is tried again whose lock another process holds."""
_MAX_BUSY_SECONDS = 20 * 60.0
"""Maximum seconds to wait for a job part that another process writes. In an object store, the lock of a dead machine is
stale after 15 minutes."""
_MIN_PARTS_AHEAD = 4
"""Divisor that limits which job part a worker gets in advance, as its second: at most 1/4 (one divided by this number)
of the remaining work per worker."""
_CHECK = 10.0
"""Seconds between two checks whether this job still holds the output's lock."""
_SHOW = 0.1
"""Seconds between two calls of the callback that reports progress."""
_POLL = 0.5
"""Maximum seconds for which the driver waits for messages of workers at a time."""


class _TooManyRejectsError(JobError):
    """Raised if all workers together have rejected more samples than allowed; the number is ``counted``."""

    def __init__(self, counted: int) -> None:
        super().__init__(f"{counted} rejects are too many")
        self.counted = counted


class Worker(Protocol):
    """A worker process, as the driver of the job sees it. Created by a `WorkerGroup`."""

    @property
    def name(self) -> str: ...
    @property
    def node(self) -> str:
        """Name of the machine on which the worker runs."""


W = TypeVar("W", bound=Worker)


class WorkerGroup(Protocol[W]):
    """Starts workers and exchanges messages with them: processes of this machine (`Processes`), or actors of a cluster
    (`Actors`). Used by the driver's thread."""

    def room(self) -> int:
        """Return the number of workers that run or could be started now or later; 0 if no worker will come any more."""

    def fill(self, count: int) -> None:
        """Start workers until ``count`` run, as far as machines have room."""

    def poll(self, seconds: float) -> Sequence[tuple[W, Message]]:
        """Wait up to ``seconds`` for messages of workers, and return them, each with its worker."""

    def give(self, worker: W, order: Message) -> None:
        """Send a message with an order, such as to run a job part, to a worker."""

    def stop(self) -> None:
        """Tell all workers to publish their complete shards and then to end."""


class WorkerState:
    """The driver's record of one worker. Created by `Driver` with the worker's first message."""

    def __init__(self, worker: Worker) -> None:
        self.worker = worker
        self.report = WorkerReport(worker.name, worker.node)
        self.ready = False
        self.ends = False
        """Whether the worker has failed and gets no more job parts. A new process in its place may succeed."""
        self.process: Mapping[str, Any] = {}
        self.parts: deque[Part] = deque()
        """The job parts that the worker has: the one that it runs, and perhaps the next one."""
        self.left = self.rejected = 0
        """Numbers of samples of the running job part, by the worker's last message: not yet read, and rejected."""
        self.done = self.refused = self.finished = 0
        """Totals of the job parts that the worker has finished: samples read, samples rejected, and number of parts."""
        self.idle_since = 0.0
        """Time at which the worker last ran out of job parts (time.monotonic, in seconds)."""


class Driver:
    """Distributes the parts of one job to a group of workers, until all are finished. Created by `fleet.run`; used by
    one thread."""

    def __init__(
        self, whole: JobOutput, group: WorkerGroup[Any], reject_limit: RejectLimit, device: str,
        progress: Callable[[Progress], None], note: Callable[[str], None], facts: Mapping[str, Any] | None = None,
    ) -> None:  # fmt: skip
        """``facts``: name and output of the job, for the status that `dali-run run --watch` shows."""
        self.whole = whole
        self.group = group
        self.parts: list[Part] = []
        self._left = 0
        """Number of samples that were not yet processed when this run of the job began."""
        self.read = 0
        """Number of samples in the job parts that were finished in this run."""
        self._reject_limit = reject_limit
        self._device = device
        self._progress = progress
        self._note = note
        self._states: dict[int, WorkerState] = {}
        self._reports: list[WorkerReport] = []
        self._todo: deque[Part] = deque()
        self._postponed: list[tuple[float, Part]] = []
        """Job parts that another process holds, each with the time at which it is tried again."""
        self._busy_since: dict[int, float] = {}
        self._idle: dict[WorkerState, None] = {}
        """Workers that have no job part; a dict serves as an ordered set."""
        self._nearly_done: dict[WorkerState, None] = {}
        """Workers that have almost finished their only job part, so that they could begin another; a dict serves as an
        ordered set."""
        self._with_one: dict[WorkerState, None] = {}
        """Workers that run their only job part; a dict serves as an ordered set."""
        self._dead: list[Mapping[str, Any]] = []
        self._who: Mapping[str, Any] | None = None
        self._span = range(0)
        self._failures = self._max_workers = 0
        self._failure = ""
        """Message of the last failure: the one that a worker reported, or the end of a process."""
        self._no_device = 0
        """Number of workers that found no working GPU on their machines."""
        self._reject_counter: RejectCounter | None = None
        self._before = (0, 0, 0)
        self.totals = [0, 0, 0]
        """Numbers of samples written, rejected and left out by all job parts, including earlier runs."""
        self._rejecting = False
        self._shown = 0.0
        self.watch = ProgressLog()
        self._facts = facts or {}
        self._ended_workers: dict[tuple[str, str], list[int]] = {}
        """Numbers of samples read, samples rejected and job parts of ended workers, by name and machine."""
        self.began = time.perf_counter()

    # -- results ------------------------------------------------------------------------------------------------------

    @property
    def workers(self) -> list[WorkerReport]:
        """The reports of all workers that took part in this run."""
        return self._reports

    @property
    def counts(self) -> dict[str, int]:
        """Numbers of samples in this run: ``read``, ``written``, ``rejected`` and, if the spec leaves samples out,
        ``left_out``."""
        names = ("written", "rejected", "left_out")
        changes = {k: now - was for k, now, was in zip(names, self.totals, self._before, strict=True)}
        if not self.whole.config.leaves_out:
            del changes["left_out"]
        return {"read": self.read, **changes}

    # -- the loop -----------------------------------------------------------------------------------------------------

    def run(self) -> tuple[int, str]:
        """Run the job until all parts are finished. Return (0, ""), or the exit code and the reason if the job ended
        earlier. Raises errors that prevent the job from being opened."""
        try:
            checked = time.monotonic()
            while self._who is None or self._unfinished():
                if not self._serve_workers():
                    return FAILED, self._no_worker_message()
                if time.monotonic() - checked > _CHECK:
                    checked = time.monotonic()
                    self.whole.check()
        except KeyboardInterrupt:
            self._shut_down()
            done = sum(p.done for p in self.parts)
            return INTERRUPTED, (f"interrupted with {done} of {count(len(self.parts), 'part')} done; run the same "
                                 "command again: it continues")  # fmt: skip
        except _TooManyRejectsError as e:
            self._shut_down()
            return FAILED, self._too_many_rejects(e.counted)
        except JobError as e:
            self._shut_down()
            if self._who is None:
                raise  # nothing was begun
            return FAILED, str(e)
        return self._result()

    def _serve_workers(self) -> bool:
        """Start workers, receive their messages, and assign job parts. Return False if no worker can run any more."""
        room = self.group.room()
        if not room and not self._states:
            return False
        self.group.fill(room if self._who is None else min(room, self._useful_workers()))
        for worker, message in self.group.poll(_POLL):
            self._receive(self._state_of(worker), message)
        self._assign_parts()
        self._show()
        return True

    def _result(self) -> tuple[int, str]:
        """Return exit code and reason after the last part is finished or has failed."""
        for state in self._idle:
            state.report.idle += time.monotonic() - state.idle_since
        failed = [p for p in self.parts if not p.done]
        if failed:
            first = failed[0]
            return FAILED, (
                f"{count(len(failed), 'part')} of {len(self.parts)} failed {_TRIES} times, the rest is done. Part "
                f"{first.number}: {first.problem}. Run the same command again: it continues"
            )
        return 0, ""

    def _unfinished(self) -> bool:
        return bool(self._todo or self._postponed or any(h.parts for h in self._states.values()))

    def _useful_workers(self) -> int:
        """Return the number of workers that could have work: those that run, and one more for each job part that waits
        for a worker."""
        return len(self._todo) + len(self._postponed) + len(self._states)

    def _no_worker_message(self) -> str:
        why = f" The last failure: {self._failure}." if self._failure else ""
        return f"no worker is left.{why} Run the same command again: it continues after the last finished shards"

    def _too_many_rejects(self, counted: int) -> str:
        """Return the message that too many samples were rejected, worded as for a job in one process: with the codes of
        the rejects and the first reject."""
        assert self._reject_counter is not None
        rows, begun = self.whole.publish_rejects(), self.whole.earlier_parts()
        self._reject_counter.seen = sum(c.stop - c.header["range"][0] for c in begun[1].values()) if begun else 0
        try:
            self._reject_counter.add(0, rows)
            self._reject_counter.rejected = counted  # logs of workers that were killed may lack some
            self._reject_counter.finish()
        except JobError as e:
            return str(e)
        raise AssertionError("too many rejects were counted")

    def _shut_down(self) -> None:
        """Let the workers publish complete shards and end; the job's next run continues unfinished parts."""
        self.group.stop()
        deadline = time.monotonic() + PATIENCE
        while any(h.parts for h in self._states.values()) and time.monotonic() < deadline:
            for worker, message in self.group.poll(_POLL):
                state = self._states.get(id(worker))
                if state is not None and "gone" in message:
                    del self._states[id(worker)]
                elif state is not None and "ended" in message:
                    with contextlib.suppress(JobError):
                        self._ended(state, message)

    # -- hearing ------------------------------------------------------------------------------------------------------

    def _state_of(self, worker: Worker) -> WorkerState:
        if id(worker) not in self._states:
            state = self._states[id(worker)] = WorkerState(worker)
            self._reports.append(state.report)
            self._max_workers = max(self._max_workers, len(self._states))
        return self._states[id(worker)]

    def _receive(self, state: WorkerState, message: Message) -> None:
        """Call the method that handles this kind of message from a worker."""
        if "opened" in message:
            self._welcome(state, message)
        elif "at" in message:
            if state.parts and message["at"] == state.parts[0].number:  # otherwise the next part has also begun
                state.left, state.rejected = message["left"], message["rejected"]
                self._rejecting |= state.rejected > 0
        elif "soon" in message:
            if len(state.parts) == 1 and message["soon"] == state.parts[0].number:
                self._nearly_done[state] = None
        elif "busy" in message:
            self._busy(state, message)
        elif "ended" in message:
            self._ended(state, message)
        elif "problem" in message:
            self._problem(state, message)
        elif "gone" in message:
            self._gone(state, message["gone"])

    def _welcome(self, state: WorkerState, message: Message) -> None:
        """Handle the message that a worker has opened the job. Raises JobError if the worker sees other data than
        earlier workers."""
        state.process = message["process"]
        state.report.node = state.worker.node
        span = range(*message["opened"])
        if self._who is None:
            self._begin(span, message["who"])
        elif message["who"] != self._who or span != self._span:
            self.group.give(state.worker, {"stop": True})
            raise JobError(
                f"{state.worker.name} on {state.worker.node} sees other inputs, or has other versions, than the "
                "workers before it: all need the same data at the same place, and the same software"
            )
        state.ready = True
        self._free(state)

    def _begin(self, span: range, who: Mapping[str, Any]) -> None:
        self._span, self._who = span, who
        self.parts = self.whole.parts(span, who, max(1, self.group.room()), self._device)
        self._before = (sum(p.written for p in self.parts), sum(p.rejected for p in self.parts),
                        sum(p.left_out for p in self.parts))  # fmt: skip
        self.totals = list(self._before)
        self._todo.extend(p for p in self.parts if not p.done)
        self._left = sum(p.remaining for p in self.parts if not p.done)
        self._reject_counter = RejectCounter(self._reject_limit, len(span), f"{self.whole.config.where}/rejects.jsonl")
        self.began = time.perf_counter()

    def _ended(self, state: WorkerState, message: Message) -> None:
        part = state.parts.popleft()
        state.ends |= message["code"] == FAILED
        self._free(state)
        state.left = state.rejected = 0
        if message["report"]:
            state.report.reports.append(message["report"])
        self.totals[0] += message["written"] - part.written
        self.totals[1] += message["rejected"] - part.rejected
        self.totals[2] += message.get("left_out", 0) - part.left_out
        before = part.rejected
        part.written, part.rejected, part.left_out = message["written"], message["rejected"], message.get("left_out", 0)
        if message["code"] in (FAILED, INTERRUPTED):
            self._count_rejects()
            if message.get("final"):
                raise JobError(message["text"])
            if message["code"] == FAILED:
                self._failed(part, message["text"])
            else:
                self._todo.appendleft(part)
            return
        self._failures = 0
        state.done += part.remaining
        state.refused += message["rejected"] - before
        state.finished += 1
        self.read += part.remaining
        part.remaining, part.done = 0, True
        self._count_rejects()

    def _count_rejects(self) -> None:
        """Count the rejects of all workers together, and raise _TooManyRejectsError if there are more than allowed."""
        running = sum(h.rejected for h in self._states.values()) if self.totals[1] or self._rejecting else 0
        if self._reject_counter is not None and self._reject_counter.exceeded_by(self.totals[1] + running):
            raise _TooManyRejectsError(self.totals[1] + running)

    def _problem(self, state: WorkerState, message: Message) -> None:
        """Handle the message that a worker cannot open the job or a job part. Raises SpecError if the spec is wrong, so
        that no worker could open the job."""
        text = f"{state.worker.name} on {state.worker.node}: {message['problem']}"
        if "part" in message:
            part = state.parts.popleft()
            state.ends |= message["kind"] == "device"
            self._free(state)
            self._failed(part, text)
            return
        if message["kind"] == "spec":
            raise SpecError(message["problem"])
        room = self.group.room()
        if message["kind"] == "device" and room > 1 and self._no_device < 2 * room:
            self._no_device += 1  # one missing GPU says nothing about the other workers
            self._note(f"{text}; the others go on without it")
            self._failure = text
            return
        self._failure = text
        self._failures += 1
        self._check_failures(message["problem"])

    def _failed(self, part: Part, why: str) -> None:
        part.tries += 1
        part.problem = self._failure = why
        self._failures += 1
        self._check_failures(why)
        if part.tries < _TRIES:
            self._todo.append(part)

    def _check_failures(self, why: str) -> None:
        """Raise JobError if one job part after the other fails, because then the workers are not to blame. Failures do
        not count if a machine is lost with all of its workers."""
        max_failures = min(_TRIES, self.group.room()) - 1 if self._who is None else max(_TRIES, 2 * self._max_workers)
        if self._failures > max_failures:
            raise JobError(why)

    def _busy(self, state: WorkerState, message: Message) -> None:
        """Handle the message that another process holds the lock of a job part: a lost worker on a machine that is
        gone, or another job."""
        part = state.parts.popleft()
        self._free(state)
        owner = message["owner"]
        if owner in self._dead:
            self.whole.break_lock((part.number, len(self.parts)), owner)
        since = self._busy_since.setdefault(part.number, time.monotonic())
        if time.monotonic() - since > _MAX_BUSY_SECONDS:
            raise JobError(message["text"])
        self._postponed.append((time.monotonic() + _BUSY_WAIT, part))

    def _gone(self, state: WorkerState, why: str) -> None:
        """Handle the end of a worker: give its job parts to other workers, which continue from the parts' journals. A
        failure that the worker has reported before remains the reason."""
        del self._states[id(state.worker)]
        if state.finished:
            totals = self._ended_workers.setdefault((state.worker.name, state.worker.node), [0, 0, 0])
            totals[:] = [a + b for a, b in zip(totals, (state.done, state.refused, state.finished), strict=True)]
        self._idle.pop(state, None)
        self._with_one.pop(state, None)
        self._nearly_done.pop(state, None)
        if state.process:
            self._dead.append(state.process)
        text = f"{state.worker.name} on {state.worker.node} {why}"
        if why == "ended" and not state.parts:
            return
        state.report.ended = why
        running = state.parts[0] if state.parts else None
        for part in reversed(state.parts):
            if part is not running:
                self._todo.appendleft(part)
        if state.ends:  # this part was not begun; the failure was counted when the worker reported it
            if running is not None:
                self._todo.appendleft(running)
            return
        self._failure = text
        if running is not None:
            running.tries += 1
            running.problem = text
            self._failures += 1
            if running.tries < _TRIES:
                self._todo.appendleft(running)
        self._note(f"{text}; its work goes on elsewhere")
        self._check_failures(text)

    # -- giving -------------------------------------------------------------------------------------------------------

    def _free(self, state: WorkerState) -> None:
        """Record that a worker can take another job part, unless the worker is about to end."""
        self._nearly_done.pop(state, None)
        if state.ends:
            self._with_one.pop(state, None)
        elif state.parts:
            self._with_one[state] = None
        else:
            self._with_one.pop(state, None)
            self._idle[state] = None
            state.idle_since = time.monotonic()

    def _assign_parts(self) -> None:
        now = time.monotonic()
        due = [part for at, part in self._postponed if at <= now]
        self._postponed = [(at, part) for at, part in self._postponed if at > now]
        self._todo.extendleft(reversed(due))
        while self._todo and self._idle:
            self._give(self._idle.popitem()[0], self._todo.popleft())
        while self._todo and self._nearly_done:
            state = self._nearly_done.popitem()[0]
            self._with_one.pop(state, None)
            self._give(state, self._todo.popleft())
        # if there are many parts, each worker gets a second one in advance, so that it need not wait for the driver
        max_samples = (
            (self._left - self.read) / _MIN_PARTS_AHEAD / max(1, self.group.room())
        )  # including workers that have not come yet
        while self._with_one and len(self._todo) > 2 * len(self._states) and self._todo[0].remaining <= max_samples:
            state = self._with_one.popitem()[0]
            self._nearly_done.pop(state, None)
            self._give(state, self._todo.popleft())

    def _give(self, state: WorkerState, part: Part) -> None:
        if not state.parts:
            state.left, state.rejected = part.remaining, 0
            state.report.idle += time.monotonic() - state.idle_since
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
        read = self.read + sum(max(0, part.remaining - state.left) for part, state in running if state.left)
        rejected = self.totals[1] - self._before[1] + sum(h.rejected for _, h in running)
        at = time.perf_counter() - self.began
        if self.watch.due(at, len(self._states)) or not self._unfinished():
            self.watch.record(at, read, rejected, self._worker_progress())
        self._progress(Progress(read, self._left, rejected, self.began, self._status))

    def _worker_progress(self) -> list[WorkerProgress]:
        """Return the progress of all workers of this run, added up for equal names and machines."""
        ended_totals = dict(self._ended_workers)
        progress = []
        for state in self._states.values():
            done, rejected, parts = state.done, state.refused, state.finished
            running = state.parts[0] if state.parts else None
            if running is not None:
                done += max(0, running.remaining - state.left) if state.left else 0
                rejected += state.rejected
            before = ended_totals.pop((state.worker.name, state.worker.node), [0, 0, 0])
            progress.append(WorkerProgress(state.worker.name, state.worker.node, done + before[0], rejected + before[1],
                                  None if running is None else running.number, parts + before[2]))  # fmt: skip
        ended = [WorkerProgress(name, node, done, rejected, None, parts)
                for (name, node), (done, rejected, parts) in ended_totals.items()]  # fmt: skip
        return [*progress, *ended]

    def _status(self) -> dict[str, Any]:
        """Return the current state of the job, as `dali-run run --watch` shows it."""
        done = sum(p.done for p in self.parts)
        facts = {"name": "", "output": "", **self._facts, "device": self._device, "part": None, "state": "running"}
        return {**facts, "total": self._left, "parts": [done, len(self.parts)], **self.watch.now()}
