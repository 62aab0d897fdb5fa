"""A worker: a process that runs one part of a job after the other, as it is told, and says how far it is.

Whatever it has done stands in the part's journal, so that it can be ended at any moment: politely (an order, SIGTERM,
or the driver's end, when complete shards are published first) or not.
"""

from __future__ import annotations

import contextlib
import json
import os
import queue
import signal
import socket
import sys
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

from ...ops.errors import DaliRunError, DeviceError, SpecError
from ...ops.gpu.watchdog import any_hung
from ...writers.shards.lock import BusyError, identify
from ..engine.inputs import Sources
from ..job.part import OpenJob
from ..job.run import FAILED, Prepared, Progress, identity, prepare
from ..limits import GPU_SHARE, HOST_SHARE, Limit
from ..spec.model import Spec
from .job_message import JobMessage, WorkerResources
from .messages import MessageSocket

Opened = tuple[Sources, Mapping[str, Any]]
"""Open data sets, and the job's identity."""
_LONG = ("over_time", "command")
"""Parts of a report that stay with the worker."""
NEARLY = 10
"""Batches that are left to be written where all of a part are read, about: as many are in flight on a GPU, and in the
queues around it."""
BEFORE = 0.4
"""Seconds before its end, at the rate so far, at which a part is nearly done in any case: to open the next one's output
and to read its first batches takes some tenths."""
_LOOK = 0.5
SECONDS_BETWEEN_WORDS = 0.5
"""How often a worker says how far it is."""


def problem(error: BaseException) -> dict[str, Any]:
    """An error that ends a worker, as a message."""
    kind = "spec" if isinstance(error, SpecError) else "device" if isinstance(error, DeviceError) else "job"
    text = str(error) if isinstance(error, DaliRunError) else f"{type(error).__name__}: {error}"
    return {"problem": text, "kind": kind}


def fitted(prepared: Prepared, resources: WorkerResources) -> Prepared:
    """The job with the threads and the memory of one resources of several on a machine."""
    return replace(prepared, built=replace(prepared.built, spec=fitted_spec(prepared.spec, resources)))


def fitted_spec(spec: Spec, resources: WorkerResources) -> Spec:
    """A spec with the threads and the memory of one resources."""
    settings, memory = spec.pipeline, spec.pipeline.memory
    own = _share(memory.host, HOST_SHARE, resources.share)
    gpu = memory.gpu if resources.gpu_share == 1 else _share(memory.gpu, GPU_SHARE, resources.gpu_share)
    threads = resources.threads if settings.num_threads == "auto" else settings.num_threads
    return replace(spec, pipeline=replace(settings, num_threads=threads, memory=replace(memory, host=own, gpu=gpu)))


def _share(limit: Limit, default: float, share: float) -> Limit:
    limit = default if limit is None else limit
    return limit * share if isinstance(limit, float) else max(1, int(limit * share))


def bind_to(resources: WorkerResources) -> None:
    """Bind this process to its cores and its GPU: before the first thread, and before CUDA is asked anything."""
    if resources.visible is not None:
        os.environ["CUDA_VISIBLE_DEVICES"] = resources.visible
    if resources.cpus and hasattr(os, "sched_setaffinity"):
        with contextlib.suppress(OSError):  # a control group without these cores
            os.sched_setaffinity(0, resources.cpus)


class _Running:
    """A part that runs, or has run."""

    def __init__(self, before: _Running | None, few: int) -> None:
        """``before``: the part before it, of which is told first. With ``few`` samples left it is nearly done, or where
        so little is left that it ends soon."""
        self.before = before
        self.few = few
        self.nearly = threading.Event()
        self.thread: threading.Thread | None = None

    def join(self) -> None:
        """Wait until it has ended, and that was told; not for a GPU that hangs."""
        while self.thread is not None and self.thread.is_alive() and not any_hung():
            self.thread.join(_LOOK)


