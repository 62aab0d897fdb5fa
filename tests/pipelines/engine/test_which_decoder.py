"""Decoders of a batch: our CUDA decoder, nvJPEG, other kernels, CPU threads. Which one takes a JPEG follows from the
sample, and reports say how many each of them took."""

from __future__ import annotations

import io
from collections.abc import Callable
from concurrent.futures import Future
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from dali_run.ops.codecs import threaded_decode
from dali_run.ops.codecs.costs import RULE
from dali_run.ops.codecs.jpeg import nvjpeg
from dali_run.pipelines.compile.place import Target
from dali_run.pipelines.compile.plan import Plan, compile_graph
from tests.kit.engine.decoding import MARK, REFUSED, FakeNvJpeg, graph, results
from tests.kit.fake_cupy import Fake

REFUSALS = (6, 12)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """40 small JPEGs, some of them gray, turned, progressive, cut short, or not for engines; and a PNG."""
    root = tmp_path_factory.mktemp("decoders")
    (root / "a").mkdir()
    for i in range(40):
        y, x = np.mgrid[: 40 + i, : 90 - i]
        image = Image.fromarray(np.stack([20 + x * 2, 20 + y * 2, 128 + 0 * x], -1).astype(np.uint8))
        exif = Image.Exif()
        exif[0x0112] = 6 if i % 9 == 4 else 1
        how = {"progressive": i == 7, "exif": exif, "subsampling": 0, "comment": REFUSED if i in REFUSALS else b""}
        data = io.BytesIO()
        (image.convert("L") if i % 10 == 8 else image).save(data, "JPEG", quality=90, **how)
        (root / "a" / f"{i:02d}.jpg").write_bytes(data.getvalue()[: -60 if i == 11 else None])
    image.save(root / "a" / "99.png")
    return root


def kinds(folder: Path) -> tuple[list[str], list[str]]:
    """Plain colour JPEGs, and plain gray ones."""
    numbers = [i for i in range(40) if i not in (7, 11)]
    return [f"{i:02d}" for i in numbers if i % 10 != 8], [f"{i:02d}" for i in numbers if i % 10 == 8]


def same_in_all_batches(plan: Plan, taken: dict[str, int]) -> dict[str, np.ndarray]:
    """The plan's results, which must not depend on the size of batches."""
    found, report = results(plan, 41)
    assert report["decoders"] == taken
    for batch in (16, 5):
        again, report = results(plan, batch)
        assert report["decoders"] == taken
        assert again.keys() == found.keys()
        for key, value in again.items():
            np.testing.assert_array_equal(value, found[key])
    return found


@pytest.mark.parametrize("fused", [False, True])
@pytest.mark.parametrize("load", [-1.0, 0.65])  # programs written for DALI give it
def test_our_decoder_takes_all_plain_jpegs(folder: Path, engines: type[FakeNvJpeg], fused: bool, load: float) -> None:
    expected, _ = results(compile_graph(graph(folder, fused), Target(), 7))
    plan = compile_graph(graph(folder, fused, hw_decoder_load=load), Target("gpu"), 7)
    assert bool(plan.fused) == fused
    # the one that is cut short fails in our decoder, then in libjpeg-turbo; the progressive one is like the others
    colour, gray = kinds(folder)
    found = same_in_all_batches(plan, {"cuda": len(colour + gray) + 1, "libjpeg-turbo": 1, "png": 1})
    assert not engines.batches
    assert found.keys() == expected.keys()
    for key, value in found.items():
        np.testing.assert_allclose(value, expected[key], atol=1.01 if fused else 0, rtol=0)
    assert results(plan)[1]["fallbacks"] == {"device check failed: attempt 2": 1}


@pytest.mark.parametrize("engine_count", [7, 0])
def test_nvjpeg_takes_whole_baseline_jpegs(folder: Path, engines: type[FakeNvJpeg], engine_count: int) -> None:
    """By engines, or on the GPU's cores: those in colour that are not turned, and that nvJPEG does not refuse."""
    engines.engine_count = engine_count
    expected, _ = results(compile_graph(graph(folder), Target(), 7))
    colour, gray = kinds(folder)
    taken = {k for k in colour if int(k) % 9 != 4 and int(k) not in REFUSALS}
    plan = compile_graph(graph(folder, output_type="BGR", jpeg_decoder="nvjpeg"), Target("gpu"), 7)
    rest = len(colour) - len(taken) + len(gray) + 2
    found = same_in_all_batches(plan, {"nvjpeg": len(taken), "libjpeg-turbo": rest, "png": 1})
    assert found.keys() == expected.keys()
    for key, value in found.items():
        np.testing.assert_array_equal(value[..., ::-1].astype(np.int64) - expected[key], MARK * (key in taken))


def test_nvjpeg_makes_no_windows(folder: Path, engines: type[FakeNvJpeg]) -> None:
    plan = compile_graph(graph(folder, decoder="decoders.image_random_crop", jpeg_decoder="nvjpeg"), Target("gpu"), 7)
    colour, gray = kinds(folder)
    same_in_all_batches(plan, {"libjpeg-turbo": len(colour + gray) + 2, "png": 1})


