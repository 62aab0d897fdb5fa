"""Pictures that threads of the host decode for a GPU: begun as soon as they are read, batches ahead, and in order."""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from dali_run.ops.codecs import library, threaded_decode
from dali_run.ops.codecs.formats import probe
from dali_run.pipelines.bench.web_mix import write_mix
from dali_run.pipelines.compile.place import Target
from dali_run.pipelines.compile.plan import compile_graph
from tests.kit.engine.decoding import graph, results

FORMATS = ("jpg", "png", "webp", "bmp", "ppm", "tiff", "jp2")


@pytest.fixture
def mixed(tmp_path: Path) -> Path:
    """Pictures of all formats, one of each cut short."""
    (tmp_path / "a").mkdir()
    y, x = np.mgrid[:40, :50]
    for i in range(35):
        image = Image.fromarray(np.stack([x * 4, y * 4 + i, 128 + 0 * x], -1).astype(np.uint8))
        path = tmp_path / "a" / f"{i:02d}.{FORMATS[i % 7]}"
        image.save(path, **({"lossless": True} if i % 7 == 2 else {}))
        if i >= 28:
            path.write_bytes(path.read_bytes()[:-250])
    return tmp_path


@pytest.mark.parametrize("decoder", ["decoders.image", "decoders.image_random_crop"])
@pytest.mark.parametrize("fused", [False, True])
def test_what_readers_begin_is_what_is_made(
    mixed: Path, decoder: str, fused: bool, engines: Any, monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    begun: list[str] = []
    submit = threaded_decode.ThreadedDecode.submit

    def noted(self: Any, name: str, which: Any, *args: Any, **more: Any) -> None:
        begun.extend([threading.current_thread().name.partition("_")[0]] * len(which))
        submit(self, name, which, *args, **more)

    monkeypatch.setattr(threaded_decode.ThreadedDecode, "submit", noted)
    expected, here = results(compile_graph(graph(mixed, fused, decoder), Target(), 7), 8)
    found, report = results(compile_graph(graph(mixed, fused, decoder), Target("gpu"), 7), 8)
    assert list(found) == list(expected)
    for key, value in expected.items():
        np.testing.assert_allclose(found[key].astype(float), value.astype(float), atol=1.01 if fused else 0, rtol=0)
    assert set(begun) <= {"worker"}, "the thread that launches began with them"
    assert len(begun) >= 15
    assert report["decoders"]["cuda plain"] == here["decoders"]["plain"] == 8
    assert report["rejected"] == here["rejected"]
    assert report["decoders"]["png"] == here["decoders"]["png"]
    on_host = here["decoders"]["other formats"]
    assert report["decoders"]["other formats"] + report["decoders"]["cuda jpeg2000"] == on_host
    times = report["decoder_times"]
    assert times["png"]["busy_seconds"] > 0
    assert here["decoder_times"]["other formats"]["busy_seconds"] > 0


@pytest.mark.gpu
@pytest.mark.parametrize("decoder", ["decoders.image", "decoders.image_random_crop"])
@pytest.mark.parametrize("fused", [False, True])
def test_a_mix_on_a_gpu_is_that_of_the_cpu(tmp_path: Path, decoder: str, fused: bool) -> None:
    """Baseline and progressive JPEGs, PNG, WebP and CMYK: to the bit, but for resizing."""
    rng = np.random.default_rng(0)
    for i in range(12):
        pixels = rng.integers(0, 256, (9, 12, 3), np.uint8)
        Image.fromarray(pixels).resize((300 + 7 * i, 220 + 5 * i)).save(tmp_path / f"{i}.png")
    sizes = ((0.0, 0.1), (1.0, 0.3))
    write_mix(sorted(tmp_path.glob("*.png")), tmp_path / "mix", count=600, megapixels=sizes)
    expected, here = results(compile_graph(graph(tmp_path / "mix", fused, decoder), Target(), 7), 64)
    for batch in (64, 256):
        found, report = results(compile_graph(graph(tmp_path / "mix", fused, decoder), Target("gpu"), 7), batch)
        assert list(found) == list(expected)
        assert report["rejected"] == here["rejected"] == {}
        for key, value in expected.items():
            np.testing.assert_allclose(
                found[key].astype(float), value.astype(float), atol=1.01 if fused else 0, rtol=0, err_msg=key
            )


def test_a_header_that_is_wrong_costs_a_second_try(
    mixed: Path, engines: Any, monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    """Shapes are believed before pixels are there; where they turn out others, the picture is decoded alone."""
    data = bytearray((mixed / "a" / "02.webp").read_bytes())
    assert data[12:16] == b"VP8L"
    data[24] |= 0x10  # it says that alpha is used
    (mixed / "a" / "02.webp").write_bytes(data)
    assert probe(memoryview(data)).channels == 4
    decode = library.decode_several

    def without_alpha(job: Any, use: Callable[[int, Any], Any], which: Any) -> Any:
        return decode(job, use if job.ctx.stage == "cpu" else lambda i, p: use(i, p[..., :3]), which)

    monkeypatch.setattr(library, "decode_several", without_alpha)
    expected, _ = results(compile_graph(graph(mixed, output_type="ANY_DATA"), Target(), 7), 8)
    found, report = results(compile_graph(graph(mixed, output_type="ANY_DATA"), Target("gpu"), 7), 8)
    assert report["fallbacks"]["device check failed: attempt 2"] >= 1
    assert list(found) == list(expected)
    for key, value in expected.items():
        np.testing.assert_array_equal(found[key], value)