class WorkerLoop:
    """The loop of one worker."""

    def __init__(self, messages: MessageSocket, resources: WorkerResources) -> None:
        self._messages = messages
        self._seat = resources
        self._stop = threading.Event()
        self._orders: queue.SimpleQueue[dict[str, Any] | None] = queue.SimpleQueue()
        self._command: Mapping[str, Any] = {}

    def run(self, job: JobMessage, opened: Opened | None) -> None:
        """Work until there is no more to do, on data sets that are open already, if any. Problems are told, not
        raised."""
        signal.signal(signal.SIGTERM, lambda *_: self._end())
        signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is the driver's to hear
        try:
            bind_to(self._seat)
            with job.file() as path:
                prepared = fitted(prepare(path, job.overrides, device=job.device), self._seat)
            lent = None if opened is None else opened[0]
            with Sources(prepared.plan, prepared.spec.pipeline.batch_size, lent) as sources:
                who = identity(prepared, sources) if opened is None else opened[1]
                open_job = OpenJob(prepared, sources, who, job.limit)
                self._command = {"spec": job.path, "overrides": dict(job.overrides), "device": job.device}
                span = open_job.positions
                self._messages.send({"opened": [span.start, span.stop], "who": who, "process": identify()})
                threading.Thread(target=self._listen, name="orders", daemon=True).start()
                self._serve(open_job)
                if not any_hung():
                    with contextlib.suppress(Exception):  # a GPU that failed fails again, and all is told
                        open_job.close()
        except Exception as e:
            self._messages.send(problem(e))

    def _listen(self) -> None:
        for order in self._messages.receive():
            if "part" in order:
                self._orders.put(order)
            else:
                break
        self._end()  # told so, or the driver is gone

    def _end(self) -> None:
        self._stop.set()
        self._orders.put(None)

    def _serve(self, job: OpenJob) -> None:
        """Run parts in turn, each in a thread. A GPU would wait at the end of a part, until its last shards are written
        and the first batches of the next one read: so that begins a few batches before."""
        last: _Running | None = None
        while not self._stop.is_set() and (order := self._orders.get()) is not None:
            part = order["part"][0], order["part"][1]
            last = _Running(last, NEARLY * job.prepared.spec.pipeline.batch_size)
            last.thread = threading.Thread(
                target=self._part, name=f"part {part[0]}", args=(job, part, range(*order["range"]), last), daemon=True
            )
            last.thread.start()
            last.nearly.wait()
            if job.prepared.target.device == "cpu":  # whose threads all have work to the end
                last.thread.join()
            elif not self._stop.is_set():
                self._messages.send({"soon": part[0]})
        while last is not None and not any_hung():
            last.join()
            last = last.before

    def _part(self, job: OpenJob, part: tuple[int, int], span: range, running: _Running) -> None:
        """Run a part, and tell how it ended once that was told of the one before. Where the worker is of no use any
        more, nothing else is begun."""
        told: dict[str, Any] | None = None
        good = False
        try:
            ended = (result := job.run(part, span, self._teller(part, running), self._command)).job
            report = {k: v for k, v in ended.report.items() if k not in _LONG}
            told = {"ended": part[0], "code": ended.exit_code, "text": ended.message, "written": result.written,
                    "rejected": result.rejected, "left_out": result.left_out, "report": report,
                    "final": ended.final}  # fmt: skip
            good = ended.exit_code != FAILED and not any_hung()  # a fresh process may have better luck
        except BusyError as e:
            told, good = {"busy": part[0], "owner": e.owner, "text": str(e)}, True
        except KeyboardInterrupt:
            pass
        except Exception as e:
            told, good = {**problem(e), "part": part[0]}, not isinstance(e, DeviceError)
        finally:
            if not good:
                self._end()
            running.nearly.set()
            if running.before is not None and not any_hung():
                running.before.join()
            running.before = None
            if told is not None:
                self._messages.send(told)

    def _teller(self, part: tuple[int, int], running: _Running) -> Callable[[Progress], None]:
        last = 0.0

        def tell(state: Progress) -> None:
            nonlocal last
            if self._stop.is_set():
                raise KeyboardInterrupt
            if state.done:
                soon = BEFORE * state.done / max(time.perf_counter() - state.started, 1e-9)
                if state.total - state.done <= max(running.few, soon):
                    running.nearly.set()
            now = time.monotonic()
            if now - last >= SECONDS_BETWEEN_WORDS:
                last = now
                self._messages.send({"at": part[0], "left": state.total - state.done, "rejected": state.rejected})

        return tell


if __name__ == "__main__":  # a process of its own, not a fork: see `fork_server.ForkServer`
    with os.fdopen(int(sys.argv[2]), "rb") as file:
        told = json.load(file)
    given = JobMessage(**told["job"])
    given.enter_folder()
    WorkerLoop(MessageSocket(socket.socket(fileno=int(sys.argv[1]))), WorkerResources.of(told["resources"])).run(
        given, None
    )
    sys.stderr.flush()
    os._exit(0)  # as a fork ends: what a library leaves running is nobody's any more
