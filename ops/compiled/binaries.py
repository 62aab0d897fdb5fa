"""CUDA binaries of the wheel: kernels as NVRTC compiled them ahead, by the text that they were made of.

A pack (`store.Pack`) for each major version of CUDA holds, for every kernel and architecture, an image for the driver.
Its key is the digest of all that NVRTC would read, and the kernel where it is a template's instance; so an image is
never taken for a source that has changed. CUDA binaries of one major version of CUDA run with every driver of that
version and of later ones, whatever CuPy was made for, and those for 8.0 on 8.6, not the other way round; processors
that are newer than all of them get PTX, which the driver compiles.
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
"""Compute capabilities, times ten, that there are images for."""
PTX = 80
"""The capability that PTX is made for: what it has, all later ones have."""
OPTIONS = ("--std=c++17",)

LIST = Path(__file__).with_name("kernels.json")
SOURCES = Path(__file__).parents[1] / "cuda"

_INCLUDE = re.compile(r'^\s*#include "([^"]+)"', re.M)


def pack_name(cuda: int) -> str:
    """The file of the images for a major version of CUDA."""
    return f"cuda{cuda}.pack"


@cache
def digest(text: str, folder: Path | None = None) -> str:
    """A digest of a CUDA source and of all that it includes from ``folder``."""
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
    """The wheel brought CUDA binaries; a checkout has none."""
    return any(store.PACKS.glob("cuda*.pack"))


@cache
def majors(runtime: int, driver: int) -> tuple[int, ...]:
    """Major versions of CUDA whose images this ``driver`` takes, as far as the wheel has any: first that of CuPy's
    ``runtime``, whose compiler would make the same ones."""
    there = {int(p.stem.removeprefix("cuda")) for p in store.PACKS.glob("cuda*.pack")}
    return tuple(sorted((v for v in there if v <= driver), key=lambda v: (v != runtime, -v)))


def find(made_from: str, kernel: str, capability: int, cuda: int) -> tuple[bytes, str] | None:
    """The image that holds ``kernel`` for a GPU of this compute capability (90 for 9.0), and the name that the kernel
    has in it; None where the wheel has none. ``kernel`` is empty for all of a source that are no templates."""
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
    """The key of an image in the pack."""
    return f"{made_from} {kind} {kernel}"


def entry(image: bytes, name: str) -> bytes:
    """An image and the kernel's name in it, as the pack holds them."""
    return name.encode() + b"\n" + image


@cache
def listed() -> list[tuple[str, str]]:
    """Sources in ops/cuda and instances of templates that are compiled ahead; empty for what is no template."""
    return [(source, kernel) for source, kernel in json.loads(LIST.read_text())]


_KERNEL = re.compile(r'extern "C" __global__ [^(]*?(?:__launch_bounds__\s*\([^)]*\)\s*)?(\w+)\s*\(')


def kernels_of(source: str) -> list[str]:
    """Names of a source's kernels that are neither templates nor made by macros."""
    lines = (SOURCES / source).read_text().splitlines()
    return _KERNEL.findall("\n".join(line for line in lines if not line.endswith("\\")))


_IN = {"unsigned char", "float"}
_OUT = _IN | {"half", "int", "unsigned int", "double", "unsigned long long"}
_TYPE = re.compile(r"[a-z][a-z ]*[a-z]")


def is_common(kernel: str) -> bool:
    """The list is to hold this kernel: it is no template, or an instance for 8-bit or float32 values."""
    types = [t for t in kernel.partition("<")[2].rstrip(">").split(", ") if _TYPE.fullmatch(t)]
    types = [t for t in types if t not in ("true", "false")]
    return not types or (types[0] in _IN and _OUT.issuperset(types))


def record(source: str, kernel: str) -> bool:
    """Note down, in the file that DALI_RUN_RECORD_KERNELS names, what is launched: for the list of kernels. True where
    the list lacks what it is to hold."""
    instance = kernel if "<" in kernel else ""
    if into := os.environ.get("DALI_RUN_RECORD_KERNELS"):
        with open(into, "a") as file:
            file.write(json.dumps([source, instance]) + "\n")
    return is_common(instance) and (source, instance) not in _listed()


@cache
def _listed() -> frozenset[tuple[str, str]]:
    return frozenset(listed())


def main(recorded: Sequence[str]) -> None:
    """Add what files of DALI_RUN_RECORD_KERNELS hold, as far as it is common."""
    lines = {line for name in recorded for line in Path(name).read_text().splitlines()}
    new = {(source, kernel) for source, kernel in map(json.loads, lines) if is_common(kernel)}
    LIST.write_text("[\n" + ",\n".join(json.dumps(row) for row in sorted(new | set(listed()))) + "\n]\n")


if __name__ == "__main__":
    main(sys.argv[1:])
