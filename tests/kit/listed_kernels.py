"""Check that CUDA kernels that tests launch on stand-ins are in the list of kernels that the wheel has images of."""

from __future__ import annotations

from functools import cache

from dali_run.ops.compiled import binaries

unlisted: set[tuple[str, str]] = set()
"""Kernels that the current test has launched and that the list of kernels lacks."""


def launched(source: str, kernel: str) -> None:
    """Record the launch of a kernel of a file in ops/cuda."""
    if binaries.record(source, kernel):
        unlisted.add((source, kernel))


def launched_of(text: str, kernel: str) -> None:
    """Record the launch of a kernel, given the text of its file in ops/cuda; other texts are ignored."""
    if source := _sources().get(text):
        launched(source, kernel)


@cache
def _sources() -> dict[str, str]:
    folder = binaries.SOURCES
    return {file.read_text(): file.relative_to(folder).as_posix() for file in folder.rglob("*.cu")}


def complaint() -> str:
    """Return a message about kernels of the last test that the list lacks; empty if there are none."""
    found, lines = sorted(unlisted), ""
    unlisted.clear()
    if found:
        lines = "\n".join(f"{source}: {kernel}" for source, kernel in found)
    return lines and (
        f"NVRTC would compile these in front of the user, the wheel has no images of them:\n{lines}\n"
        "Run the test with DALI_RUN_RECORD_KERNELS=FILE, then python -m dali_run.ops.compiled.binaries FILE"
    )
