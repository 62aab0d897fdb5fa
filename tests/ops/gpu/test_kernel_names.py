"""Kernels can be found by the names that they are launched by. g++, which runs them in tests, finds any function. The
driver of a GPU finds a kernel that is no template only where its name is not mangled."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from dali_run.ops.codecs.jpeg.cuda import source_text
from dali_run.ops.compiled import binaries
from tests.kit import listed_kernels

CUDA = Path(__file__).parents[3] / "ops" / "cuda"
KERNEL = re.compile(r'(template\s*<[^;{]*?>\s*)?(extern "C"\s+)?(?:static\s+)?__global__[^({]*?(\w+)\s*\(')
BOUNDS = re.compile(r"__launch_bounds__\s*\([^)]*\)")


@pytest.mark.parametrize("source", sorted(CUDA.rglob("*.cu")), ids=lambda p: p.name)
def test_kernels_have_names_that_the_driver_knows(source: Path) -> None:
    found = KERNEL.findall(BOUNDS.sub("", source.read_text()))
    assert found or "#include" in source.read_text()
    mangled = [name for template, plain, name in found if not template and not plain]
    assert not mangled, f'declare {", ".join(mangled)} as extern "C" __global__, or the driver will not find it'


@pytest.mark.parametrize("source", sorted(CUDA.rglob("*.cu")), ids=lambda p: p.name)
def test_the_wheel_has_images_of_all_kernels(source: Path) -> None:
    """Of templates, of one instance at least. Which instances are needed, tests find that launch them."""
    text, decoder = source.read_text(), source_text()
    kernels = KERNEL.findall(BOUNDS.sub("", text))
    if all(f"{name}(" in decoder for _, _, name in kernels):  # one text, of which there is an image
        return
    name = source.relative_to(CUDA).as_posix()
    there = {kernel.partition("<")[0] for file, kernel in binaries.listed() if file == name}
    wanted = {kernel if template else "" for template, _, kernel in kernels}
    assert wanted <= there, f"add to ops/compiled/kernels.json: {sorted(wanted - there)} of {name}"


@pytest.mark.parametrize(
    ("kernel", "common"),
    [
        ("", True), ("equalize", True), ("noise<float>", True), ("noise<double>", False),
        ("strided<unsigned char, half, 3, true>", True), ("strided<float, short, 3, false>", False),
        ("reduce<unsigned char, unsigned long long, float, 32>", True), ("look_up<int, float>", False),
    ],
)  # fmt: skip
def test_instances_for_common_types_are_listed(kernel: str, common: bool) -> None:
    assert binaries.is_common(kernel) is common


def test_a_launch_that_is_not_listed_is_told_of(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("DALI_RUN_RECORD_KERNELS", raising=False)
    listed_kernels.launched("noise.cu", "gaussian<unsigned char>")
    listed_kernels.launched("noise.cu", "gaussian<long long>")
    listed_kernels.launched_of("of no file", "expression")
    assert listed_kernels.complaint() == ""
    listed_kernels.launched("noise.cu", "haze<unsigned char>")
    listed_kernels.launched_of((CUDA / "gather.cu").read_text(), "mist<float>")
    complaint = listed_kernels.complaint()
    assert "noise.cu: haze<unsigned char>" in complaint
    assert "gather.cu: mist<float>" in complaint
    assert listed_kernels.complaint() == ""
