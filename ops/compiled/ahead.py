"""Compile listed loops before they are needed, in several processes. Called by `pipelines.job.warm` and the tests'
setup."""

from __future__ import annotations

import json
import os
import queue
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from typing import Any

from . import store, target
from .listed import Loop
from .stamp import PACKAGE, ROOT, stamp

Answer = dict[str, Any]
"""Answer of a compiler process about one loop: ``key``, ``stamp``, ``kept``, ``file``, ``seconds``; or ``error``."""


def missing(wanted: Sequence[Loop]) -> list[Loop]:
    """Return the loops of ``wanted`` whose code is neither in the wheel's packs nor in a folder of the cache."""
    from .numba_cache import key_in_words

    found = []
    made_for = ""
    for loop in wanted:
        made_from = stamp(file_of(loop.module))
        key = key_in_words(loop)
        if any(pack.holds(key, made_from) for pack in store.packs()):
            continue
        made_for = made_for or target.of_this_process()
        if not store.holds(key, made_from, made_for):
            found.append(loop)
    return found


def file_of(module: str) -> Any:
    """Return the source file of a module of this package."""
    return ROOT.joinpath(*module.split(".")).with_suffix(".py")


def compile_all(
    wanted: Sequence[Loop], processes: int, done: Callable[[Loop, Answer], None],
    environment: Mapping[str, str] | None = None,
) -> None:  # fmt: skip
    """Compile the loops ``wanted`` in this order, in up to ``processes`` processes; ``done`` is called per loop, one at
    a time.

    If a loop ends its process (LLVM does that), only that loop fails: its answer is an ``error``, and another process
    takes the next one. The processes end when this function returns or raises, also for an interrupt; code that was
    stored by then stays stored."""
    todo: queue.SimpleQueue[Loop] = queue.SimpleQueue()
    for loop in wanted:
        todo.put(loop)
    answers: queue.SimpleQueue[tuple[Loop, Answer] | None] = queue.SimpleQueue()
    workers: list[Compiler] = []
    try:
        for _ in range(max(1, min(processes, len(wanted)))):
            workers.append(Compiler(environment or {}))
            workers[-1].start()
            threading.Thread(target=_feed, args=(workers[-1], todo, answers), daemon=True).start()
        ended = 0
        while ended < len(workers):
            answer = answers.get()
            if answer is None:
                ended += 1
            else:
                done(*answer)
    finally:
        for worker in workers:
            worker.end()


class Compiler:
    """A compiler process, which is replaced if a loop ends it. Its creator calls `end`; any thread may call `end`, one
    thread at a time `compile`."""

    def __init__(self, environment: Mapping[str, str], niceness: int = 0) -> None:
        """``niceness``: added to the niceness of this process."""
        path = os.pathsep.join(filter(None, (str(_above_package()), os.environ.get("PYTHONPATH", ""))))
        self._environment = {**os.environ, "PYTHONPATH": path, **environment}
        self._command = [sys.executable, "-m", f"{PACKAGE}.ops.compiled.worker", str(niceness)]
        self._said = tempfile.TemporaryFile()  # noqa: SIM115 -- closed in `end`
        self._lock = threading.Lock()
        self._process: subprocess.Popen[str] | None = None
        self._over = False

    def start(self) -> None:
        """Start the process, unless `end` was called."""
        with self._lock:
            if not self._over:
                self._said.seek(0)
                self._said.truncate()
                self._process = subprocess.Popen(
                    self._command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=self._said, text=True,
                    env=self._environment,
                )  # fmt: skip

    def compile(self, loop: Loop) -> Answer | None:
        """Compile ``loop`` and return the process's answer; None if `end` was called."""
        process = self._process
        assert process is not None
        assert process.stdin is not None
        assert process.stdout is not None
        answer = ""
        with suppress(OSError, ValueError):
            process.stdin.write(loop.line() + "\n")
            process.stdin.flush()
            answer = process.stdout.readline()
        if answer.endswith("\n"):
            found: Answer = json.loads(answer)
            return found
        self._kill()
        with self._lock:
            if self._over:
                return None
            said = os.pread(self._said.fileno(), 1 << 16, 0).decode(errors="replace").strip()
        self.start()
        return {"error": f"the compiler process ended ({process.returncode}): {said[-300:] or 'no output'}"}

    def end(self) -> None:
        """End the process; it is not started again."""
        with self._lock:
            self._over = True
            self._said.close()
        self._kill()

    def _kill(self) -> None:
        if (process := self._process) is not None:
            process.kill()
            process.wait()
            for stream in (process.stdin, process.stdout):
                with suppress(OSError):
                    stream.close()  # type: ignore[union-attr]


def _above_package() -> Any:
    from pathlib import Path

    return Path(sys.modules[PACKAGE].__file__ or ".").absolute().parents[1]


def _feed(worker: Compiler, todo: Any, answers: Any) -> None:
    """Let a process compile one loop after the other, until none is left or `end` was called."""
    try:
        with suppress(queue.Empty):
            while True:
                loop = todo.get_nowait()
                if (answer := worker.compile(loop)) is None:
                    break
                answers.put((loop, answer))
    finally:
        answers.put(None)
