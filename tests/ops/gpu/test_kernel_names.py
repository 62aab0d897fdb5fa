"""Kernels can be found by the names that they are launched by. g++, which runs them in tests, finds any function. The
driver of a GPU finds a kernel that is no template only where its name is not mangled."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

CUDA = Path(__file__).parents[3] / "ops" / "cuda"
KERNEL = re.compile(r'(template\s*<[^;{]*?>\s*)?(extern "C"\s+)?(?:static\s+)?__global__[^({]*?(\w+)\s*\(')
BOUNDS = re.compile(r"__launch_bounds__\s*\([^)]*\)")


@pytest.mark.parametrize("source", sorted(CUDA.rglob("*.cu")), ids=lambda p: p.name)
def test_kernels_have_names_that_the_driver_knows(source: Path) -> None:
    found = KERNEL.findall(BOUNDS.sub("", source.read_text()))
    assert found or "#include" in source.read_text()
    mangled = [name for template, plain, name in found if not template and not plain]
    assert not mangled, f'declare {", ".join(mangled)} as extern "C" __global__, or the driver will not find it'
