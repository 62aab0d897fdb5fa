"""A decoder holds as much as foreseen while it decodes, its library's own memory included."""

from __future__ import annotations

import json
import os
import subprocess
import sys

import pytest
from PIL import Image

PROGRAM = """
import json, os, sys
import numpy as np
from dali_run.ops.batch import Batch, Samples
from dali_run.ops.codecs import pillow
from dali_run.ops.codecs.decoders import Image
from dali_run.ops.codecs.headers import Rules, estimate_memory
from dali_run.ops.context import Context
pillow.load()
def run(path):
    batch = Batch.from_list([np.fromfile(path, np.uint8)], "", Samples.numbered(1))
    elements, besides = estimate_memory(batch, Image().rules, "cpu", whole=True)
    op = Image()
    ctx = Context(op, "cpu", batch.samples, {})
    out = op.cpu(ctx, batch)
    assert not ctx.rejects, ctx.rejects
    return int(elements[0] + besides[0])
def peak():
    for line in open("/proc/self/status"):
        if line.startswith("VmHWM"):
            return int(line.split()[1]) * 1024
for kind in sys.argv[2:]:
    sys.stdout.flush()
    if child := os.fork():
        assert os.waitpid(child, 0)[1] == 0, kind
        continue
    run(f"{sys.argv[1]}/{kind}-small")
    open("/proc/self/clear_refs", "w").write("5")  # what was the peak till now is forgotten
    before = peak()
    promised = run(f"{sys.argv[1]}/{kind}-large")
    print(json.dumps([kind, promised, peak() - before]), flush=True)
    os._exit(0)
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


@pytest.fixture(scope="module")
def measured(tmp_path_factory: pytest.TempPathFactory) -> dict[str, tuple[int, int, int]]:
    """Of each kind: bytes that were promised, bytes that were taken, and those of the file. One process imports, and
    has a fork for each kind."""
    folder = tmp_path_factory.mktemp("resident")
    gradient = Image.radial_gradient("L")
    for kind, (mode, format, options) in KINDS.items():
        for name, side in (("small", 64), ("large", SIDE)):
            gradient.resize((side, side)).convert(mode).save(folder / f"{kind}-{name}", format, **options)
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, str(folder), *KINDS], check=False, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr[-2000:]
    rows = map(json.loads, done.stdout.splitlines())
    return {kind: (promised, taken, (folder / f"{kind}-large").stat().st_size) for kind, promised, taken in rows}


@pytest.mark.skipif(not os.access("/proc/self/clear_refs", os.W_OK), reason="needs /proc/self/clear_refs")
@pytest.mark.parametrize("kind", KINDS)
def test_what_is_resident_was_foreseen(kind: str, measured: dict[str, tuple[int, int, int]]) -> None:
    promised, taken, encoded = measured[kind]
    assert taken <= promised * 1.1 + SLACK + encoded, (promised / SIDE**2, taken / SIDE**2)
