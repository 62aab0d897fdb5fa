"""Measure one graph with several processes at the same time: one per GPU, as `dali-run run` starts them."""

from __future__ import annotations

import re
import socket
import subprocess
import sys
import tempfile
import threading
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import IO, Any

from ...ops.errors import SpecError
from ...ops.storage.json_text import parse_json
from ..compile.place import Target
from ..fleet.job_message import WorkerResources
from ..fleet.machine import share_cpu, share_gpus
from ..fleet.reports import WorkerReport, merged
from .measure import READY, Measurement

_PROCESSES = re.compile(r"processes:([1-9][0-9]{0,3})|")


def check(on: str) -> None:
    """Raise SpecError if ``on`` is not a text that `resources_of` accepts, such as ``processes:4``."""
    if not _PROCESSES.fullmatch(on):
        raise SpecError(f"--on must be processes:N, got {on!r}")


def resources_of(on: str, target: Target) -> list[WorkerResources]:
    """Return the resources (cores and GPU) of each process that measures, if ``on`` requests several or there are
    several GPUs. Empty for a single process."""
    match = _PROCESSES.fullmatch(on)
    n = int(match[1]) if match and match[1] else 0
    if not n and (target.device != "gpu" or len(target.indices) < 2):
        return []
    return share_gpus(target.indices, n or None) if target.device == "gpu" else share_cpu(n)


def measure_together(this: Measurement, resources: Sequence[WorkerResources], patience: float) -> dict[str, Any]:
    """Measure with one process for each of ``resources``, all at the same time, and return one result: the sum of their
    rates, and one report.

    All start to measure at the same moment, after all have warmed up. If a process returns no result within
    ``patience`` seconds, the result has an ``error``."""
    processes: list[_Process] = []
    late = threading.Timer(patience, _kill, (processes,))
    try:
        for k, each in enumerate(resources):
            processes.append(_Process(this, each, (k, len(resources))))
        late.start()
        for process in processes:
            if not process.ready():
                return {"error": f"{process.resources.name}: {process.problem()}"}
        for process in processes:
            process.start()
        results = [process.result() for process in processes]
    finally:
        late.cancel()
        _kill(processes)
    for process, result in zip(processes, results, strict=True):
        if "error" in result:
            return {"error": f"{process.resources.name}: {result['error']}"}
    return _joined(Path(this.spec).stem, resources, results)


def _joined(name: str, resources: Sequence[WorkerResources], results: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    reports = [r["report"] for r in results]
    rate = sum(r["samples_per_second"] for r in results)
    seconds = max(float(r["seconds"]) for r in reports)
    read = sum(int(r["samples"]["read"]) for r in reports)
    node = socket.gethostname()
    workers = [
        WorkerReport(resources.name, node, [report]) for resources, report in zip(resources, reports, strict=True)
    ]
    report = merged(name, workers, seconds, {"read": read}, {})
    report["samples_per_second"] = round(rate, 1)
    return {
        "samples_per_second": rate,
        "first_batch_seconds": max(r["first_batch_seconds"] for r in results),
        "outputs": results[0]["outputs"],
        "report": report,
    }


def _kill(processes: Sequence[_Process]) -> None:
    for process in processes:
        process.kill()


class _Process:
    """One of several processes that measure together. Created by `measure_together`, which also kills it."""

    def __init__(self, this: Measurement, resources: WorkerResources, turn: tuple[int, int]) -> None:
        self.resources = resources
        changes = {"pipeline.device": "gpu"} if resources.visible is not None else {}
        own_measurement = replace(
            this, overrides={**this.overrides, **changes}, resources=resources.to_dict(), turn=turn
        )
        command = [sys.executable, "-m", "dali_run.pipelines.bench.measure", own_measurement.as_json("measure")]
        self._stderr = tempfile.TemporaryFile()  # noqa: SIM115  # closed by `kill`
        try:
            self._process = subprocess.Popen(
                command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=self._stderr, text=True
            )
        except BaseException:
            self._stderr.close()
            raise
        self._last = ""

    def ready(self) -> bool:
        """Wait until the process has warmed up; return False if it ended instead."""
        for line in self._out:
            if line.strip() == READY:
                return True
            self._last = line
        return False

    @property
    def _out(self) -> IO[str]:
        assert self._process.stdout is not None
        return self._process.stdout

    def start(self) -> None:
        """Tell the process to start measuring."""
        assert self._process.stdin is not None
        with suppress(OSError):  # it has ended, and `result` reports that
            self._process.stdin.write("go\n")
            self._process.stdin.flush()

    def result(self) -> dict[str, Any]:
        """Return the JSON result that the process prints as its last line, or an error."""
        for line in self._out:
            self._last = line
        try:
            found: dict[str, Any] = parse_json(self._last)
        except ValueError:
            return {"error": self.problem()}
        return found

    def problem(self) -> str:
        """Return the reason why the process ended."""
        with suppress(ValueError, KeyError, TypeError):
            return str(parse_json(self._last)["error"])
        code = self._process.wait()
        self._stderr.seek(0)
        lines = self._stderr.read().decode(errors="replace").strip().splitlines()
        return lines[-1] if lines else f"ended with {code}"

    def kill(self) -> None:
        """Kill the process, whatever it is doing."""
        if self._process.poll() is None:
            self._process.kill()
        self._process.wait()
        for pipe in (self._process.stdin, self._process.stdout, self._stderr):
            with suppress(OSError):
                if pipe is not None:
                    pipe.close()
