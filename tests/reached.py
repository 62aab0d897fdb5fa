"""Which test files reach which functions: `make reached` records it while all tests run, `tests.changed` reads it.

A function is named ``path:qualified name``; functions inside of others count as the outer one. Compiled loops, CUDA
kernels and what tests run in other processes are not seen.
"""

from __future__ import annotations

import ast
import os
import sys
import threading
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import CodeType, FrameType

import pytest

ROOT = Path(__file__).parents[1]
RECORDS = ROOT / "build" / "reached"
VARIABLE = "DALI_RUN_RECORD_REACHED"
"""Environment variable with the folder of records, while tests are to be recorded."""
MOST = 40
"""Largest number of test files for a change: of those that reach it, the ones that reach the fewest functions."""


class Recorder:
    """Plugin of pytest: records the functions that each test file calls, in all threads of the process."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._called: dict[str, dict[int, CodeType]] = {}
        self._current: dict[int, CodeType] = {}

    @contextmanager
    def recording(self, test: str) -> Iterator[None]:
        """Context manager: what is called in its body is called by the test file ``test``."""
        self._current = self._called.setdefault(test, {})
        before = sys.gettrace(), threading.gettrace()

        def trace(frame: FrameType, event: str, arg: object) -> None:
            self._current[id(frame.f_code)] = frame.f_code  # by identity: to hash a code object takes a microsecond

        threading.settrace(trace)
        sys.settrace(trace)
        try:
            yield
        finally:
            sys.settrace(before[0])
            threading.settrace(before[1])  # type: ignore[arg-type]

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_protocol(self, item: pytest.Item) -> Iterator[None]:
        with self.recording(item.path.relative_to(ROOT).as_posix()):
            return (yield)  # type: ignore[return-value]

    def pytest_sessionfinish(self) -> None:
        """Write a file for each test file; other processes of pytest-xdist add files of theirs."""
        self._folder.mkdir(parents=True, exist_ok=True)
        for test, codes in self._called.items():
            names = sorted(filter(None, map(_name_of, list(codes.values()))))
            path = self._folder / f"{test.replace('/', '+')}.{os.getpid()}"
            path.write_text("".join(f"{name}\n" for name in dict.fromkeys(names)))


def _name_of(code: CodeType) -> str:
    """Name of a function of the checkout; empty for all other code."""
    path, root = code.co_filename, f"{ROOT}/"
    if not path.startswith(root) or code.co_qualname.startswith("<"):
        return ""
    return f"{path.removeprefix(root).removeprefix('dali_run/')}:{code.co_qualname.split('.<locals>')[0]}"


def functions_at(path: str, lines: Collection[int], root: Path = ROOT) -> set[str]:
    """Functions of the file ``path`` that the ``lines`` (from 1) belong to; lines outside of functions have none."""
    found = set()

    def look(nodes: list[ast.stmt], prefix: str) -> None:
        for node in nodes:
            if isinstance(node, ast.ClassDef):
                look(node.body, f"{prefix}{node.name}.")
            elif isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
                first = min([node.lineno, *(d.lineno for d in node.decorator_list)])
                if any(first <= line <= (node.end_lineno or first) for line in lines):
                    found.add(f"{path}:{prefix}{node.name}")

    look(ast.parse((root / path).read_text()).body, "")
    return found


def reaching(functions: Collection[str], records: Path = RECORDS) -> list[str]:
    """Test files that call one of the ``functions``, those that call the fewest others first; at most `MOST`."""
    called: dict[str, set[str]] = {}
    for path in records.glob("*") if records.is_dir() else ():
        test = path.name.rpartition(".")[0].replace("+", "/")
        called.setdefault(test, set()).update(path.read_text().splitlines())
    tests = [test for test, names in called.items() if not names.isdisjoint(functions)]
    return sorted(tests, key=lambda test: (len(called[test]), test))[:MOST]
