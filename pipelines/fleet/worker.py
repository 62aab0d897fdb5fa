"""A worker process: run one part of a job after the other, as the driver assigns them, and report progress.

All finished work is recorded in the part's journal, so that the process can be ended at any moment: politely (an order,
SIGTERM, or the driver's end; then complete shards are published first) or not. Forked by the fork server, or started as
a program.
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
"""The open data sets of a job, and its identity (see `job.run.identity`)."""
_NOT_SENT = ("over_time", "command")
"""Keys of a job part's report that the worker does not send to the driver."""
NEARLY_DONE_BATCHES = 10
"""Number of last batches of a job part after which the next part may begin. When all batches have been read, about as
many are not yet written: they are in flight on a GPU, and in queues before and after it."""
NEARLY_DONE_SECONDS = 0.4
"""Remaining seconds, at the rate so far, from which on a job part counts as nearly done in any case. Opening the output
of the next part and reading its first batches takes some tenths of a second."""
_HANG_CHECK_SECONDS = 0.5
"""Seconds between two checks whether a GPU hangs, by a thread that waits for another one."""
SECONDS_BETWEEN_MESSAGES = 0.5
"""Seconds between two progress messages of a worker."""


def problem(error: BaseException) -> dict[str, Any]:
    """Return the message to the driver for an error that ends a worker."""
    kind = "spec" if isinstance(error, SpecError) else "device" if isinstance(error, DeviceError) else "job"
    text = str(error) if isinstance(error, DaliRunError) else f"{type(error).__name__}: {error}"
    return {"problem": text, "kind": kind}


def fitted(prepared: Prepared, resources: WorkerResources) -> Prepared:
    """Return the job with the number of threads and the memory budget that the ``resources`` of a worker allow."""
    return replace(prepared, built=replace(prepared.built, spec=fitted_spec(prepared.spec, resources)))


def fitted_spec(spec: Spec, resources: WorkerResources) -> Spec:
    """Return a copy of a spec with the threads and the memory budget that a worker's ``resources`` allow."""
    settings, memory = spec.pipeline, spec.pipeline.memory
    own = _share(memory.host, HOST_SHARE, resources.share)
    gpu = memory.gpu if resources.gpu_share == 1 else _share(memory.gpu, GPU_SHARE, resources.gpu_share)
    threads = resources.threads if settings.num_threads == "auto" else settings.num_threads
    return replace(spec, pipeline=replace(settings, num_threads=threads, memory=replace(memory, host=own, gpu=gpu)))


def _share(limit: Limit, default: float, share: float) -> Limit:
    limit = default if limit is None else limit
    return limit * share if isinstance(limit, float) else max(1, int(limit * share))


def bind_to(resources: WorkerResources) -> None:
    """Bind this process to the cores and the GPU in ``resources``. Must be called before the first thread starts, and
    before CUDA is initialised."""
    if resources.visible is not None:
        os.environ["CUDA_VISIBLE_DEVICES"] = resources.visible
    if resources.cpus and hasattr(os, "sched_setaffinity"):
        with contextlib.suppress(OSError):  # the control group may not have these cores
            os.sched_setaffinity(0, resources.cpus)


class _RunningPart:
    """A job part that the worker runs in a thread, or has run. Created by `WorkerLoop`."""

    def __init__(self, before: _RunningPart | None, nearly_done_samples: int) -> None:
        """``before``: the previous job part, whose end must be reported first. ``nearly_done_samples``: number of
        remaining samples at which this part counts as nearly done."""
        self.before = before
        self.nearly_done_samples = nearly_done_samples
        self.nearly = threading.Event()
        self.thread: threading.Thread | None = None

    def join(self) -> None:
        """Wait until the job part has ended and its end was reported to the driver. Stop waiting if a GPU hangs."""
        while self.thread is not None and self.thread.is_alive() and not any_hung():
            self.thread.join(_HANG_CHECK_SECONDS)


