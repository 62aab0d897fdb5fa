"""Compiled loops are kept and loaded: by many processes at once, whatever can be written, for their source only."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

PROJECT = Path(__file__).parents[3]

LOOPS = """
import numba
import numpy as np
from .numbers import FACTOR

jit = numba.njit(nogil=True, cache=True)

@jit
def scaled(x):
    if x > 1000:
        raise ValueError("too large")
    return x * FACTOR

@jit
def total(values):
    sums = np.zeros(2)
    for v in values:
        sums[0] += scaled(v)
        sums[1] += 1
    return sums

@numba.njit("int64(int64)", nogil=True, cache=True)
def explicit(x):
    return x + 1

@jit
def both(values):
    return total(values)[0] + explicit(len(values))
"""
RUN = """
import importlib.util, json, sys
from pathlib import Path
import numpy as np
import dali_run.ops
from dali_run.ops.compiled import numba_cache, store

{before}
def load(name, file):
    spec = importlib.util.spec_from_file_location(name, file)
    module = sys.modules[name] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module

folder = Path(sys.argv[1])
load("dali_run.tested", folder / "__init__.py").__path__ = [str(folder)]
tested = load("dali_run.tested.loops", folder / "loops.py")
"""
SHOW = """
values = np.arange(5.0)
found = [tested.total(values).tolist(), int(tested.explicit(4)), tested.both(values), tested.total(values).tolist()]
try:
    tested.total(np.array([2000.0]))
except ValueError as e:
    found.append(str(e))
print(json.dumps({"found": found, "compiled": numba_cache.times.compiled, "loaded": numba_cache.times.loaded}))
"""
RIGHT = [[20.0, 5.0], 5, 26.0, [20.0, 5.0], "too large"]


@pytest.fixture
def source(tmp_path: Path) -> Path:
    """A package of loops, as if it were part of this project's."""
    folder = tmp_path / "tested"
    folder.mkdir()
    (folder / "__init__.py").touch()
    (folder / "numbers.py").write_text("FACTOR = 2\n")
    (folder / "loops.py").write_text(LOOPS)
    return folder


def start(source: Path, cache: Path, script: str = SHOW, before: str = "", **environment: str) -> subprocess.Popen[str]:
    folders = {"PYTHONPATH": str(PROJECT), "NUMBA_CACHE_DIR": str(cache), "XDG_CACHE_HOME": str(cache / "home")}
    return subprocess.Popen(
        [sys.executable, "-c", RUN.format(before=before) + script, str(source)],
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env={**os.environ, **folders, **environment},
    )  # fmt: skip


def ended(process: subprocess.Popen[str]) -> dict[str, Any]:
    out, err = process.communicate(timeout=240)
    assert process.returncode == 0, err
    shown: dict[str, Any] = json.loads(out.splitlines()[-1])
    return shown


def test_loops_are_compiled_once_and_for_their_source_only(source: Path, tmp_path: Path) -> None:
    cache = tmp_path / "cache"
    assert ended(start(source, cache)) == {"found": RIGHT, "compiled": 3, "loaded": 0}
    assert ended(start(source, cache)) == {"found": RIGHT, "compiled": 0, "loaded": 3}
    assert not list(source.rglob("*.nb?"))  # nothing beside the sources

    times = source.stat().st_mtime - 1e6
    for file in source.glob("*.py"):
        os.utime(file, (times, times))  # a copy, a checkout: the same source at another time
    assert ended(start(source, cache))["compiled"] == 0

    (source / "numbers.py").write_text("FACTOR = 3\n")  # which the loops' own file does not show
    assert ended(start(source, cache)) == {
        "found": [[30.0, 5.0], 5, 36.0, [30.0, 5.0], "too large"],
        "compiled": 3,
        "loaded": 0,
    }

    for entry in (cache / "dali-run").iterdir():
        entry.write_bytes(entry.read_bytes()[:-20])  # a full disk, a machine that lost its power
    assert ended(start(source, cache))["compiled"] == 3


def test_many_processes_start_at_once(source: Path, tmp_path: Path) -> None:
    cache = tmp_path / "cache"
    for process in [start(source, cache) for _ in range(4)]:
        assert ended(process)["found"] == RIGHT
    assert ended(start(source, cache)) == {"found": RIGHT, "compiled": 0, "loaded": 3}
    assert not list((cache / "dali-run").glob(".new-*"))


def test_nothing_need_be_writable(source: Path, tmp_path: Path) -> None:
    nowhere = tmp_path / "file"
    nowhere.touch()
    shown = ended(start(source, nowhere / "cache", before="store.checkout = lambda: False\n", HOME=str(nowhere)))
    assert shown == {"found": RIGHT, "compiled": 3, "loaded": 0}


def test_what_was_loaded_goes_into_other_loops_and_can_still_be_called(source: Path, tmp_path: Path) -> None:
    cache = tmp_path / "cache"
    ended(start(source, cache, "tested.total(np.arange(3.0)); tested.explicit(1); print(json.dumps({}))"))
    script = "import gc\n" + SHOW.replace("tested.both(values), ", "tested.both(values), gc.collect() * 0 or ", 1)
    shown = ended(start(source, cache, script))
    assert shown == {"found": RIGHT, "compiled": 1, "loaded": 2}


