"""Decoders share a batch: our CUDA decoder, the GPU's JPEG engines, CPU threads. Who takes an image follows from the
sample, and reports say how many each of them took."""

from __future__ import annotations

import ctypes
import io
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from dali_run.ops import nvjpeg
from dali_run.ops.errors import SpecError
from dali_run.ops.nvjpeg import Backend, NvJpegError, Output
from dali_run.pipelines.compile import Plan, compile_graph
from dali_run.pipelines.device_steps import launcher_count
from dali_run.pipelines.execute import Engine, Options
from dali_run.pipelines.feed import JobFeed, Sources
from dali_run.pipelines.graph import Graph, GraphBuilder
from dali_run.pipelines.place import Target
from dali_run.pipelines.registry import load_operators
from dali_run.pipelines.report import build_report
from tests.ops.fake_cupy import Fake, faked

REFUSED = b"the engines refuse this"
REFUSALS = (6, 12)
MARK = 3
"""Levels by which the engines of these tests are off."""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """40 small JPEGs, some of them gray, turned, progressive, cut short, or not for engines; and a PNG."""
    root = tmp_path_factory.mktemp("shares")
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


def graph(where: Path | list[Path], fused: bool = False, decoder: str = "decoders.image", **arguments: Any) -> Graph:
    load_operators()
    b = GraphBuilder()
    files = {"file_root": str(where)} if isinstance(where, Path) else {"files": list(map(str, where))}
    x, label = b.add("readers.file", (), files)
    (x,) = b.add(decoder, [x], arguments, device="mixed")
    if fused:
        (x,) = b.add("resize", [x], {"size": [32, 32]})
        (x,) = b.add("crop_mirror_normalize", [x], {"dtype": "FLOAT", "crop": [24, 28]})
    return b.build({"x": x, "label": label})


def results(plan: Plan, batch: int = 16) -> tuple[dict[str, np.ndarray], dict[str, Any]]:
    """Outputs by the name of the file, and the report."""
    found = {}
    with Sources(plan, batch) as sources:
        feed = JobFeed(sources)
        with Engine(plan, feed, feed.requests(batch), Options(lanes=2)) as engine:
            for it in engine:
                whole = it.outputs(plan)["x"]
                for i in range(len(whole)):
                    found[it.samples.origin(i).key] = np.array(whole.sample(i))
            report = build_report(engine, 1.0, {"read": len(found)})
    return {Path(k).stem: v for k, v in found.items()}, report


class FakeNvJpeg:
    """nvJPEG's batched decoding into what stands for device memory; ``MARK`` levels brighter than libjpeg-turbo's."""

    backends: tuple[Backend, ...] = (Backend.HARDWARE, Backend.GPU_HYBRID)
    engine_count = 7
    fake: Fake
    launched_before: list[int]

    def __init__(self, backend: Backend, fancy_upsampling: bool = False) -> None:
        if backend not in self.backends:
            raise NvJpegError("nvjpegCreateEx", 7)
        self.fancy = fancy_upsampling

    def engines(self) -> int:
        return self.engine_count

    def close(self) -> None:
        pass

    def batch(self, data: Any, lengths: Any, images: Any, output: Output, stream: int, threads: int = 1) -> None:
        assert self.fancy  # as our decoder, beside which it is
        self.launched_before.append(len(self.fake.launched))
        files = [ctypes.string_at(int(a), int(n)) for a, n in zip(data, lengths, strict=True)]
        if any(REFUSED in f for f in files):
            raise NvJpegError("nvjpegDecodeBatched", 4)
        for file, image in zip(files, images, strict=True):
            pixels = np.asarray(Image.open(io.BytesIO(file)).convert("RGB")).astype(np.int64) + MARK
            pixels = np.ascontiguousarray(np.minimum(pixels, 255)[..., :: -1 if output is Output.BGR else 1], np.uint8)
            assert int(image[4]) == 3 * pixels.shape[1]
            ctypes.memmove(int(image[0]), pixels.ctypes.data, pixels.nbytes)


