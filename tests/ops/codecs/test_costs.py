"""The rule that keeps large images from holding a launch, and the table that it deals with."""

from __future__ import annotations

import io
import re
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from dali_run.ops.codecs import costs
from dali_run.ops.codecs.decoder_table import host_rows
from dali_run.ops.codecs.gpu_table import gpu_rows
from dali_run.pipelines.compile.place import Target
from dali_run.pipelines.compile.plan import compile_graph
from tests.conftest import ROOT
from tests.kit.engine.decoding import graph, results
from tests.kit.fake_cupy import faked


def moved(pixels: list[int], others: int = 0, threads: int = 16) -> list[bool]:
    gpu, cpu = costs.webp(np.array(pixels, np.int64))
    return costs.stragglers(gpu, cpu, others, threads).tolist()


def test_one_request_is_decoded_where_it_is_faster() -> None:
    """An image of 0.12 megapixels takes a warp 32 ms and libwebp 2; many are taken by the GPU at once."""
    assert moved([120_000]) == [True]
    assert moved([120_000] * 8) == [True] * 8
    assert moved([120_000] * 1024) == [False] * 1024
    assert moved([120_000] * 8, threads=1) == [False] * 8


def test_the_largest_of_a_launch_goes_to_the_cpu() -> None:
    pixels = [200_000] * 500 + [3_840_000] + [190_000] * 500
    assert np.flatnonzero(moved(pixels)).tolist() == [500]


def test_natural_sizes_end_in_a_fraction_of_their_time() -> None:
    """Sizes as ImageNet has them: few images move, and the launch ends in less than a quarter of the time that the
    largest one takes on the GPU."""
    rng = np.random.default_rng(0)
    pixels = np.append(np.minimum(rng.lognormal(np.log(190_000), 0.6, 1000), 900_000), 3_840_000).astype(np.int64)
    gpu, cpu = costs.webp(pixels)
    some = costs.stragglers(gpu, cpu, 0, 16)
    assert 1 <= some.sum() < 100
    assert gpu[~some].max() < gpu.max() / 4
    assert cpu[some].sum() / (16 * costs.THREADS_SHARE) <= gpu[~some].max()
    assert gpu[some].min() >= gpu[~some].max()


def test_nothing_is_moved_that_ends_before_the_others_do() -> None:
    assert not any(moved([50_000, 60_000], others=4000))


def test_no_images() -> None:
    assert moved([]) == []


def test_the_table_is_one_of_few_rows() -> None:
    rows = [*gpu_rows(), *host_rows()]
    assert len({r.name for r in rows}) == len(rows) <= 16
    assert host_rows()[-1].name == "other formats"
    page = (ROOT / "docs/performance/gpu.md").read_text()
    assert {name for name in re.findall(r"^\| `([^`]+)` \|", page, re.M) if any(name == r.name for r in rows)} == {
        r.name for r in rows
    }


@pytest.mark.parametrize("ready", [True, False])
def test_a_row_that_is_not_ready_hands_its_images_on(
    tmp_path: Path, ready: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "a").mkdir()
    for k in range(3):
        Image.new("RGB", (20 + k, 30), (9 * k, 0, 0)).save(tmp_path / "a" / f"{k}.{'jpg' if k else 'png'}")
    for row in host_rows()[:-1]:
        if row.name in ("cpu", "png"):
            monkeypatch.setattr(type(row), "ready", ready)
    found, report = results(compile_graph(graph(tmp_path), Target(), 7))
    assert len(found) == 3
    assert report["decoders"] == ({"cpu": 2, "png": 1} if ready else {"libjpeg-turbo": 2, "other formats": 1})


def test_bits_do_not_depend_on_the_side(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """WebP, PNG and TIFF by kernels, by threads, and some by each."""
    (tmp_path / "a").mkdir()
    rng = np.random.default_rng(0)
    for k in range(12):
        pixels = rng.integers(0, 256, (20 + k, 31, 3), np.uint8)
        kind = ("png", "webp", "tiff")[k % 3]
        data = io.BytesIO()
        Image.fromarray(pixels).save(data, kind, **({"compression": "tiff_lzw"} if kind == "tiff" else {}))
        (tmp_path / "a" / f"{k:02d}.{kind}").write_bytes(data.getvalue())
    expected, _ = results(compile_graph(graph(tmp_path), Target(), 7))
    for share in (0, 1, 2):
        monkeypatch.setattr(costs, "stragglers", lambda gpu, *_, share=share: np.arange(len(gpu)) % 2 < share)
        with faked(memory=True):
            found, report = results(compile_graph(graph(tmp_path), Target("gpu"), 7))
        names = {"cuda png", "cuda webp", "cuda tiff"} if share < 2 else set()
        names |= {"png", "other formats", "tiff"} if share else set()
        assert set(report["decoders"]) == names
        for key, value in expected.items():
            np.testing.assert_array_equal(found[key], value)
