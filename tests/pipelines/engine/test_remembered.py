"""Facts that a loop over a data set remembers of its JPEGs, on a GPU that is emulated."""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from dali_run import Pipeline, fn
from dali_run.ops.codecs.jpeg import cuda as jpeg_gpu
from dali_run.ops.codecs.jpeg.boundaries import Boundaries
from dali_run.pipelines.compile.place import resolve_target
from dali_run.pipelines.compile.plan import compile_graph
from dali_run.pipelines.engine.engine import Engine, Options
from dali_run.pipelines.engine.inputs import JobFeed, Sources
from dali_run.pipelines.job.report import build_report
from tests.kit.engine.joined import graph
from tests.kit.fake_cupy import faked


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    rng, folder = np.random.default_rng(0), tmp_path / "class"
    folder.mkdir()
    for i in range(6):
        stream = io.BytesIO()
        noise = rng.integers(0, 200, (60 + 10 * i, 70, 3), dtype=np.uint8)
        Image.fromarray(noise).save(stream, "JPEG", quality=90, progressive=i == 5)
        (folder / f"{i}.jpg").write_bytes(stream.getvalue())
    return folder


@pytest.fixture
def planned(monkeypatch: pytest.MonkeyPatch) -> list[tuple[int, int]]:
    """Of every batch that the kernels are given: pictures whose states were known, streams whose were not."""
    batches: list[tuple[int, int]] = []
    decode = jpeg_gpu.Decoder.decode

    def spy(self: Any, raw: Any, plan: jpeg_gpu.DecodePlan, *args: Any, **how: Any) -> Any:
        batches.append((int(np.count_nonzero(plan.images["known_count"])), plan.unknowns))
        return decode(self, raw, plan, *args, **how)

    monkeypatch.setattr(jpeg_gpu.Decoder, "decode", spy)
    return batches


AHEAD = 10
"""Epochs of two batches: more than are read, and planned, before the first one is decoded."""


def pipeline(folder: Path, joined: bool = True, readers: int = 1, **settings: Any) -> Pipeline:
    pipe = Pipeline(batch_size=3, num_threads=2, device_id=0, **settings)
    with pipe:
        files = [fn.readers.file(files=sorted(map(str, folder.glob("*.jpg"))))[0] for _ in range(readers)]
        images = [fn.decoders.image(f, device="mixed") for f in files]
        pipe.set_outputs(*(fn.resize(i, size=[20, 24]) if joined else i for i in images))
    return pipe


def epochs(pipe: Pipeline, n: int) -> list[list[np.ndarray]]:
    found: list[list[np.ndarray]] = []
    for _ in range(n):
        found.append([])
        for _ in range(2):
            (batch,) = pipe.run()
            found[-1] += [np.array(batch.as_cpu().at(i)) for i in range(3)]
    pipe.close()
    return found


@pytest.mark.parametrize("joined", [True, False])
def test_the_second_epoch_knows_what_the_first_found(
    folder: Path, planned: list[tuple[int, int]], joined: bool
) -> None:
    with faked(1, memory=True):
        first, *later = epochs(pipeline(folder, joined), AHEAD)
    for pictures in later:
        for one, other in zip(first, pictures, strict=True):
            np.testing.assert_array_equal(one, other)
    assert planned[0][0] == 0
    known, unknown = planned[-1]  # perhaps of several batches, which are decoded at once
    assert known > 0
    assert unknown == 0, "all but the progressive picture, which has no such states"


def test_what_is_wrong_costs_no_picture(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fill = Boundaries.fill
    spoilt, made = [], []

    def spoil(self: Boundaries, index: Any, counts: Any, states: Any) -> None:
        made.append(self)
        fill(self, index, counts, states)
        if counts[0] > 1:
            states[1] ^= np.uint64(1 << 32)
            spoilt.append(index[0])

    monkeypatch.setattr(Boundaries, "fill", spoil)
    with faked(1, memory=True):
        first, *later = epochs(pipeline(folder), AHEAD)
    assert spoilt
    assert made[0].wrong
    for pictures in later:
        for one, other in zip(first, pictures, strict=True):
            np.testing.assert_array_equal(one, other)


def test_what_is_kept_is_counted(folder: Path, planned: list[tuple[int, int]]) -> None:
    """In a report, and for each operator of a program; of nothing where nothing may be kept."""
    with faked(1, memory=True):
        pipe = pipeline(folder)
        for _ in range(2 * AHEAD):
            pipe.run()
        kept = {k: n["remembered_bytes"] for k, n in pipe.executor_statistics().items()}
        engine = pipe._session.engine()
        memory = build_report(engine, 1.0, {})["memory"]
        pipe.close()
        assert any(n for n, _ in planned)
        planned.clear()
        forgetful = pipeline(folder, remember=False)
        for _ in range(2 * AHEAD):
            forgetful.run()
        nothing = {n["remembered_bytes"] for n in forgetful.executor_statistics().values()}
        report = build_report(forgetful._session.engine(), 1.0, {})["memory"]
        forgetful.close()
    assert planned
    assert not any(n for n, _ in planned)
    assert nothing == {0}
    assert not any(key.startswith("remembered") for key in report)
    (decoder,) = [k for k in kept if "decoders" in k]
    assert kept.pop(decoder) == memory["remembered_bytes"] > 0
    assert not any(kept.values())
    assert memory["remembered_records"] == 5, "all but the progressive picture"


def test_not_of_two_data_sets(folder: Path, planned: list[tuple[int, int]]) -> None:
    """Each has epochs of its own: the number of a record of one says nothing about the other."""
    with faked(1, memory=True):
        pipe = pipeline(folder, readers=2)
        for _ in range(2 * AHEAD):
            pipe.run()
        pipe.close()
    assert planned
    assert not any(n for n, _ in planned)


def test_not_where_records_come_once(folder: Path) -> None:
    plan = compile_graph(graph(folder.parent, "decoders.image", {"size": [20, 24]}, None, False), resolve_target("cpu"))
    with Sources(plan, 2) as sources:
        feed = JobFeed(sources)
        assert Engine(plan, feed, feed.requests(2), Options()).services.remembered is None
        assert Engine(plan, feed, feed.requests(2), Options(repeats=True)).services.remembered is not None


@pytest.mark.parametrize("joined", [True, False])
def test_the_cpu_reads_what_a_crop_shows(folder: Path, joined: bool) -> None:
    """From the second epoch on, where that is allowed; to the same pixels."""
    found, kept = [], []
    for remember in (True, False):
        pipe = Pipeline(batch_size=3, num_threads=2, device_id=None, seed=7, remember=remember)
        with pipe:
            files = fn.readers.file(files=sorted(map(str, folder.glob("*.jpg"))))[0]
            images = fn.decoders.image_random_crop(files)
            pipe.set_outputs(fn.resize(images, size=[20, 24]) if joined else images)
        found.append([np.array(batch.at(i)) for _ in range(8) for (batch,) in [pipe.run()] for i in range(3)])
        facts = pipe._session.engine().services.remembered
        per_node = sum(n["remembered_bytes"] for n in pipe.executor_statistics().values())
        kept.append((0, 0, per_node) if facts is None else (facts.records(), facts.nbytes(), per_node))
        pipe.close()
    for one, other in zip(*found, strict=True):
        np.testing.assert_array_equal(one, other)
    assert kept[1] == (0, 0, 0)
    assert kept[0][0] == 5, "all but the progressive picture"
    assert kept[0][1] == kept[0][2] > 0