@pytest.fixture
def engines(monkeypatch: pytest.MonkeyPatch) -> Iterator[type[FakeNvJpeg]]:
    def missing() -> None:
        raise nvjpeg.DeviceError("nvJPEG was not found")

    with faked(memory=True) as fake:
        made = type("FakeNvJpeg", (FakeNvJpeg,), {"fake": fake, "launched_before": []})
        monkeypatch.setattr(nvjpeg, "Decoder", made)
        monkeypatch.setattr(nvjpeg, "library", missing)  # no hybrid decoders
        yield made


def chosen(number: int) -> float:
    """Where in [0, 1) a sample is, by its index, which is the file's number here (splitmix64's multiplier)."""
    return float(((number + 1) * 0x9E3779B97F4A7C15 % 2**64 >> 40) / 2**24)


def kinds(folder: Path) -> tuple[list[str], list[str]]:
    """Plain colour JPEGs, and plain gray ones."""
    numbers = [i for i in range(40) if i not in (7, 11)]
    return [f"{i:02d}" for i in numbers if i % 10 != 8], [f"{i:02d}" for i in numbers if i % 10 == 8]


@pytest.mark.parametrize("fused", [False, True])
def test_engines_and_threads_take_their_parts(folder: Path, engines: type[FakeNvJpeg], fused: bool) -> None:
    plain, reject = compile_graph(graph(folder, fused), Target(), 7), "11"
    expected, _ = results(plain)
    colour, gray = kinds(folder)
    loads = {"jpeg_decoder": "shared", "hw_decoder_load": 0.35, "cpu_decoder_load": 0.25}
    offered = {k for k in colour if chosen(int(k)) < 0.35}
    by_engine = {k for k in offered if int(k) not in REFUSALS}
    on_threads = {k for k in colour + gray if chosen(int(k)) >= 0.75}
    assert len(by_engine) > 5
    assert len(offered - by_engine) > 0
    assert len(on_threads) > 5
    plan = compile_graph(graph(folder, fused, **loads), Target("gpu"), 7)
    assert bool(plan.fused) == fused
    found: dict[int, dict[str, np.ndarray]] = {}
    for batch in (40, 16, 5):
        found[batch], report = results(plan, batch)
        # the one that is cut short fails in our decoder, then in libjpeg-turbo
        taken = {
            "engines": len(by_engine),
            "cuda": len(colour) + len(gray) - len(offered) - len(on_threads),
            "libjpeg-turbo": len(on_threads) + len(offered - by_engine) + 2,
            "other formats": 1,
        }
        assert report["decoders"] == taken
        assert report["fallbacks"] == {
            "not for the CUDA JPEG decoder: progressive": 1, "device check failed: attempt 2": 1,
        }  # fmt: skip
    assert found[40].keys() == expected.keys()
    assert reject not in expected
    for key, value in found[40].items():
        off = MARK if key in by_engine else 0
        close = 1.01 if fused else 0
        np.testing.assert_allclose(value.astype(np.float64), expected[key].astype(np.float64) + off, atol=close, rtol=0)
        for batch in (16, 5):
            np.testing.assert_array_equal(found[batch][key], value)


def test_engines_work_while_our_kernels_do(folder: Path, engines: type[FakeNvJpeg]) -> None:
    for fused in (False, True):
        launched, before = engines.fake.launched, engines.launched_before
        results(compile_graph(graph(folder, fused, jpeg_decoder="shared", hw_decoder_load=0.4), Target("gpu"), 7), 41)
        names = [name for name, _ in launched[: before[0]]]
        assert ("jpeg_resize" if fused else "jpeg_pixels") in names  # they were launched first
        assert "resample" not in "".join(names)
        launched.clear()
        before.clear()


