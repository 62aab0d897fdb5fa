"""A process that opens a job's data sets once and forks a worker on request: all workers of a machine share one index,
and a worker that died is quickly replaced.

It has one thread and never uses CUDA, so that its forks are safe; it runs no part of the job itself. The import of a
plugin may initialise CUDA all the same (``torch.cuda.device_count()`` is enough): CUDA does not work in forks then, and
workers become processes of their own. Started by `Processes`.
"""

from __future__ import annotations

import contextlib
import faulthandler
import gc
import json
import os
import select
import signal
import socket
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import NoReturn

from ...ops.base import parameters
from ...ops.storage.json_text import parse_json
from ...ops.storage.urls import is_url
from ..engine.inputs import JobFeed, Sources
from ..graph.nodes import Node
from ..job.run import Prepared, identity, prepare
from .job_message import JobMessage, WorkerResources
from .messages import MessageSocket
from .worker import Opened, WorkerLoop, problem


def has_remote_inputs(readers: Sequence[Node]) -> bool:
    """Return whether any of ``readers`` reads from a URL. Every worker must then open the data sets itself, because
    connections and their threads do not survive a fork."""
    values = [getattr(node.op, name) for node in readers for name in parameters(type(node.op))]
    return any(is_url(v) for value in values for v in (value if isinstance(value, (tuple, list)) else (value,)))


def cuda_is_initialised(descriptors: Path = Path("/proc/self/fd")) -> bool:
    """Return whether this process holds devices of the CUDA driver open. CUDA was then initialised here, and forks of
    this process cannot use it. Return False if the system does not list open files."""
    for name in os.listdir(descriptors) if descriptors.is_dir() else ():
        with contextlib.suppress(OSError):
            if os.readlink(descriptors / name).startswith(("/dev/nvidia", "/dev/dxg")):
                return True
    return False


def _become_fresh_worker(fd: int, resources: WorkerResources, job: JobMessage) -> NoReturn:
    """Replace this forked process by a new Python program, which opens the data sets itself and runs the worker."""
    assert resources.visible is not None
    file = os.memfd_create("resources", 0)
    os.write(file, json.dumps({"resources": resources.to_dict(), "job": job.to_dict()}).encode())
    os.lseek(file, 0, os.SEEK_SET)
    os.set_inheritable(fd, True)
    os.environ["CUDA_VISIBLE_DEVICES"] = resources.visible
    os.execv(sys.executable, [sys.executable, "-m", f"{__package__}.worker", str(fd), str(file)])


class ForkServer:
    """The main loop of the process that forks workers for one driver. It ends when the driver does."""

    def __init__(self, sock: socket.socket) -> None:
        self._sock = sock
        self._messages = MessageSocket(sock)

    def run(self) -> None:
        """Open the job of the first message, then fork a worker whenever the driver requests one."""
        messages = self._messages.ready()
        if not messages:
            return
        job = JobMessage(**messages[0]["job"])
        job.enter_folder()
        try:
            with job.file() as path:
                # prepare for a GPU without calling CUDA: after a call, forked workers could not use it
                prepared = prepare(path, job.overrides, device="null" if job.device == "gpu" else job.device)
            opened = None if has_remote_inputs(prepared.plan.readers) else self._open(prepared, job)
        except Exception as e:
            self._messages.send(problem(e))
            return
        gc.collect()
        gc.freeze()  # pages that no process changes stay shared
        self._messages.send({"ready": True})
        self._serve(job, opened)

    def _open(self, prepared: Prepared, job: JobMessage) -> Opened:
        sources = Sources(prepared.plan, prepared.spec.pipeline.batch_size)
        JobFeed(sources, job.limit)  # the order of records is also computed once
        return sources, {**identity(prepared, sources), "device": "gpu" if job.device == "gpu" else "cpu"}

    def _serve(self, job: JobMessage, opened: Opened | None) -> None:
        wake, woken = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        signal.signal(signal.SIGCHLD, lambda *_: None)
        signal.set_wakeup_fd(woken)
        while True:
            with contextlib.suppress(InterruptedError):
                readable, _, _ = select.select([self._sock.fileno(), wake], [], [])
                if wake in readable:
                    os.read(wake, 512)
                    self._report_exits()
                if self._sock.fileno() in readable and not self._fork(job, opened, (wake, woken)):
                    return

    def _fork(self, job: JobMessage, opened: Opened | None, own_fds: tuple[int, int]) -> bool:
        """Receive the resources of a worker and its end of a socket, then fork the worker. Return False if the driver
        has ended."""
        try:
            text, fds, _, _ = socket.recv_fds(self._sock, 1 << 16, 1)
        except OSError:
            return False
        if not text or not fds:
            return False
        resources = WorkerResources.of(parse_json(text)["resources"])
        sys.stdout.flush()
        sys.stderr.flush()
        pid = os.fork()
        if pid:
            os.close(fds[0])
            self._messages.send({"pid": pid, "resources": resources.name})
            return True
        code = 1
        try:
            signal.set_wakeup_fd(-1)
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
            self._sock.close()
            for fd in own_fds:
                os.close(fd)
            faulthandler.enable()
            if resources.visible is not None and cuda_is_initialised():
                _become_fresh_worker(fds[0], resources, job)
            WorkerLoop(MessageSocket(socket.socket(fileno=fds[0])), resources).run(job, opened)
            code = 0
        finally:
            with contextlib.suppress(Exception):
                sys.stderr.flush()
            os._exit(code)

    def _report_exits(self) -> None:
        """Report to the driver the exit status of each worker that has ended."""
        with contextlib.suppress(ChildProcessError):
            while (ended := os.waitpid(-1, os.WNOHANG))[0]:
                self._messages.send({"exited": ended[0], "status": os.waitstatus_to_exitcode(ended[1])})


if __name__ == "__main__":
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    ForkServer(socket.socket(fileno=int(sys.argv[1]))).run()
