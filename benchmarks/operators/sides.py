"""A process per library: its requests and answers, and the timing of a pipeline in it.

A library's process (`answer_lines`) reads a line of JSON from standard input for each request and writes a line of JSON
with the answer. `Child` is such a process, seen from the process that compares.
"""

from __future__ import annotations

import json
import os
import select
import subprocess
import sys
import time
from collections.abc import Callable
from typing import Any

PATIENCE = 40.0
"""Seconds after which a process that does not answer is ended."""


def timed(pipe: Any, batch: int, seconds: float, wait: Callable[[Any], None]) -> dict[str, float]:
    """Return the samples per second, and the microseconds of processor time (all threads) and wall time per batch.
    ``wait`` gets the last outputs and returns when the device has computed them."""
    begin = time.perf_counter()
    for k in range(200):
        out = pipe.run()
        if k >= 3 and time.perf_counter() - begin > max(seconds * 0.25, 0.03):
            break
    wait(out)
    begin, busy, count = time.perf_counter(), time.process_time(), 0
    while time.perf_counter() - begin < seconds:
        out = pipe.run()
        count += 1
    wait(out)
    passed, busy = time.perf_counter() - begin, time.process_time() - busy
    return {"rate": count * batch / passed, "busy": busy / count * 1e6, "batch_us": passed / count * 1e6}


def answer_lines(hello: Callable[[], dict[str, Any]], answer: Callable[[dict[str, Any]], dict[str, Any]]) -> int:
    """Print the greeting, then answer each request on standard input. The answer to a request that raises an exception
    is the error."""
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # other output of libraries must not mix with answers
    print(json.dumps(hello()), file=answers, flush=True)
    for line in sys.stdin:
        try:
            found = answer(json.loads(line))
        except Exception as e:  # the error is the answer, and the other cases go on
            found = {"error": " ".join(f"{type(e).__name__}: {e}".split())[:400]}
        print(json.dumps(found), file=answers, flush=True)
    return 0


class Child:
    """The process of a library. If it crashes or hangs, only the current case is lost, and the process is restarted."""

    def __init__(
        self, python: str, script: str, arguments: list[str], path: str | None = None, patience: float = PATIENCE
    ) -> None:
        found = os.environ if path is None else os.environ | {"PYTHONPATH": path}
        self._patience = patience
        self._begin: Callable[[], subprocess.Popen[str]] = lambda: subprocess.Popen(
            [python, "-W", "ignore", script, *arguments], text=True, env=found,
            stdin=subprocess.PIPE, stdout=subprocess.PIPE)  # fmt: skip
        self._start()

    def _start(self) -> None:
        self._process = self._begin()
        self.hello = self._greeted()

    def _greeted(self) -> dict[str, Any]:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            raise SystemExit(f"{self._process.args}: ended with {self._process.wait()} before it was asked anything")
        found: dict[str, Any] = json.loads(line)
        return found

    def tell(self, **what: Any) -> None:
        assert self._process.stdin is not None
        try:
            self._process.stdin.write(json.dumps(what) + "\n")
            self._process.stdin.flush()
        except BrokenPipeError:
            pass

    def answer(self) -> dict[str, Any]:
        assert self._process.stdout is not None
        ready = select.select([self._process.stdout], [], [], self._patience)[0]
        line = self._process.stdout.readline() if ready else ""
        if not line:
            self._process.kill()
            how = f"ended with {self._process.wait()}" if ready else f"no answer in {self._patience:g} s"
            self._start()
            return {"error": how}
        found: dict[str, Any] = json.loads(line)
        return found

    def ask(self, **what: Any) -> dict[str, Any]:
        self.tell(**what)
        return self.answer()

    def close(self) -> None:
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._process.wait()