def test_without_engines_our_decoder_takes_all(folder: Path, engines: type[FakeNvJpeg]) -> None:
    engines.engine_count = 0
    found, report = results(compile_graph(graph(folder, jpeg_decoder="shared", hw_decoder_load=0.4), Target("gpu"), 7))
    expected, _ = results(compile_graph(graph(folder), Target(), 7))
    assert not engines.launched_before
    assert set(report["decoders"]) == {"cuda", "libjpeg-turbo", "other formats"}
    for key, value in expected.items():
        np.testing.assert_array_equal(found[key], value)


@pytest.mark.parametrize("load", [-1.0, 0.65])  # programs written for DALI give it
def test_by_default_our_decoder_shares_with_nobody(folder: Path, engines: type[FakeNvJpeg], load: float) -> None:
    _, report = results(compile_graph(graph(folder, hw_decoder_load=load), Target("gpu"), 7))
    colour, gray = kinds(folder)
    assert not engines.launched_before
    assert report["decoders"] == {"cuda": len(colour + gray), "libjpeg-turbo": 2, "other formats": 1}


@pytest.mark.parametrize("decoder", ["decoders.image", "decoders.image_random_crop"])
def test_windows_of_random_crops_do_not_depend_on_who_decodes(
    folder: Path, engines: type[FakeNvJpeg], decoder: str
) -> None:
    expected, _ = results(compile_graph(graph(folder, decoder=decoder), Target(), 7))
    shared = {"jpeg_decoder": "shared", "hw_decoder_load": 0.5}
    found, report = results(
        compile_graph(graph(folder, decoder=decoder, output_type="BGR", **shared), Target("gpu"), 7), 7
    )
    assert report["decoders"]["engines"] > 5
    for key, value in expected.items():
        off = found[key][..., ::-1].astype(np.int64) - value
        assert off.min() == off.max()
        assert off.min() in (0, MARK)


def test_the_engines_part_is_what_their_rate_makes_it(folder: Path, engines: type[FakeNvJpeg]) -> None:
    engines.engine_count = 60  # so that a few of these pictures are for them
    _, report = results(compile_graph(graph(folder, jpeg_decoder="shared"), Target("gpu"), 7))
    colour, _ = kinds(folder)
    part = 60 * 2700 / (60 * 2700 + 250_000)
    offered = {k for k in colour if chosen(int(k)) < part}
    assert report["decoders"]["engines"] == len([k for k in offered if int(k) not in REFUSALS]) > 3


def test_on_the_cpu_reports_name_decoders_too(folder: Path) -> None:
    _, report = results(compile_graph(graph(folder, fused=True, jpeg_decoder="shared"), Target(), 7))
    colour, gray = kinds(folder)
    turned = sum(int(k) % 9 == 4 for k in colour + gray)  # which our loops leave to libjpeg-turbo
    assert turned == 4
    assert report["decoders"] == {
        "cpu": len(colour + gray) - turned, "libjpeg-turbo": 2 + turned, "other formats": 1,
    }  # fmt: skip


def test_a_launch_that_waits_has_another_beside_it(folder: Path) -> None:
    for arguments, count in (
        ({}, 1), ({"hw_decoder_load": 0.65}, 1), ({"jpeg_decoder": "shared"}, 2), ({"jpeg_decoder": "nvjpeg"}, 2),
    ):  # fmt: skip
        plan = compile_graph(graph(folder, fused=True, **arguments), Target("gpu"), 7)
        (step,) = (s for s in plan.steps if s.kind == "device")
        assert launcher_count(step) == count, arguments


def test_a_launch_that_waits_is_no_matter_of_the_batch_size(folder: Path, engines: type[FakeNvJpeg]) -> None:
    for decoder, advice in (("auto", "A larger batch_size."), ("shared", "Other parts for the GPU's JPEG engines")):
        plan = compile_graph(graph(folder, fused=True, jpeg_decoder=decoder), Target("gpu"), 7)
        with Sources(plan, 16) as sources:
            feed = JobFeed(sources)
            with Engine(plan, feed, feed.requests(16), Options()) as engine:
                list(engine)
                engine.stats.stages["01:gpu"] = 1000.0  # seconds of the launching threads
                found = build_report(engine, 600.0, {"read": 41})["bottleneck"]
        assert found["what"] == "launching"
        assert found["advice"].startswith(advice)