class AtOnce:
    """Threads that do everything when it is handed over, and keep which kernels had been launched by then."""

    def __init__(self, fake: Fake) -> None:
        self.fake = fake
        self.launched: list[str] = []
        self.work = 0

    def submit(self, work: Callable[..., Any], *args: Any) -> Future[Any]:
        self.launched += [name for name, _ in self.fake.launched]
        self.work += 1
        done: Future[Any] = Future()
        done.set_result(work(*args))
        return done

    map = staticmethod(map)


@pytest.mark.parametrize("fused", [False, True])
def test_others_start_before_our_kernels(
    tmp_path: Path, engines: type[FakeNvJpeg], monkeypatch: pytest.MonkeyPatch, fused: bool
) -> None:
    monkeypatch.setattr(nvjpeg, "library", lambda: None)
    at_once = AtOnce(engines.fake)
    monkeypatch.setattr(threaded_decode, "threads", lambda: at_once)
    (tmp_path / "a").mkdir()
    y, x = np.mgrid[:200, :201]
    large = Image.fromarray(np.stack([x, y, 128 + 0 * x], -1).astype(np.uint8))
    for k in range(3):
        large.resize((64, 48)).save(tmp_path / "a" / f"{k}.jpg")
    large.resize((64, 48)).convert("CMYK").save(tmp_path / "a" / "cmyk.jpg", progressive=True)  # in many scans
    large.save(tmp_path / "a" / "progressive.jpg", progressive=True, subsampling=0)
    found, report = results(compile_graph(graph(tmp_path, fused), Target("gpu"), 7), 5)
    assert report["decoders"] == {"cuda": 4, "libjpeg-turbo": 1}
    assert at_once.work == 1
    last = {"jpeg_pixels", "jpeg_resize", "jpeg_strips"}
    assert not last & set(at_once.launched)
    assert last & {name for name, _ in engines.fake.launched}
    expected, _ = results(compile_graph(graph(tmp_path, fused), Target(), 7), 5)
    for key, value in expected.items():
        np.testing.assert_allclose(found[key], value, atol=1.01 if fused else 0, rtol=0)


def test_on_the_cpu_reports_name_decoders_too(folder: Path) -> None:
    _, report = results(compile_graph(graph(folder, fused=True), Target(), 7))
    colour, gray = kinds(folder)
    turned = sum(int(k) % 9 == 4 for k in colour + gray)  # which our loops leave to libjpeg-turbo
    assert turned == 4
    # the progressive one is our loops' too; what is cut short is for libjpeg-turbo to judge
    assert report["decoders"] == {
        "cpu": len(colour + gray) + 1 - turned, "libjpeg-turbo": 1 + turned, "png": 1,
    }  # fmt: skip


def test_a_plan_says_what_decodes(folder: Path) -> None:
    def said(fused: bool = True, **arguments: Any) -> list[str]:
        plan = compile_graph(graph(folder, fused, **arguments), Target("gpu"), 7)
        return [o["decoders"] for o in plan.describe()["operators"] if o["decoders"]]

    rest = f"others by other kernels and CPU threads; {RULE}"
    ours = [f"baseline and progressive JPEGs by the CUDA decoder, {rest}"]
    assert said() == said(fused=False) == said(hw_decoder_load=0.65) == ours
    assert said(jpeg_decoder="nvjpeg", hw_decoder_load=0.7) == [f"whole baseline JPEGs by nvJPEG, {rest}"]
    assert said(output_type="YCbCr") == [f"JPEGs by CPU threads, {rest}"]
    assert said(dtype="FLOAT") == ["all by CPU threads"]
    plan = compile_graph(graph(folder), Target(), 7)
    assert not any(o["decoders"] for o in plan.describe()["operators"])


# -- on a GPU ---------------------------------------------------------------------------------------------------------


@pytest.mark.gpu
def test_decoders_of_a_batch_on_the_gpu(imagenet: list[Path]) -> None:
    def run(batch: int, **who: Any) -> tuple[dict[str, np.ndarray], dict[str, Any]]:
        plan = compile_graph(graph(imagenet, jpeg_fancy_upsampling=True, **who), Target("gpu"), 7)
        return results(plan, batch)

    alone, report = run(64, hw_decoder_load=0.65)
    assert report["decoders"]["cuda"] > 0.8 * len(imagenet)
    assert "nvjpeg" not in report["decoders"]
    found, report = run(64, jpeg_decoder="nvjpeg")
    if "nvjpeg" not in report["decoders"]:
        pytest.skip("nvJPEG is not there")
    assert report["decoders"]["nvjpeg"] > 0.5 * len(imagenet)
    assert found.keys() == alone.keys()
    for key, value in alone.items():
        assert np.abs(found[key].astype(np.float64) - value).mean() <= 1.5, key
    for batch in (7, 120):
        again, same = run(batch, jpeg_decoder="nvjpeg")
        assert same["decoders"] == report["decoders"]
        for key, value in found.items():
            np.testing.assert_array_equal(again[key], value, err_msg=f"{key} in batches of {batch}")
