"""CUDA binaries of the wheel: kernels that NVRTC compiled when the wheel was built, found by their source text.

For each major version of CUDA, a file of the wheel (`store.Pack`) holds one binary per kernel and GPU architecture. A
binary's key is the digest of all text that NVRTC would read, and for an instance of a template also the kernel; so a
binary is never used for a source that has changed. CUDA binaries of one major version of CUDA run with every driver of
that version and of later ones, whatever CuPy was built for. Binaries for capability 8.0 run on 8.6, but not the
reverse; GPUs that are newer than all of them get PTX, which the driver compiles. Called by `gpu.lane`.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import sys
from collections.abc import Sequence
from contextlib import suppress
from functools import cache
from pathlib import Path

from . import store

ARCHITECTURES = (80, 86, 89, 90, 100, 120)
"""GPU generations for which the wheel has CUDA binaries, as compute capability times ten (90 for 9.0)."""
PTX = 80
"""Compute capability, times ten, of the PTX code in the wheel, which the driver can compile for all later GPUs."""
OPTIONS = ("--std=c++17",)

LIST = Path(__file__).with_name("kernels.json")
SOURCES = Path(__file__).parents[1] / "cuda"

_INCLUDE = re.compile(r'^\s*#include "([^"]+)"', re.M)


def pack_name(cuda: int) -> str:
    """Return the name of the file in the wheel that contains the CUDA binaries for a major version of CUDA."""
    return f"cuda{cuda}.pack"


@cache
def digest(text: str, folder: Path | None = None) -> str:
    """Return a digest of the CUDA source ``text`` and of all files that it includes from ``folder``."""
    whole = hashlib.sha256(repr(OPTIONS).encode())
    todo, seen = [text], set[str]()
    while todo:
        at = todo.pop()
        whole.update(at.encode())
        if folder is not None:
            new = [name for name in _INCLUDE.findall(at) if name not in seen]
            seen.update(new)
            todo += [(folder / name).read_text() for name in dict.fromkeys(new)]
    return whole.hexdigest()[:32]


@cache
def _pack(cuda: int) -> store.Pack | None:
    with suppress(OSError, ValueError):
        return store.Pack(store.PACKS / pack_name(cuda))
    return None


@cache
def there_are_any() -> bool:
    """Return whether this installation contains CUDA binaries; a source checkout has none."""
    return any(store.PACKS.glob("cuda*.pack"))


@cache
def majors(runtime: int, driver: int) -> tuple[int, ...]:
    """Return the major versions of CUDA for which the wheel has binaries that the ``driver`` accepts. The version of
    CuPy's ``runtime`` comes first: its binaries are those that CuPy itself would compile."""
    there = {int(p.stem.removeprefix("cuda")) for p in store.PACKS.glob("cuda*.pack")}
    return tuple(sorted((v for v in there if v <= driver), key=lambda v: (v != runtime, -v)))


def find(made_from: str, kernel: str, capability: int, cuda: int) -> tuple[bytes, str] | None:
    """Return the wheel's binary of ``kernel`` for a GPU of this compute capability (90 for 9.0), and the kernel's
    mangled name in it; None if the wheel has none. ``made_from``: `digest` of the source. If ``kernel`` is empty, the
    binary contains all kernels of a source that are not templates."""
    pack = _pack(cuda)
    if pack is None:
        return None
    same = [a for a in ARCHITECTURES if a // 10 == capability // 10 and a <= capability]
    for kind in (f"sm_{max(same)}" if same else "", f"ptx_{PTX}" if capability > PTX else ""):
        if kind and (entry := pack.find(key(kernel, kind, made_from), made_from)) is not None:
            name, _, image = entry.partition(b"\n")
            return image, name.decode()
    return None


def key(kernel: str, kind: str, made_from: str) -> str:
    """Return the key under which a CUDA binary is stored in the wheel."""
    return f"{made_from} {kind} {kernel}"


def entry(image: bytes, name: str) -> bytes:
    """Return a CUDA binary in the form in which the wheel stores it: preceded by the name of the kernel in it."""
    return name.encode() + b"\n" + image


@cache
def listed() -> list[tuple[str, str]]:
    """Return (source file in ops/cuda, instance of a kernel template) for all binaries of the wheel, from kernels.json.
    The instance is empty for the binary of a source's kernels that are not templates."""
    return [(source, kernel) for source, kernel in json.loads(LIST.read_text())]


_KERNEL = re.compile(r'extern "C" __global__ [^(]*?(?:__launch_bounds__\s*\([^)]*\)\s*)?(\w+)\s*\(')


def kernels_of(source: str) -> list[str]:
    """Return the names of the kernels in a source file of ops/cuda, without templates and kernels that macros
    define."""
    lines = (SOURCES / source).read_text().splitlines()
    return _KERNEL.findall("\n".join(line for line in lines if not line.endswith("\\")))


_IN = {"unsigned char", "float"}
_OUT = _IN | {"half", "int", "unsigned int", "double", "unsigned long long"}
_TYPE = re.compile(r"[a-z][a-z ]*[a-z]")


def is_common(kernel: str) -> bool:
    """Return whether the wheel should contain this kernel: any kernel that is not a template, and instances of
    templates for 8-bit or float32 values."""
    types = [t for t in kernel.partition("<")[2].rstrip(">").split(", ") if _TYPE.fullmatch(t)]
    types = [t for t in types if t not in ("true", "false")]
    return not types or (types[0] in _IN and _OUT.issuperset(types))


def record(source: str, kernel: str) -> bool:
    """Append a launched kernel to the file that DALI_RUN_RECORD_KERNELS names, if that variable is set. Return True if
    the kernel is missing from kernels.json, but should be in the wheel."""
    instance = kernel if "<" in kernel else ""
    if into := os.environ.get("DALI_RUN_RECORD_KERNELS"):
        with open(into, "a") as file:
            file.write(json.dumps([source, instance]) + "\n")
    return is_common(instance) and (source, instance) not in _listed()


@cache
def _listed() -> frozenset[tuple[str, str]]:
    return frozenset(listed())


def main(recorded: Sequence[str]) -> None:
    """Add common kernels to kernels.json, the list of kernels in the wheel. ``recorded``: files that were written with
    DALI_RUN_RECORD_KERNELS set."""
    lines = {line for name in recorded for line in Path(name).read_text().splitlines()}
    new = {(source, kernel) for source, kernel in map(json.loads, lines) if is_common(kernel)}
    LIST.write_text("[\n" + ",\n".join(json.dumps(row) for row in sorted(new | set(listed()))) + "\n]\n")


if __name__ == "__main__":
    main(sys.argv[1:])
