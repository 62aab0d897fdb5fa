"""Compiling ahead: listed loops, by several processes at once."""

from __future__ import annotations

import json
import os
import queue
import subprocess
import sys
import threading
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from typing import Any

from . import store, target
from .listed import Loop
from .stamp import PACKAGE, ROOT, stamp

Answer = dict[str, Any]
"""A worker's answer about a loop: ``key``, ``stamp``, ``kept``, ``file``, ``seconds``; or ``error``."""


def missing(wanted: Sequence[Loop]) -> list[Loop]:
    """Those of ``wanted`` that neither the wheel's packs nor the folder hold."""
    from .loops import key_in_words

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
    """The source of a module of this package."""
    return ROOT.joinpath(*module.split(".")).with_suffix(".py")


def compile_all(
    wanted: Sequence[Loop], processes: int, done: Callable[[Loop, Answer], None],
    environment: Mapping[str, str] | None = None,
) -> None:  # fmt: skip
    """Compile ``wanted`` by so many ``processes``, in this order; ``done`` is told of each, one at a time.

    Whatever ends this function, an interrupt too, ends the processes; what they have kept by then stays kept."""
    todo: queue.SimpleQueue[Loop] = queue.SimpleQueue()
    for loop in wanted:
        todo.put(loop)
    answers: queue.SimpleQueue[tuple[Loop, Answer] | None] = queue.SimpleQueue()
    workers = [_start(environment or {}) for _ in range(max(1, min(processes, len(wanted))))]
    threads = [threading.Thread(target=_feed, args=(w, todo, answers), daemon=True) for w in workers]
    try:
        for thread in threads:
            thread.start()
        ended = 0
        while ended < len(threads):
            answer = answers.get()
            if answer is None:
                ended += 1
            else:
                done(*answer)
    finally:
        for worker in workers:
            worker.kill()
        for worker in workers:
            worker.wait()
            for stream in (worker.stdin, worker.stdout):
                with suppress(OSError):
                    stream.close()  # type: ignore[union-attr]


def _start(environment: Mapping[str, str]) -> subprocess.Popen[str]:
    path = os.pathsep.join(filter(None, (str(_above_package()), os.environ.get("PYTHONPATH", ""))))
    return subprocess.Popen(
        [sys.executable, "-m", f"{PACKAGE}.ops.compiled.worker"],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True,
        env={**os.environ, "PYTHONPATH": path, **environment},
    )  # fmt: skip


def _above_package() -> Any:
    from pathlib import Path

    return Path(sys.modules[PACKAGE].__file__ or ".").absolute().parents[1]


def _feed(worker: subprocess.Popen[str], todo: Any, answers: Any) -> None:
    """Hand a worker one loop after the other, until there are no more or it is gone."""
    assert worker.stdin is not None
    assert worker.stdout is not None
    with suppress(queue.Empty, OSError, ValueError):
        while True:
            loop = todo.get_nowait()
            worker.stdin.write(loop.line() + "\n")
            worker.stdin.flush()
            answer = worker.stdout.readline()
            if not answer:
                break
            answers.put((loop, json.loads(answer)))
    answers.put(None)
