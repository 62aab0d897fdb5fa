"""One graph measured by several processes at the same time: one a GPU, as `dali-run run` has them."""

from __future__ import annotations

import json
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
from ..compile.place import Target
from ..fleet.job_text import Seat
from ..fleet.machine import cpu_seats, gpu_seats
from ..fleet.reports import Worked, merged
from .measure import READY, Measurement

_PROCESSES = re.compile(r"processes:([1-9][0-9]{0,3})|")


def check(on: str) -> None:
    """Raises SpecError where ``on`` is nothing that `seats_of` knows."""
    if not _PROCESSES.fullmatch(on):
        raise SpecError(f"--on must be processes:N, got {on!r}")


def seats_of(on: str, target: Target) -> list[Seat]:
    """The places of the processes that measure together; none where one process measures alone."""
    found = _PROCESSES.fullmatch(on)
    n = int(found[1]) if found and found[1] else 0
    if not n and (target.device != "gpu" or len(target.indices) < 2):
        return []
    return gpu_seats(target.indices, n or None) if target.device == "gpu" else cpu_seats(n)


def measure_together(this: Measurement, seats: Sequence[Seat], patience: float) -> dict[str, Any]:
    """The result of a process for each seat: their rates summed, one report. They begin to count at the same moment,
    when all are warm; no result within ``patience`` seconds is an ``error``, and so is one process without any."""
    crew: list[_Process] = []
    late = threading.Timer(patience, _kill, (crew,))
    try:
        for k, seat in enumerate(seats):
            crew.append(_Process(this, seat, (k, len(seats))))
        late.start()
        for process in crew:
            if not process.ready():
                return {"error": f"{process.seat.name}: {process.problem()}"}
        for process in crew:
            process.go()
        found = [process.result() for process in crew]
    finally:
        late.cancel()
        _kill(crew)
    for process, result in zip(crew, found, strict=True):
        if "error" in result:
            return {"error": f"{process.seat.name}: {result['error']}"}
    return _joined(Path(this.spec).stem, seats, found)


def _joined(name: str, seats: Sequence[Seat], found: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    reports = [r["report"] for r in found]
    rate = sum(r["samples_per_second"] for r in found)
    seconds = max(float(r["seconds"]) for r in reports)
    read = sum(int(r["samples"]["read"]) for r in reports)
    node = socket.gethostname()
    workers = [Worked(seat.name, node, [report]) for seat, report in zip(seats, reports, strict=True)]
    report = merged(name, workers, seconds, {"read": read}, {})
    report["samples_per_second"] = round(rate, 1)
    return {
        "samples_per_second": rate,
        "first_batch_seconds": max(r["first_batch_seconds"] for r in found),
        "outputs": found[0]["outputs"],
        "report": report,
    }


def _kill(crew: Sequence[_Process]) -> None:
    for process in crew:
        process.kill()


class _Process:
    """One of them."""

    def __init__(self, this: Measurement, seat: Seat, turn: tuple[int, int]) -> None:
        self.seat = seat
        changes = {"pipeline.device": "gpu"} if seat.visible is not None else {}
        mine = replace(this, overrides={**this.overrides, **changes}, seat=seat.plain(), turn=turn)
        command = [sys.executable, "-m", "dali_run.pipelines.bench.measure", mine.as_json("measure")]
        self._said = tempfile.TemporaryFile()  # noqa: SIM115  # closed by `kill`
        try:
            self._process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=self._said,
                                             text=True)  # fmt: skip
        except BaseException:
            self._said.close()
            raise
        self._last = ""

    def ready(self) -> bool:
        """Wait until it is warm; False where it ended instead."""
        for line in self._out:
            if line.strip() == READY:
                return True
            self._last = line
        return False

    @property
    def _out(self) -> IO[str]:
        assert self._process.stdout is not None
        return self._process.stdout

    def go(self) -> None:
        """Let it measure."""
        assert self._process.stdin is not None
        with suppress(OSError):  # it has ended, and its result says so
            self._process.stdin.write("go\n")
            self._process.stdin.flush()

    def result(self) -> dict[str, Any]:
        """The last line that it prints, or why there is none."""
        for line in self._out:
            self._last = line
        try:
            found: dict[str, Any] = json.loads(self._last)
        except ValueError:
            return {"error": self.problem()}
        return found

    def problem(self) -> str:
        """Why it ended."""
        with suppress(ValueError, KeyError, TypeError):
            return str(json.loads(self._last)["error"])
        code = self._process.wait()
        self._said.seek(0)
        lines = self._said.read().decode(errors="replace").strip().splitlines()
        return lines[-1] if lines else f"ended with {code}"

    def kill(self) -> None:
        """End it, whatever it does."""
        if self._process.poll() is None:
            self._process.kill()
        self._process.wait()
        for pipe in (self._process.stdin, self._process.stdout, self._said):
            with suppress(OSError):
                if pipe is not None:
                    pipe.close()
