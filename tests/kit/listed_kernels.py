"""CUDA kernels that tests launch on stand-ins for a GPU, beside the list of those that the wheel has images of."""

from __future__ import annotations

from functools import cache

from dali_run.ops.compiled import binaries

unlisted: set[tuple[str, str]] = set()
"""Of the test that runs: kernels that the list should hold."""


def launched(source: str, kernel: str) -> None:
    """A kernel of a file in ops/cuda was launched."""
    if binaries.record(source, kernel):
        unlisted.add((source, kernel))


def launched_of(text: str, kernel: str) -> None:
    """The same, of a file's text; what is no file's is not listed."""
    if source := _sources().get(text):
        launched(source, kernel)


@cache
def _sources() -> dict[str, str]:
    folder = binaries.SOURCES
    return {file.read_text(): file.relative_to(folder).as_posix() for file in folder.rglob("*.cu")}


def complaint() -> str:
    """About the test that has run; empty where all is well."""
    found, lines = sorted(unlisted), ""
    unlisted.clear()
    if found:
        lines = "\n".join(f"{source}: {kernel}" for source, kernel in found)
    return lines and (
        f"NVRTC would compile these in front of the user, the wheel has no images of them:\n{lines}\n"
        "Run the test with DALI_RUN_RECORD_KERNELS=FILE, then python -m dali_run.ops.compiled.binaries FILE"
    )
