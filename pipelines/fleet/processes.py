"""Workers that are processes of this machine: one per GPU, or a number that share the cores.

Used by `Driver`, and by Ray actors for the one process that they hold.
"""

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
"""Number of times that a worker is started with the same resources. If a worker dies it is restarted once; if that one
dies too, the other workers do its work."""


@dataclass(eq=False)
class Process:
    """A worker process on this machine, as the driver of the job sees it. Created by `Processes`."""

    resources: WorkerResources
    messages: MessageSocket
    pid: int
    node: str = field(default_factory=socket.gethostname)

    @property
    def name(self) -> str:
        """Name of the worker for users, such as ``GPU 0``."""
        return self.resources.name


def raise_problem(message: Message) -> None:
    """Raise the error that a worker reported before the worker ended."""
    kinds = {"spec": SpecError, "device": DeviceError}
    raise kinds.get(message.get("kind", ""), JobError)(message["problem"])


class _ForkServerGoneError(JobError):
    """The fork server, the process that forks workers, has ended."""


class Processes:
    """The workers of one job on this machine; a `WorkerGroup`. A context manager that ends all workers. Created by
    `fleet.run` and by Ray actors; used by one thread."""

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
        """Start the fork server, a process that opens the job and forks workers. If it is lost, for example to the
        out-of-memory killer, it is replaced once, and the workers that were already forked continue."""
        self._fork_servers += 1
        self._opened = False
        parent_end, child_end = socket.socketpair()
        with contextlib.ExitStack() as undo, child_end:
            self._messages = MessageSocket(parent_end)
            undo.callback(self._messages.close)
            command = [sys.executable, "-m", f"{__package__}.fork_server", str(child_end.fileno())]
            self._fork_server = subprocess.Popen(
                command, pass_fds=[child_end.fileno()], stdin=subprocess.DEVNULL, stdout=self._log, stderr=self._log,
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
            for worker in self._workers.values():  # these do not react: stopped, or in a call that does not return
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
        """Return the number of workers that run or can still be started."""
        return len(self._workers) + sum(self._free(resources) for resources in self._starts)

    @property
    def workers(self) -> list[Process]:
        """The workers that are running."""
        return list(self._workers.values())

    def fill(self, count: int) -> None:
        """Start workers until ``count`` run, if there is room. Raises errors that keep the job from being opened."""
        for resources in self._starts:
            if len(self._workers) >= count:
                return
            if self._free(resources):
                self._start(resources)

    def _free(self, resources: WorkerResources) -> bool:
        return resources not in self._workers and self._starts[resources] < _STARTS

    def poll(self, seconds: float) -> list[tuple[Process, Message]]:
        """Wait up to ``seconds`` for messages of workers, and return them, each with its worker. The last message of a
        worker that has ended is ``{"gone": why}``."""
        if not self._workers:
            time.sleep(seconds)
            return []
        received: list[tuple[Process, Message]] = []
        for key, _ in self._selector.select(seconds):
            worker: Process = key.data
            found = worker.messages.ready()
            if found is None:
                received.append((worker, {"gone": self._remove(worker)}))
            else:
                received += [(worker, m) for m in found]
        return received

    def give(self, worker: Process, order: Message) -> None:
        """Send an order to a worker. If the worker has ended, nothing is sent, and `poll` will report it."""
        worker.messages.send(order)

    def stop(self) -> None:
        """Tell all workers to publish their complete shards and then to end."""
        for worker in self._workers.values():
            worker.messages.send({"stop": True})

    # -- starting and ending ------------------------------------------------------------------------------------------

    def _start(self, resources: WorkerResources) -> None:
        """Start a worker with these resources. If the fork server has ended, start a new one first."""
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
        parent_end, child_end = socket.socketpair()
        try:
            socket.send_fds(
                self._messages.sock, [json.dumps({"resources": resources.to_dict()}).encode()], [child_end.fileno()]
            )
            pid = int(self._expect("pid")["pid"])
        except BaseException as e:
            parent_end.close()
            if isinstance(e, OSError):
                raise _ForkServerGoneError(f"the process that forks workers has ended{self.last_words()}") from None
            raise
        finally:
            child_end.close()
        worker = Process(resources, MessageSocket(parent_end), pid)
        self._starts[resources] += 1
        self._workers[resources] = worker
        self._selector.register(worker.messages, selectors.EVENT_READ, worker)

    def _expect(self, key: str) -> Message:
        """Return the next message with the key ``key`` from the fork server, the process that forks workers."""
        for message in self._messages.receive():
            if "problem" in message:
                raise_problem(message)
            if "exited" in message:
                self._exits[message["exited"]] = message["status"]
            elif key in message:
                return message
        raise _ForkServerGoneError(
            f"the process that forks workers ended, twice, before it had opened the job{self.last_words()}"
        )

    def _remove(self, worker: Process) -> str:
        """Remove a worker whose socket was closed. Return the reason why the worker ended, as a text."""
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
            while pid not in self._exits and (messages := self._messages.ready()):
                self._exits |= {m["exited"]: m["status"] for m in messages if "exited" in m}
        finally:
            self._messages.sock.settimeout(None)
        return self._exits.pop(pid, None)

    def last_words(self) -> str:
        """Return the last lines that the workers printed, for error messages."""
        size = self._log.seek(0, 2)
        self._log.seek(max(0, size - 2000))
        lines = [x for x in self._log.read().decode(errors="replace").splitlines() if x.strip()]
        self._log.seek(0, 2)
        return f"; its last output: {' | '.join(lines[-3:])}" if lines else ""
