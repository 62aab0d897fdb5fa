"""CUDA sources compiled to images for the driver without a GPU, by NVRTC with the options that are used at run time.

    python -m dali_run.pipelines.tools.cuda_images OUT.pack LIBRARY [SM ...]

compiles every kernel of the list (`kernels.json`) with the library ``libnvrtc.so``, for all architectures or the given
ones (90 for 9.0), on all cores.
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
"""Name of the JPEG decoder in the list of CUDA sources. It takes longest to compile."""


class CompileError(Exception):
    """Error of a CUDA compilation, with NVRTC's message."""


def image(library: str, text: str, kernel: str, kind: str, folder: Path | None) -> tuple[bytes, str]:
    """Compile ``kernel``, a function in the CUDA source ``text``, for ``kind``: a GPU architecture such as ``sm_90``,
    or PTX such as ``ptx_80``. Return the compiled image and the mangled name of ``kernel``. Raises CompileError."""
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
        name = (lowered.value or b"").decode()  # memory of the program
        kind_name = "CUBIN" if kind.startswith("sm_") else "PTX"
        size = ctypes.c_size_t()
        call(f"Get{kind_name}Size", program, ctypes.byref(size))
        code = ctypes.create_string_buffer(size.value)
        call(f"Get{kind_name}", program, code)
        return code.raw, name
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
    """Return the CUDA text that NVRTC compiles for ``source``, a name in the list of CUDA sources, and the folder of
    its include files."""
    if source == JPEG:
        return source_text(), None
    return (binaries.SOURCES / source).read_text(), binaries.SOURCES


@cache
def digest_of(source: str) -> str:
    """Return a digest of everything that NVRTC reads for ``source``, a name in the list of CUDA sources."""
    return binaries.digest(*text_of(source))


def _compile(task: tuple[str, str, str, str]) -> tuple[str, str, bytes] | str:
    """Compile one kernel in a worker process. Return (key, digest of the source, compiled image), or NVRTC's error as
    text."""
    library, source, kernel, kind = task
    text, folder = text_of(source)
    made_from = digest_of(source)
    try:
        compiled = image(library, text, kernel, kind, folder)
    except CompileError as e:
        return f"{source} {kernel} for {kind}: {e}"
    return binaries.key(kernel, kind, made_from), made_from, binaries.entry(*compiled)


def compile_pack(out: Path, library: str, architectures: Sequence[int], processes: int) -> Iterator[tuple[int, int]]:
    """Compile all CUDA kernels of the package into the file ``out``, a pack of images. Yield (images done, images in
    total). Images in ``out`` are reused if compiler and sources are unchanged. Raises CompileError, which names every
    image that could not be made; the others are kept."""
    kinds = [*(f"sm_{a}" for a in architectures), f"ptx_{binaries.PTX}"]
    tasks = [(library, source, kernel, kind) for source, kernel in everything() for kind in kinds]
    entries: dict[str, tuple[str, bytes]] = {_COMPILER: (made_by := _version(library), b"")}
    with suppress(OSError, ValueError):
        before = store.Pack(out)
        if before.holds(_COMPILER, made_by):
            keys = [
                (binaries.key(kernel, kind, digest_of(source)), digest_of(source)) for _, source, kernel, kind in tasks
            ]
            entries |= {
                key: (made_from, content) for key, made_from in keys if (content := before.find(key, made_from))
            }
    todo = [task for task in tasks if binaries.key(task[2], task[3], digest_of(task[1])) not in entries]
    yield len(tasks) - len(todo), len(tasks)
    # not forked: other threads of the caller, JAX's for instance, may hold locks that stay locked in a fork
    with ProcessPoolExecutor(processes, mp_context=get_context("spawn")) as pool:
        done = enumerate(pool.map(_compile, todo, chunksize=1), len(tasks) - len(todo) + 1)
        failed: list[str] = []
        for count, result in done:
            if isinstance(result, str):
                failed.append(result)
            else:
                key, made_from, content = result
                entries[key] = made_from, content
            yield count, len(tasks)
    out.parent.mkdir(parents=True, exist_ok=True)
    store.write_pack(out, entries)
    if failed:
        raise CompileError("\n".join(failed))


_COMPILER = "compiler"
"""Key under which a file of compiled kernels stores the version of NVRTC that compiled them."""


def _version(library: str) -> str:
    major, minor = ctypes.c_int(), ctypes.c_int()
    ctypes.CDLL(library).nvrtcVersion(ctypes.byref(major), ctypes.byref(minor))
    return f"{major.value}.{minor.value} {Path(library).stat().st_size}"


def everything() -> list[tuple[str, str]]:
    """Return all CUDA kernels to compile in advance, as (name of the source, name of the kernel)."""
    return [(JPEG, ""), *binaries.listed()]


def without_image(capability: int, versions: Sequence[int]) -> list[str]:
    """Return the CUDA kernels for which the package has no compiled image that fits the GPU: its compute capability (90
    for 9.0), and one of these versions of CUDA."""
    return [
        f"{source} {kernel}".rstrip()
        for source, kernel in everything()
        if all(binaries.find(digest_of(source), kernel, capability, version) is None for version in versions)
    ]


def main(arguments: Sequence[str]) -> int:
    out, library, *architectures = arguments
    architectures_wanted = [int(a) for a in architectures] or list(binaries.ARCHITECTURES)
    try:
        for done, total in compile_pack(Path(out), library, architectures_wanted, usable_cores()):
            if done % 50 == 0 or done == total:
                print(f"compiled {done} of {total} CUDA images", file=sys.stderr)  # noqa: T201
    except CompileError as e:
        print(e, file=sys.stderr)  # noqa: T201
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
