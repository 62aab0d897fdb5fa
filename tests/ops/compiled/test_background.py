"""Loops that are compiled in the background: libraries give the same bits meanwhile, and loops take over."""

from __future__ import annotations

import io
import threading

import numpy as np
import pytest
from PIL import Image

from dali_run.ops.compiled import background
from dali_run.ops.compiled.background import awaited, compile_behind
from dali_run.ops.compiled.signatures import Loop
from dali_run.ops.context import Context
from tests.kit.files import jpegs, tiffs
from tests.kit.operators import operator
from tests.kit.ops.decoding import batch_of


def late(module: str) -> Loop:
    return Loop(f"ops.codecs.{module}", "decode_images", ())


LATE = [late(m) for m in ("jpeg.baseline_cpu", "jpeg.progressive_cpu", "png.decoder_cpu", "tiff.decoder_cpu")]


def decoded(files: list[bytes]) -> tuple[list[np.ndarray], set[str]]:
    """Pixels, and the decoders that made them."""
    op, encoded, names = operator("decoders.image"), batch_of(files), set[str]()
    ctx = Context(op=op, stage="cpu", samples=encoded.samples, decoders=lambda name, *_: names.add(name))
    out = op.cpu(ctx, encoded)
    return [np.array(out.sample(i)) for i in range(len(files))], names


def test_libraries_decode_the_same_pixels_until_loops_are_ready(monkeypatch: pytest.MonkeyPatch) -> None:
    png = io.BytesIO()
    Image.fromarray(jpegs.picture(30, 20)).save(png, "PNG")
    files = [jpegs.encode(45, 37, 1), jpegs.encode(45, 37, 2, progressive=True), png.getvalue(),
             tiffs.saved(tiffs.picture(1, 3), "tiff_lzw")]  # fmt: skip
    by_loops, names = decoded(files)
    assert names == {"cpu", "png", "tiff"}
    monkeypatch.setattr(background, "_awaited", list(LATE))
    by_libraries, names = decoded(files)
    assert names == {"libjpeg-turbo", "other formats"}
    for loop, library in zip(by_loops, by_libraries, strict=True):
        np.testing.assert_array_equal(loop, library)


def test_loops_that_fail_are_not_awaited_for_ever() -> None:
    assert not awaited("no_such_module")
    compile_behind([Loop("no_such_module", "f", ()), Loop("no_such_module", "g", ())])
    (thread,) = [t for t in threading.enumerate() if t.name == "compile"]
    thread.join(60)
    assert not thread.is_alive()
    assert not awaited("no_such_module")