def test_a_plan_says_who_decodes(folder: Path) -> None:
    def said(**arguments: Any) -> list[str]:
        plan = compile_graph(graph(folder, fused=True, **arguments), Target("gpu"), 7)
        return [o["decoders"] for o in plan.describe()["operators"] if o["decoders"]]

    assert said() == ["baseline JPEGs by the CUDA decoder"]
    assert said(jpeg_decoder="shared", hw_decoder_load=0.07, cpu_decoder_load=0.02) == [
        "baseline JPEGs by the CUDA decoder, but 0.07 by the GPU's JPEG engines and 0.02 by CPU threads"
    ]
    assert said(jpeg_decoder="nvjpeg", hw_decoder_load=0.7) == [
        "of baseline JPEGs 0.7 by the GPU's JPEG engines, the rest by CPU threads"
    ]
    assert said(jpeg_decoder="shared") == ["baseline JPEGs by the CUDA decoder, but a part by the GPU's JPEG engines"]
    plan = compile_graph(graph(folder, jpeg_decoder="shared"), Target(), 7)
    assert not any(o["decoders"] for o in plan.describe()["operators"])


def test_shares_must_be_parts_of_one_whole(folder: Path) -> None:
    with pytest.raises(SpecError, match=r"hw_decoder_load 0.7 and cpu_decoder_load 0.4 are more than all"):
        graph(folder, jpeg_decoder="shared", hw_decoder_load=0.7, cpu_decoder_load=0.4)
    with pytest.raises(SpecError, match="cpu_decoder_load is for jpeg_decoder: shared"):
        graph(folder, jpeg_decoder="nvjpeg", cpu_decoder_load=0.4)
    graph(folder, jpeg_decoder="shared", hw_decoder_load=0.6, cpu_decoder_load=0.4)


# -- on a GPU ---------------------------------------------------------------------------------------------------------


@pytest.mark.gpu
@pytest.mark.parametrize("fused", [False, True])
@pytest.mark.parametrize("decoder", ["decoders.image", "decoders.image_random_crop"])
def test_decoders_share_a_batch_on_the_gpu(imagenet: list[Path], fused: bool, decoder: str) -> None:
    def run(batch: int, **loads: float) -> tuple[dict[str, np.ndarray], dict[str, Any]]:
        who = {"jpeg_decoder": "shared", "hw_decoder_load": 0.0, **loads}
        return results(compile_graph(graph(imagenet, fused, decoder, **who), Target("gpu"), 7), batch)

    alone, report = run(64)
    assert report["decoders"]["cuda"] > 100
    assert "engines" not in report["decoders"]
    threads, report = run(64, cpu_decoder_load=0.3)
    assert report["decoders"]["libjpeg-turbo"] > 20
    for key, value in alone.items():
        np.testing.assert_allclose(threads[key], value, atol=1.01 if fused else 0, rtol=0, err_msg=key)
    shared, report = run(64, hw_decoder_load=0.4, cpu_decoder_load=0.1)
    if "engines" not in report["decoders"]:
        pytest.skip("this GPU has no JPEG engines")
    assert report["decoders"]["engines"] > 25
    assert shared.keys() == alone.keys()
    differ = 0
    for key, value in alone.items():
        difference = np.abs(shared[key].astype(np.float64) - value)
        differ += bool(difference.max() > 1.01)
        assert difference.mean() <= 1.5, key
    assert differ <= report["decoders"]["engines"]
    for batch in (7, 120):
        again, same = run(batch, hw_decoder_load=0.4, cpu_decoder_load=0.1)
        assert same["decoders"] == report["decoders"]
        for key, value in shared.items():
            np.testing.assert_array_equal(again[key], value, err_msg=f"{key} in batches of {batch}")
