"""NVRTC without a GPU: CUDA sources to images for the driver, by the compiler and the options of run time.

    python -m dali_run.pipelines.tools.cuda_images OUT.pack LIBRARY [SM ...]

compiles every kernel of the list (`kernels.json`) with the library ``libnvrtc.so``, for all architectures or those
named (90 for 9.0), on all cores.
"""

from __future__ import annotations

import ctypes
import sys
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import suppress
from functools import cache
from multiprocessing import get_context
from pathlib import Path
from typing import Any

from ...ops.codecs.jpeg.cuda import source_text
from ...ops.compiled import binaries, store
from ..cores import usable_cores

JPEG = "the JPEG decoder"
"""Stands for the text that `ops.codecs.jpeg.cuda` makes of many sources, which takes longest to compile."""


class CompileError(Exception):
    """NVRTC's own words."""


def image(library: str, text: str, kernel: str, kind: str, folder: Path | None) -> tuple[bytes, str]:
    """The image of ``text`` for ``sm_90`` or as ``ptx_80``, and the name of ``kernel`` in it. Raises CompileError."""
    nvrtc = ctypes.CDLL(library)
    program = ctypes.c_void_p()

    def call(name: str, *args: Any) -> None:
        if getattr(nvrtc, f"nvrtc{name}")(*args):
            raise CompileError(f"nvrtc{name}: {_log(nvrtc, program)}")

    call("CreateProgram", ctypes.byref(program), text.encode(), None, 0, None, None)
    try:
        if kernel:
            call("AddNameExpression", program, kernel.encode())
        number = kind.partition("_")[2]
        architecture = f"sm_{number}" if kind.startswith("sm_") else f"compute_{number}"
        options = [*binaries.OPTIONS, f"-arch={architecture}", *([f"-I{folder}"] if folder else [])]
        call("CompileProgram", program, len(options), (ctypes.c_char_p * len(options))(*(o.encode() for o in options)))
        lowered = ctypes.c_char_p(b"")
        if kernel:
            call("GetLoweredName", program, kernel.encode(), ctypes.byref(lowered))
        name = (lowered.value or b"").decode()  # belongs to the program
        what = "CUBIN" if kind.startswith("sm_") else "PTX"
        size = ctypes.c_size_t()
        call(f"Get{what}Size", program, ctypes.byref(size))
        made = ctypes.create_string_buffer(size.value)
        call(f"Get{what}", program, made)
        return made.raw, name
    finally:
        nvrtc.nvrtcDestroyProgram(ctypes.byref(program))


def _log(nvrtc: Any, program: Any) -> str:
    size = ctypes.c_size_t()
    if nvrtc.nvrtcGetProgramLogSize(program, ctypes.byref(size)):
        return "no log"
    log = ctypes.create_string_buffer(size.value)
    nvrtc.nvrtcGetProgramLog(program, log)
    return log.value.decode(errors="replace")


@cache
def text_of(source: str) -> tuple[str, Path | None]:
    """The text that NVRTC reads for an entry of the list, and the folder of the files that it includes."""
    if source == JPEG:
        return source_text(), None
    return (binaries.SOURCES / source).read_text(), binaries.SOURCES


@cache
def digest_of(source: str) -> str:
    """The digest of all that NVRTC reads for an entry of the list."""
    return binaries.digest(*text_of(source))


def _compile(task: tuple[str, str, str, str]) -> tuple[str, str, bytes] | str:
    """An entry of the pack, or what NVRTC has against it."""
    library, source, kernel, kind = task
    text, folder = text_of(source)
    made_from = digest_of(source)
    try:
        made = image(library, text, kernel, kind, folder)
    except CompileError as e:
        return f"{source} {kernel} for {kind}: {e}"
    return binaries.key(kernel, kind, made_from), made_from, binaries.entry(*made)


def compile_pack(out: Path, library: str, architectures: Sequence[int], processes: int) -> Iterator[tuple[int, int]]:
    """Compile all that is listed into the pack ``out``; how many images are done, and how many there are. Those that
    this compiler has made before, of the same sources, are taken from there. Raises CompileError that names every image
    that could not be made; the others are kept."""
    kinds = [*(f"sm_{a}" for a in architectures), f"ptx_{binaries.PTX}"]
    tasks = [(library, source, kernel, kind) for source, kernel in everything() for kind in kinds]
    entries: dict[str, tuple[str, bytes]] = {_COMPILER: (made_by := _version(library), b"")}
    with suppress(OSError, ValueError):
        before = store.Pack(out)
        if before.holds(_COMPILER, made_by):
            keys = [
                (binaries.key(kernel, kind, digest_of(source)), digest_of(source)) for _, source, kernel, kind in tasks
            ]
            entries |= {key: (made_from, found) for key, made_from in keys if (found := before.find(key, made_from))}
    todo = [task for task in tasks if binaries.key(task[2], task[3], digest_of(task[1])) not in entries]
    yield len(tasks) - len(todo), len(tasks)
    # not forked: the caller may have threads, JAX's for instance, and what they hold would stay held
    with ProcessPoolExecutor(processes, mp_context=get_context("spawn")) as pool:
        done = enumerate(pool.map(_compile, todo, chunksize=1), len(tasks) - len(todo) + 1)
        failed: list[str] = []
        for count, made in done:
            if isinstance(made, str):
                failed.append(made)
            else:
                key, made_from, content = made
                entries[key] = made_from, content
            yield count, len(tasks)
    out.parent.mkdir(parents=True, exist_ok=True)
    store.write_pack(out, entries)
    if failed:
        raise CompileError("\n".join(failed))


_COMPILER = "compiler"
"""The entry of a pack that tells, as its stamp, which library made it."""


def _version(library: str) -> str:
    major, minor = ctypes.c_int(), ctypes.c_int()
    ctypes.CDLL(library).nvrtcVersion(ctypes.byref(major), ctypes.byref(minor))
    return f"{major.value}.{minor.value} {Path(library).stat().st_size}"


def everything() -> list[tuple[str, str]]:
    """Sources and instances that there are to be images of."""
    return [(JPEG, ""), *binaries.listed()]


def without_image(capability: int, versions: Sequence[int]) -> list[str]:
    """Kernels without an image for GPUs of this compute capability (90 for 9.0) in these versions of CUDA."""
    return [
        f"{source} {kernel}".rstrip()
        for source, kernel in everything()
        if all(binaries.find(digest_of(source), kernel, capability, version) is None for version in versions)
    ]


def main(arguments: Sequence[str]) -> int:
    out, library, *architectures = arguments
    wanted = [int(a) for a in architectures] or list(binaries.ARCHITECTURES)
    try:
        for done, total in compile_pack(Path(out), library, wanted, usable_cores()):
            if done % 50 == 0 or done == total:
                print(f"compiled {done} of {total} CUDA images", file=sys.stderr)  # noqa: T201
    except CompileError as e:
        print(e, file=sys.stderr)  # noqa: T201
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
