"""Loops that are compiled in the background: libraries give the same bits meanwhile, and loops take over."""

from __future__ import annotations

import io
import threading

import numpy as np
import pytest
from PIL import Image

from dali_run.ops.batch import Batch, Samples
from dali_run.ops.compiled import background
from dali_run.ops.compiled.background import awaited, compile_behind
from dali_run.ops.compiled.signatures import Loop
from dali_run.ops.context import Context, KernelServices
from dali_run.ops.errors import Reject
from tests.kit.files import jpegs, tiffs
from tests.kit.operators import operator
from tests.kit.ops.decoding import batch_of


def late(module: str) -> Loop:
    return Loop(f"ops.codecs.{module}", "decode_images", ())


LATE = [late(m) for m in ("jpeg.baseline_cpu", "jpeg.progressive_cpu", "png.decoder_cpu", "tiff.decoder_cpu")]


def decoded(files: list[bytes]) -> tuple[list[np.ndarray], set[str]]:
    """Pixels, and the decoders that made them."""
    op, encoded, names = operator("decoders.image"), batch_of(files), set[str]()
    ctx = Context(
        op=op, stage="cpu", samples=encoded.samples, services=KernelServices(decoders=lambda name, *_: names.add(name))
    )
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


@pytest.mark.parametrize(
    ("quality", "subsampling", "optimize"),
    [(1, "4:4:4", True), (75, "4:2:0", False), (90, "4:2:2", True), (100, "4:2:0", True)],
)
def test_a_library_encodes_the_same_bytes_until_the_loop_is_ready(
    monkeypatch: pytest.MonkeyPatch, quality: int, subsampling: str, optimize: bool
) -> None:
    def encoded() -> tuple[list[bytes], list[Reject]]:
        op = operator("encoders.image", quality=quality, subsampling=subsampling, optimize=optimize)
        ctx = Context(op=op, stage="cpu", samples=images.samples)
        out = op.cpu(ctx, images)
        return [out.sample(i).tobytes() for i in range(len(out))], ctx.rejects

    noise = np.random.default_rng(0).integers(0, 256, (300, 200, 3), np.uint8)
    pictures = [noise, noise[:17, :1], noise[:, :, :1], np.zeros((8, 0, 3), np.uint8), jpegs.picture(70, 33)]
    images = Batch.from_list(pictures, "HWC", Samples.numbered(len(pictures)))
    by_loop = encoded()
    monkeypatch.setattr(background, "_awaited", [Loop("ops.codecs.jpeg.encode_cpu", "encode_images", ())])
    assert encoded() == by_loop
    assert len(by_loop[1]) == 1


def test_loops_that_fail_are_not_awaited_for_ever() -> None:
    assert not awaited("no_such_module")
    compile_behind([Loop("no_such_module", "f", ()), Loop("no_such_module", "g", ())])
    (thread,) = [t for t in threading.enumerate() if t.name == "compile"]
    thread.join(60)
    assert not thread.is_alive()
    assert not awaited("no_such_module")