def test_signatures_of_decorators_are_compiled_when_they_are_called(source: Path, tmp_path: Path) -> None:
    """As if Numba had compiled both on import: the exact one is taken, other types are converted, or are an error."""
    with (source / "loops.py").open("a") as file:
        file.write(
            '@numba.njit(["float64(float64)", "int64(int64)"], cache=True)\ndef wide(x):\n    return x + x\n'
            "@jit\ndef outer(x):\n    return wide(x)\n"
        )
    script = """
times, at_import = numba_cache.times, numba_cache.times.compiled
first = [tested.wide(3), times.compiled, tested.wide(4), times.compiled]
small = tested.outer(np.int16(5)), times.compiled
both = [tested.wide(np.int16(7)), times.compiled, tested.wide(1.5), tested.wide(np.float32(0.5)), tested.wide(2)]
try:
    tested.wide("text")
except TypeError as e:
    error = str(e)
print(json.dumps([at_import, first, small, both, len(tested.wide.overloads), "No matching definition" in error]))
"""
    assert ended(start(source, tmp_path / "cache", script)) == [0, [6, 1, 8, 1], [10, 2], [14, 3, 3.0, 1.0, 4], 2, True]


def test_threads_that_wait_for_a_declared_signature_get_it(source: Path, tmp_path: Path) -> None:
    """All of them ask for their own types, which are converted; the first compiles, the others come after it."""
    script = """
import threading, time
from numba.core.compiler_lock import global_compiler_lock as lock
from numba.core.dispatcher import Dispatcher
asked, results, hooked = [], [], Dispatcher.compile
def compile(its, sig):
    asked.append(sig)
    return hooked(its, sig)
Dispatcher.compile = compile
threads = [threading.Thread(target=lambda: results.append(int(tested.explicit(np.int16(4))))) for _ in range(4)]
with lock:
    for thread in threads:
        thread.start()
    while len(asked) < 4:
        time.sleep(0.01)
for thread in threads:
    thread.join()
print(json.dumps([results, numba_cache.times.compiled]))
"""
    assert ended(start(source, tmp_path / "cache", script)) == [[5] * 4, 1]


@pytest.mark.parametrize(
    "variables", [{"NUMBA_CPU_NAME": "generic"}, {"NUMBA_CPU_NAME": "x86-64"}, {"NUMBA_DISABLE_JIT": "1"}]
)
def test_other_processors_and_none(source: Path, tmp_path: Path, variables: dict[str, str]) -> None:
    assert ended(start(source, tmp_path / "cache", SHOW, **variables))["found"] == RIGHT


def test_interrupts_wait_until_nothing_is_half_compiled(source: Path, tmp_path: Path) -> None:
    """One in the midst of it leaves Numba's tables of functions half filled, and every later call fails."""
    script = (
        """
import signal
from numba.core.compiler_lock import global_compiler_lock as lock
calls, sent, early, interrupted = 0, 0, [], 0
def handler(number, frame):
    if lock.is_locked():
        early.append(frame)
    raise KeyboardInterrupt
signal.signal(signal.SIGINT, handler)
def now_and_then(*_):
    global calls, sent
    calls += 1
    if calls % 5000 == 0 and lock.is_locked():
        sent += 1
        signal.raise_signal(signal.SIGINT)
while sent < 3:
    sys.setprofile(now_and_then)
    try:
        tested.both(np.arange(5.0))
    except KeyboardInterrupt:
        interrupted += 1
    sys.setprofile(None)
assert sent and interrupted and not early, (sent, interrupted, early)
"""
        + SHOW
    )
    assert ended(start(source, tmp_path / "cache", script))["found"] == RIGHT
    assert ended(start(source, tmp_path / "cache"))["found"] == RIGHT


def test_what_takes_long_is_told_while_it_is_compiled(source: Path, tmp_path: Path) -> None:
    """The first loop alone may take ten seconds: its line does not wait for the second, and comes once. What is
    compiled while the module is imported is not told of, however long it takes: this is about the first call."""
    script = (
        """
import threading
assert not numba_cache.times.announced
said, told, before = [], threading.Event(), numba_cache.times.compiled
def tell(line):
    said.append((line, numba_cache.times.compiled))
    told.set()
numba_cache.tell = tell
numba_cache._LONG = 0.0
numba_compile = tested.both._compiler.compile
def slowly(*args):
    assert told.wait(200)
    return numba_compile(*args)
tested.both._compiler.compile = slowly
tested.both(np.arange(5.0))
tested.total(np.arange(5.0))
(line, compiled), = said
assert compiled == before, said
assert line.startswith("compiling CPU kernels for this machine. They are kept for later runs"), line
"""
        + SHOW
    )
    patient = "numba_cache._LONG = 1e6"
    assert ended(start(source, tmp_path / "cache", script, before=patient))["found"] == RIGHT
    assert ended(start(source, tmp_path / "cache", "assert not numba_cache.times.announced\n" + SHOW))["compiled"] == 0


def test_functions_of_others_are_compiled_and_kept_as_numba_does(tmp_path: Path) -> None:
    script = """
import numba
def double(x):
    return 2 * x
double.__module__ = "somebody.else"
theirs = numba.njit(cache=True)(double)
print(json.dumps({"is": type(theirs._cache).__name__, "gives": theirs(4), "compiled": numba_cache.times.compiled}))
"""
    own = tmp_path / "own"
    own.mkdir()
    (own / "program.py").write_text(
        "import json\nimport dali_run.ops\nfrom dali_run.ops.compiled import numba_cache\n" + script
    )
    done = subprocess.run(
        [sys.executable, own / "program.py"], capture_output=True, text=True, check=False, timeout=240,
        env={**os.environ, "PYTHONPATH": str(PROJECT), "NUMBA_CACHE_DIR": str(tmp_path / "c")},
    )  # fmt: skip
    assert json.loads(done.stdout) == {"is": "FunctionCache", "gives": 8, "compiled": 0}, done.stderr
