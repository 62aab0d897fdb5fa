"""A stand-in for the driver's optical flow library (fake_nvofa.cpp), used with the stand-in for CuPy."""

from __future__ import annotations

import ctypes
import hashlib
import os
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path

import pytest

from dali_run.ops.sequences import nvofa

from .fake_cupy import Fake, faked

_SOURCE = Path(__file__).with_suffix(".cpp")
_KEPT = Path(__file__).parents[2] / ".pytest_cache" / "d" / "fake-nvofa"


@cache
def built() -> Path:
    """Build the library and return its path; skip the test if g++ is missing."""
    compiler = shutil.which("g++")
    if compiler is None:
        pytest.skip("needs g++ to build a stand-in for the driver's library")
    made = _KEPT / f"{hashlib.sha256(_SOURCE.read_bytes()).hexdigest()[:32]}.so"
    if not made.exists():
        made.parent.mkdir(parents=True, exist_ok=True)
        beside = made.with_suffix(f".{os.getpid()}")
        subprocess.run([compiler, "-std=c++17", "-O2", "-fPIC", "-shared", "-o", beside, _SOURCE], check=True)
        beside.replace(made)
    return made


class Engine:
    """Stand-in library for the optical flow engine, and its record of calls."""

    def __init__(self, library: ctypes.CDLL, gpu: Fake) -> None:
        self.library, self.gpu = library, gpu

    def fail(self, function: str, status: int, after: int = 0) -> None:
        """Let one call of a function of `nvofa.FUNCTIONS` return ``status``, after ``after`` other calls."""
        which = nvofa.FUNCTIONS.index(function)
        self.library.fake_fail(which, status, self.library.fake_calls(which) + after + 1)

    def calls(self, function: str) -> int:
        """Return the number of calls of a function of `nvofa.FUNCTIONS`."""
        return int(self.library.fake_calls(nvofa.FUNCTIONS.index(function)))

    @property
    def alive(self) -> int:
        """Return the number of handles and buffers that were not destroyed."""
        return int(self.library.fake_alive())


@contextmanager
def faked_engine() -> Iterator[Engine]:
    """Context manager for a GPU with an optical flow engine; asserts at the end that the driver has no handles left."""
    path = str(built())
    library = ctypes.CDLL(path)
    library.fake_reset()
    paths = nvofa._PATHS
    with faked(2, memory=True) as gpu:
        gpu.context = 1
        nvofa.forget()
        nvofa._PATHS = (path,)
        try:
            yield Engine(library, gpu)
        finally:
            nvofa.forget()
            nvofa._PATHS = paths
    assert library.fake_alive() == 0
