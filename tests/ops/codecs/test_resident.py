"""A decoder holds as much as foreseen while it decodes, its library's own memory included."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from PIL import Image

PROGRAM = """
import sys
import numpy as np
from dali_run.ops.batch import Batch, Samples
from dali_run.ops.codecs import pillow
from dali_run.ops.codecs.decoders import Image
from dali_run.ops.codecs.on_host import Rules, foresee
from dali_run.ops.context import Context
pillow.load()
def run(path):
    batch = Batch.from_list([np.fromfile(path, np.uint8)], "", Samples.numbered(1))
    elements, besides = foresee(batch, Image().rules, "cpu", whole=True)
    op = Image()
    ctx = Context(op, "cpu", batch.samples, {})
    out = op.cpu(ctx, batch)
    assert not ctx.rejects, ctx.rejects
    return int(elements[0] + besides[0])
run(sys.argv[1])
def peak():
    for line in open("/proc/self/status"):
        if line.startswith("VmHWM"):
            return int(line.split()[1]) * 1024
open("/proc/self/clear_refs", "w").write("5")  # what was the peak till now is forgotten
before = peak()
promised = run(sys.argv[2])
print(promised, peak() - before)
"""
KINDS = {
    "png": ("RGB", "PNG", {}),
    "png-interlaced-gray": ("L", "PNG", {}),
    "webp": ("RGB", "WEBP", {"quality": 50, "method": 0}),
    "webp-lossless": ("RGB", "WEBP", {"lossless": True, "method": 0}),
    "gif": ("P", "GIF", {}),
    "tiff-g4": ("1", "TIFF", {"compression": "group4"}),
    "tiff": ("RGB", "TIFF", {"compression": "tiff_lzw"}),
    "bmp": ("RGB", "BMP", {}),
    "jpeg2000": ("RGB", "JPEG2000", {}),
    "jpeg2000-gray": ("L", "JPEG2000", {}),
    "jpeg-progressive": ("RGB", "JPEG", {"progressive": True}),
    "jpeg": ("RGB", "JPEG", {}),
}
SIDE = 3000
SLACK = 24 << 20
"""Bytes: what the allocator and threads take, and images that are not the first."""


@pytest.mark.skipif(not os.access("/proc/self/clear_refs", os.W_OK), reason="needs /proc/self/clear_refs")
@pytest.mark.parametrize("kind", KINDS)
def test_what_is_resident_was_foreseen(kind: str, tmp_path: Path) -> None:
    mode, format, options = KINDS[kind]
    gradient = Image.radial_gradient("L")
    small, large = tmp_path / "small", tmp_path / "large"
    gradient.resize((64, 64)).convert(mode).save(small, format, **options)
    gradient.resize((SIDE, SIDE)).convert(mode).save(large, format, **options)
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, str(small), str(large)], check=False, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr[-2000:]
    promised, taken = map(int, done.stdout.split())
    assert taken <= promised * 1.1 + SLACK + large.stat().st_size, (promised / SIDE**2, taken / SIDE**2)
