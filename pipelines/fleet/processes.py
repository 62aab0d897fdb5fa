"""Workers that are processes of this machine: one a GPU, or so many that share the cores."""

from __future__ import annotations

import contextlib
import json
import os
import selectors
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass, field

from ...ops.errors import DeviceError, JobError, SpecError
from .job_message import JobMessage, WorkerResources
from .messages import PATIENCE, Message, MessageSocket

_STARTS = 2
"""Times that a resources is filled: a worker that died is restarted once, then the others do its work."""


@dataclass(eq=False)
class Process:
    """A worker, as the driver sees it."""

    resources: WorkerResources
    messages: MessageSocket
    pid: int
    node: str = field(default_factory=socket.gethostname)

    @property
    def name(self) -> str:
        return self.resources.name


def raise_problem(told: Message) -> None:
    """Raises the error that a worker told of before it ended."""
    kinds = {"spec": SpecError, "device": DeviceError}
    raise kinds.get(told.get("kind", ""), JobError)(told["problem"])


class _ForkServerGoneError(JobError):
    """The process that forks workers has ended."""


class Processes:
    """The workers of one job on this machine. A context manager; leaving it ends them all."""

    def __init__(self, job: JobMessage, resources: Sequence[WorkerResources]) -> None:
        self._job = job
        self._starts = dict.fromkeys(resources, 0)
        self._workers: dict[WorkerResources, Process] = {}
        self._exits: dict[int, int] = {}
        self._fork_servers = 0

    def __enter__(self) -> Processes:
        with contextlib.ExitStack() as undo:
            self._selector = selectors.DefaultSelector()
            undo.callback(self._selector.close)
            self._log = tempfile.TemporaryFile()
            undo.callback(self._log.close)
            self._start_fork_server()
            undo.pop_all()
        return self

    def _start_fork_server(self) -> None:
        """Start the process that opens the job and forks workers. It may be lost once, to an out-of-memory killer say:
        then another takes its place, and workers that it has forked go on."""
        self._fork_servers += 1
        self._opened = False
        ours, theirs = socket.socketpair()
        with contextlib.ExitStack() as undo, theirs:
            self._messages = MessageSocket(ours)
            undo.callback(self._messages.close)
            command = [sys.executable, "-m", f"{__package__}.fork_server", str(theirs.fileno())]
            self._fork_server = subprocess.Popen(
                command, pass_fds=[theirs.fileno()], stdin=subprocess.DEVNULL, stdout=self._log, stderr=self._log,
                start_new_session=True,
            )  # fmt: skip
            undo.pop_all()
        self._messages.send({"job": self._job.to_dict()})

    def __exit__(self, *exc: object) -> None:
        self.stop()
        deadline = time.monotonic() + PATIENCE
        try:
            while self._workers and time.monotonic() < deadline:
                self.poll(0.2)
        finally:
            for worker in self._workers.values():  # deaf: stopped, or in a call that does not return
                with contextlib.suppress(OSError):
                    os.kill(worker.pid, signal.SIGKILL)
                worker.messages.close()
            self._selector.close()
            self._messages.close()
            self._fork_server.kill()
            self._fork_server.wait()
            self._log.close()

    # -- for the driver -----------------------------------------------------------------------------------------------

    def room(self) -> int:
        """How many workers there are, or could be."""
        return len(self._workers) + sum(self._free(resources) for resources in self._starts)

    @property
    def workers(self) -> list[Process]:
        """Those that live."""
        return list(self._workers.values())

    def fill(self, wanted: int) -> None:
        """Start workers until there are ``wanted``, if there is room. Raises what kept the job from being opened."""
        for resources in self._starts:
            if len(self._workers) >= wanted:
                return
            if self._free(resources):
                self._start(resources)

    def _free(self, resources: WorkerResources) -> bool:
        return resources not in self._workers and self._starts[resources] < _STARTS

    def poll(self, seconds: float) -> list[tuple[Process, Message]]:
        """The messages of workers within ``seconds``; ``{"gone": why}`` is a worker's last word."""
        if not self._workers:
            time.sleep(seconds)
            return []
        heard: list[tuple[Process, Message]] = []
        for key, _ in self._selector.select(seconds):
            worker: Process = key.data
            found = worker.messages.ready()
            if found is None:
                heard.append((worker, {"gone": self._part_with(worker)}))
            else:
                heard += [(worker, m) for m in found]
        return heard

    def give(self, worker: Process, order: Message) -> None:
        """Tell a worker what to do; one that is gone will be heard of."""
        worker.messages.send(order)

    def stop(self) -> None:
        """Ask all workers to publish what is complete, and to end."""
        for worker in self._workers.values():
            worker.messages.send({"stop": True})

    # -- starting and ending ------------------------------------------------------------------------------------------

    def _start(self, resources: WorkerResources) -> None:
        """Start a worker; with another fork server if that is gone for the first time."""
        try:
            self._fork(resources)
        except _ForkServerGoneError:
            if self._fork_servers > 1:
                raise
            self._messages.close()
            self._fork_server.kill()
            self._fork_server.wait()
            self._start_fork_server()
            self._fork(resources)

    def _fork(self, resources: WorkerResources) -> None:
        if not self._opened:
            self._expect("ready")
            self._opened = True
        ours, theirs = socket.socketpair()
        try:
            socket.send_fds(
                self._messages.sock, [json.dumps({"resources": resources.to_dict()}).encode()], [theirs.fileno()]
            )
            pid = int(self._expect("pid")["pid"])
        except BaseException as e:
            ours.close()
            if isinstance(e, OSError):
                raise _ForkServerGoneError(f"the workers' process is gone{self.last_words()}") from None
            raise
        finally:
            theirs.close()
        worker = Process(resources, MessageSocket(ours), pid)
        self._starts[resources] += 1
        self._workers[resources] = worker
        self._selector.register(worker.messages, selectors.EVENT_READ, worker)

    def _expect(self, key: str) -> Message:
        """Return the fork server's next message that has the key ``key``."""
        for told in self._messages.receive():
            if "problem" in told:
                raise_problem(told)
            if "exited" in told:
                self._exits[told["exited"]] = told["status"]
            elif key in told:
                return told
        raise _ForkServerGoneError(
            f"the workers' process ended, twice, before it had opened the job{self.last_words()}"
        )

    def _part_with(self, worker: Process) -> str:
        """A worker's socket has ended: why, in words."""
        self._selector.unregister(worker.messages)
        worker.messages.close()
        del self._workers[worker.resources]
        status = self._status(worker.pid)
        if status is None or status == 0:
            return "ended"
        if status > 0:
            return f"ended with exit code {status}{self.last_words()}"
        with contextlib.suppress(ValueError):
            return f"was ended by {signal.Signals(-status).name}{self.last_words()}"
        return f"was ended by signal {-status}"

    def _status(self, pid: int) -> int | None:
        self._messages.sock.settimeout(1.0)
        try:
            while pid not in self._exits and (found := self._messages.ready()):
                self._exits |= {m["exited"]: m["status"] for m in found if "exited" in m}
        finally:
            self._messages.sock.settimeout(None)
        return self._exits.pop(pid, None)

    def last_words(self) -> str:
        """The end of what workers printed, for messages."""
        size = self._log.seek(0, 2)
        self._log.seek(max(0, size - 2000))
        lines = [x for x in self._log.read().decode(errors="replace").splitlines() if x.strip()]
        self._log.seek(0, 2)
        return f"; its last words: {' | '.join(lines[-3:])}" if lines else ""
