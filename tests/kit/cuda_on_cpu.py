"""Compile CUDA sources into libraries for the CPU, with g++ and cuda_emulator.h. The libraries are cached in pytest's
cache folder, for all processes of a run and for later runs."""

from __future__ import annotations

import ctypes
import hashlib
import os
import shutil
import subprocess
import tempfile
import time
from collections.abc import Sequence
from functools import cache
from pathlib import Path

import pytest

from dali_run.ops.gpu.lane import SOURCES

EMULATOR = Path(__file__).with_name("cuda_emulator.h")
_KEPT = Path(__file__).parents[2] / ".pytest_cache" / "d" / "cuda-on-cpu"
_DAYS = 14
"""Days after which a library that no test has used is removed."""
_COMMON = ("-std=c++17", "-fPIC", "-w", "-U_FORTIFY_SOURCE", "-ffp-contract=off")
_SHARED = ("-shared", "-Wl,-Bsymbolic")
"""Flags that link a library. It calls its own functions: Debian's Python has loaded zlib, whose `inflate` would be
called in place of the kernel of that name."""


@cache
def library(text: str, *flags: str) -> ctypes.CDLL:
    """Return the library of CUDA text, which may include headers of ops/cuda; skip the test if g++ is missing."""
    compiler = shutil.which("g++")
    if compiler is None:
        pytest.skip("needs g++ to run the CUDA sources on the CPU")
    headers = _headers(compiler, flags)
    built = headers / f"{hashlib.sha256(text.encode()).hexdigest()[:32]}.so"
    if not built.exists():
        _build(compiler, [*_SHARED, *flags, f"-I{headers}", f"-I{EMULATOR.parent}", f"-I{SOURCES}"], "c++",
               f'#include "{EMULATOR.name}"\n{text}\n', built)  # fmt: skip
    os.utime(built)
    return ctypes.CDLL(str(built))


@cache
def _headers(compiler: str, flags: Sequence[str]) -> Path:
    """Return the folder for libraries that are built with these flags and with the present headers. It contains the
    emulator's precompiled header, which saves half of a kernel's compile time."""
    known = hashlib.sha256(repr((compiler, _COMMON, _SHARED, flags)).encode())
    for header in (EMULATOR, *sorted(SOURCES.rglob("*.cuh"))):
        known.update(header.read_bytes())
    _remove_old()
    folder = _KEPT / known.hexdigest()[:32]
    folder.mkdir(parents=True, exist_ok=True)
    compiled = folder / f"{EMULATOR.name}.gch"
    if not compiled.exists():
        _build(compiler, list(flags), "c++-header", EMULATOR.read_text(), compiled)
    return folder


def _build(compiler: str, flags: list[str], language: str, text: str, to: Path) -> None:
    """Compile a text into the file ``to``. Another process may do the same at the same time; either result is used."""
    with tempfile.TemporaryDirectory() as folder:
        source, made = Path(folder, "source"), Path(folder, to.name)
        source.write_text(text)
        command = [compiler, *_COMMON, *flags, "-x", language, source, "-o", made]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr
        shutil.move(made, beside := to.with_suffix(f".{os.getpid()}"))
        beside.replace(to)


def _remove_old() -> None:
    """Remove libraries that no test has used for `_DAYS`."""
    for library in _KEPT.glob("*/*.so"):
        if library.stat().st_mtime < time.time() - _DAYS * 86400:
            library.unlink(missing_ok=True)
