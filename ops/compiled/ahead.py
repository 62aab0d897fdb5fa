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
from .signatures import Loop
from .stamp import PACKAGE, ROOT, stamp

Answer = dict[str, Any]
"""Answer of a compiler process about one Numba function: a dict with ``key``, ``stamp``, ``kept``, ``file`` and
``seconds``, as `worker.compiled` returns it, or with ``error`` alone."""


def missing(wanted: Sequence[Loop]) -> list[Loop]:
    """Return the Numba functions of ``wanted`` for which neither the wheel nor a cache folder of this machine has
    machine code."""
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
    """Return the path of the source file of ``module``, which is named without the package's name."""
    return ROOT.joinpath(*module.split(".")).with_suffix(".py")


def compile_all(
    wanted: Sequence[Loop], processes: int, done: Callable[[Loop, Answer], None],
    environment: Mapping[str, str] | None = None,
) -> None:  # fmt: skip
    """Compile the Numba functions ``wanted`` in up to ``processes`` processes. Each takes the first that is left, then
    others of its module, which often call the same functions. After each function, ``done`` is called with the answer,
    never by two threads at a time.

    If LLVM crashes, only that function fails: its answer is an ``error``, and a new process compiles the next one. All
    processes end when this function returns or raises, also after an interrupt. Code that was stored before stays
    stored."""
    todo, lock = list(wanted), threading.Lock()

    def next_of(module: str) -> Loop | None:
        with lock:
            same = (k for k, loop in enumerate(todo) if loop.module == module)
            return todo.pop(next(same, 0)) if todo else None

    answers: queue.SimpleQueue[tuple[Loop, Answer] | None] = queue.SimpleQueue()
    workers: list[Compiler] = []
    try:
        for _ in range(max(1, min(processes, len(wanted)))):
            workers.append(Compiler(environment or {}))
            workers[-1].start()
            threading.Thread(target=_feed, args=(workers[-1], next_of, answers), daemon=True).start()
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
    """Process that compiles Numba functions. If it crashes, a new one takes its place. The creator of the instance
    calls `end`. Any thread may call `end`; only one thread at a time may call `compile`."""

    def __init__(self, environment: Mapping[str, str], niceness: int = 0) -> None:
        """``environment``: variables to add to those of this process. ``niceness``: number to add to this process's
        niceness."""
        path = os.pathsep.join(filter(None, (str(_above_package()), os.environ.get("PYTHONPATH", ""))))
        self._environment = {**os.environ, "PYTHONPATH": path, **environment}
        self._command = [sys.executable, "-m", f"{PACKAGE}.ops.compiled.worker", str(niceness)]
        self._said = tempfile.TemporaryFile()  # noqa: SIM115 -- closed in `end`
        self._lock = threading.Lock()
        self._process: subprocess.Popen[str] | None = None
        self._over = False

    def start(self) -> None:
        """Start the compiler process, unless `end` was called before."""
        with self._lock:
            if not self._over:
                self._said.seek(0)
                self._said.truncate()
                self._process = subprocess.Popen(
                    self._command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=self._said, text=True,
                    env=self._environment,
                )  # fmt: skip

    def compile(self, loop: Loop) -> Answer | None:
        """Let the process compile the Numba function ``loop``, and return its answer; None if `end` was called."""
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
        """End the compiler process. Later calls of `start` and `compile` do nothing."""
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


def _feed(worker: Compiler, next_of: Callable[[str], Loop | None], answers: Any) -> None:
    """Let one process compile Numba functions one after the other, until ``next_of(module)`` returns None or
    `Compiler.end` was called; ``module`` is that of the function before. Puts each answer into ``answers``, then
    None."""
    module = ""
    try:
        while (loop := next_of(module)) is not None and (answer := worker.compile(loop)) is not None:
            answers.put((loop, answer))
            module = loop.module
    finally:
        answers.put(None)