class WorkerLoop:
    """The main loop of one worker process. Created by the fork server, or by the program's main; `run` blocks until the
    worker ends."""

    def __init__(self, messages: MessageSocket, resources: WorkerResources) -> None:
        self._messages = messages
        self._seat = resources
        self._stop = threading.Event()
        self._orders: queue.SimpleQueue[dict[str, Any] | None] = queue.SimpleQueue()
        self._command: Mapping[str, Any] = {}

    def run(self, job: JobMessage, opened: Opened | None) -> None:
        """Run job parts until there is no more work. If ``opened`` is given, its data sets are used; otherwise they are
        opened. Errors are reported to the driver, not raised."""
        signal.signal(signal.SIGTERM, lambda *_: self._end())
        signal.signal(signal.SIGINT, signal.SIG_IGN)  # the driver handles Ctrl-C
        try:
            bind_to(self._seat)
            with job.file() as path:
                prepared = fitted(prepare(path, job.overrides, device=job.device), self._seat)
            open_sources = None if opened is None else opened[0]
            with Sources(prepared.plan, prepared.spec.pipeline.batch_size, open_sources) as sources:
                who = identity(prepared, sources) if opened is None else opened[1]
                open_job = OpenJob(prepared, sources, who, job.limit)
                self._command = {"spec": job.path, "overrides": dict(job.overrides), "device": job.device}
                span = open_job.positions
                self._messages.send({"opened": [span.start, span.stop], "who": who, "process": identify()})
                threading.Thread(target=self._listen, name="orders", daemon=True).start()
                self._serve(open_job)
                if not any_hung():
                    with contextlib.suppress(Exception):  # a failed GPU fails again, and everything was reported
                        open_job.close()
        except Exception as e:
            self._messages.send(problem(e))

    def _listen(self) -> None:
        for order in self._messages.receive():
            if "part" in order:
                self._orders.put(order)
            else:
                break
        self._end()  # a stop order, or the driver has ended

    def _end(self) -> None:
        self._stop.set()
        self._orders.put(None)

    def _serve(self, job: OpenJob) -> None:
        """Run the job parts that the driver assigns, one after the other, each in a thread. On a GPU, the next part
        begins a few batches before the end of the current one. Otherwise the GPU would wait until the last shards are
        written and the first batches of the next part are read."""
        last: _RunningPart | None = None
        while not self._stop.is_set() and (order := self._orders.get()) is not None:
            part = order["part"][0], order["part"][1]
            last = _RunningPart(last, NEARLY_DONE_BATCHES * job.prepared.spec.pipeline.batch_size)
            last.thread = threading.Thread(
                target=self._part, name=f"part {part[0]}", args=(job, part, range(*order["range"]), last), daemon=True
            )
            last.thread.start()
            last.nearly.wait()
            if job.prepared.target.device == "cpu":  # the threads of a CPU job have work to the end
                last.thread.join()
            elif not self._stop.is_set():
                self._messages.send({"soon": part[0]})
        while last is not None and not any_hung():
            last.join()
            last = last.before

    def _part(self, job: OpenJob, part: tuple[int, int], span: range, running: _RunningPart) -> None:
        """Run one job part, and report its end to the driver after the end of the previous part. If the worker cannot
        continue, it begins no further part."""
        report_message: dict[str, Any] | None = None
        can_continue = False
        try:
            ended = (result := job.run(part, span, self._progress_callback(part, running), self._command)).job
            report = {k: v for k, v in ended.report.items() if k not in _NOT_SENT}
            report_message = {
                "ended": part[0], "code": ended.exit_code, "text": ended.message, "written": result.written,
                "rejected": result.rejected, "left_out": result.left_out, "report": report, "final": ended.final,
            }  # fmt: skip
            can_continue = ended.exit_code != FAILED and not any_hung()  # a fresh process may succeed
        except BusyError as e:
            report_message, can_continue = {"busy": part[0], "owner": e.owner, "text": str(e)}, True
        except KeyboardInterrupt:
            pass
        except Exception as e:
            report_message, can_continue = {**problem(e), "part": part[0]}, not isinstance(e, DeviceError)
        finally:
            if not can_continue:
                self._end()
            running.nearly.set()
            if running.before is not None and not any_hung():
                running.before.join()
            running.before = None
            if report_message is not None:
                self._messages.send(report_message)

    def _progress_callback(self, part: tuple[int, int], running: _RunningPart) -> Callable[[Progress], None]:
        last = 0.0

        def tell(state: Progress) -> None:
            nonlocal last
            if self._stop.is_set():
                raise KeyboardInterrupt
            if state.done:
                soon = NEARLY_DONE_SECONDS * state.done / max(time.perf_counter() - state.started, 1e-9)
                if state.total - state.done <= max(running.nearly_done_samples, soon):
                    running.nearly.set()
            now = time.monotonic()
            if now - last >= SECONDS_BETWEEN_MESSAGES:
                last = now
                self._messages.send({"at": part[0], "left": state.total - state.done, "rejected": state.rejected})

        return tell


if __name__ == "__main__":  # started as a program, not forked: see `fork_server.ForkServer`
    with os.fdopen(int(sys.argv[2]), "rb") as file:
        fields = json.load(file)
    given = JobMessage(**fields["job"])
    given.enter_folder()
    WorkerLoop(MessageSocket(socket.socket(fileno=int(sys.argv[1]))), WorkerResources.of(fields["resources"])).run(
        given, None
    )
    sys.stderr.flush()
    os._exit(0)  # as forks end: threads that a library left running are ignored
