"""Pictures that threads decode for a GPU, in tasks: how many at a time, in which memory, and where they come out."""

from __future__ import annotations

import io
import itertools
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from dali_run.ops.batch import Batch, Samples
from dali_run.ops.codecs import costs, gpu_decode, headers, threaded_decode
from dali_run.ops.codecs.decoders import Image as Image_
from dali_run.ops.codecs.isolation.processes import Isolation
from dali_run.ops.context import Context
from dali_run.pipelines.compile.place import Target
from dali_run.pipelines.compile.plan import compile_graph
from tests.kit.engine.decoding import graph, results
from tests.kit.fake_cupy import faked


@pytest.mark.parametrize("sizes", [[5], [1] * 50, [3, 9, 3, 3, 12, 1, 1, 30], [0, 0, 11, 0], list(range(25))])
def test_tasks_hold_all_images_in_order_and_fit_their_blocks(
    sizes: Sequence[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(threaded_decode, "BLOCK", 10)
    tasks = threaded_decode._tasks(np.array(sizes, np.int64), threaded_decode.TASK)
    assert [k for a, b in tasks for k in range(a, b)] == list(range(len(sizes)))
    for a, b in tasks:
        assert 1 <= b - a <= threaded_decode.TASK
        assert b - a == 1 or sum(sizes[a:b]) <= 10
    for (a, b), (_, c) in itertools.pairwise(tasks):  # none is smaller than it has to be
        assert b - a == threaded_decode.TASK or sum(sizes[a : b + 1]) > 10, (a, b, c)


def test_blocks_are_of_few_sizes_and_on_the_account(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Those that are made are those that `ThreadedDecode.nbytes` has told of, whatever the pictures' sizes."""
    (tmp_path / "a").mkdir()
    rng, made, told = np.random.default_rng(0), list[int](), list[int]()
    for i in range(40):
        side = 900 if i % 20 == 7 else int(rng.integers(10, 500))
        Image.new("RGB", (side, 2 * side), (i, 0, 0)).save(tmp_path / "a" / f"{i:02d}.{'png' if i % 2 else 'webp'}")
    pinned_empty, submit = threaded_decode.pinned_empty, threaded_decode.ThreadedDecode.submit

    def noted(nbytes: int) -> Any:
        made.append(nbytes)
        return pinned_empty(nbytes)

    def summed(self: threaded_decode.ThreadedDecode, *args: Any, **more: Any) -> None:
        before = self.nbytes
        submit(self, *args, **more)
        told.append(self.nbytes - before)

    monkeypatch.setattr(threaded_decode, "pinned_empty", noted)
    monkeypatch.setattr(threaded_decode.ThreadedDecode, "submit", summed)
    monkeypatch.setattr(threaded_decode, "BLOCK", 1 << 21)
    monkeypatch.setattr(costs, "stragglers", lambda gpu, *_: np.ones(len(gpu), np.bool_))
    with faked():
        results(compile_graph(graph(tmp_path, fused=True), Target("gpu"), 7), 40)
    assert sum(made) == sum(told)
    assert {n for n in made if n <= 1 << 21} <= {1 << 18, 1 << 20, 2 << 20}
    assert [n for n in made if n > 1 << 21] == [1800 * 3 * 900] * 2  # each alone


@pytest.mark.parametrize("block", [1, 40_000, 8 << 20])
@pytest.mark.parametrize("fused", [False, True])
def test_isolated_formats_are_asked_for_several_at_a_time(
    tmp_path: Path, block: int, fused: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever the size of the blocks, each picture comes out in its place; one that is damaged costs itself."""
    (tmp_path / "a").mkdir()
    y, x = np.mgrid[:90, :80]
    kinds = ("webp", "png", "tiff", "cmyk", "jpg")
    for i in range(50):
        picture = Image.fromarray(np.stack([x * 3, y * 2, 5 * i + 0 * x], -1).astype(np.uint8)[: 60 + i % 7 * 5])
        kind, data = kinds[i % 5], io.BytesIO()
        tiff = {"compression": "jpeg"} if i % 2 else {}
        how = {"webp": ("WEBP", {"lossless": True}), "png": ("PNG", {}), "tiff": ("TIFF", tiff)}.get(kind, ("JPEG", {}))
        (picture.convert("CMYK") if kind == "cmyk" else picture).save(data, how[0], **how[1])
        cut = -20 if i == 25 else None
        (tmp_path / "a" / f"{i:02d}.{'jpg' if kind == 'cmyk' else kind}").write_bytes(data.getvalue()[:cut])
    monkeypatch.setattr(threaded_decode, "BLOCK", block)
    asked: list[int] = []
    several = Isolation.lend_several

    def counted(self: Isolation, files: Any, adjust: bool, most: int, use: Callable[[int, Any], Any]) -> Any:
        asked.append(len(files))
        return several(self, files, adjust, most, use)

    monkeypatch.setattr(Isolation, "lend_several", counted)
    expected, here = results(compile_graph(graph(tmp_path, fused), Target(), 7), 50)
    asked.clear()
    with faked(memory=True):
        found, report = results(compile_graph(graph(tmp_path, fused), Target("gpu"), 7), 50)
    assert list(found) == list(expected)
    assert len(found) == 49
    assert report["rejected"] == here["rejected"]
    for key, value in expected.items():
        np.testing.assert_allclose(found[key].astype(float), value.astype(float), atol=1.01 if fused else 0, rtol=0)
    assert sum(asked) == 15  # WebP, and TIFF of JPEG
    assert max(asked) == (threaded_decode.TASK if block >= 8 << 20 else 2 if block == 40_000 else 1)


def test_headers_of_a_part_of_a_batch_are_not_read_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Batches that a GPU takes are cut by what decodes them; each header is looked at once all the same."""
    (tmp_path / "a").mkdir()
    for i in range(24):
        picture = Image.new("RGB", (20 + i, 30), (5 * i, 0, 0))
        picture.save(tmp_path / "a" / f"{i:02d}.{('webp', 'jpg', 'png', 'webp')[i % 4]}")
    looked: list[int] = []
    recognise = headers.recognise

    def counted(data: memoryview) -> str:
        looked.append(len(data))
        return recognise(data)

    monkeypatch.setattr(headers, "recognise", counted)
    with faked(memory=True):
        found, _ = results(compile_graph(graph(tmp_path, fused=True), Target("gpu"), 7), 24)
    assert len(found) == 24
    assert len(looked) == 12  # a loop reads those of PNGs


@pytest.mark.parametrize("most", [700, 599])
@pytest.mark.parametrize("turning", [True, False])
def test_headers_taken_together_are_those_taken_one_by_one(
    most: int, turning: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Sizes, turning, limits: the same rows, and the same rejects."""
    files = []
    for i in range(16):
        picture, data, exif = Image.new("LA" if i % 5 == 4 else "RGB", (20 + i % 7, 25)), io.BytesIO(), Image.Exif()
        exif[0x0112] = 1 + i % 8
        picture.save(data, ("PNG", "WEBP")[i % 2], exif=exif)
        files.append(np.frombuffer(data.getvalue()[: 20 if i == 6 else None], np.uint8))
    rules = headers.Rules(adjust_orientation=turning, max_pixels=most)
    found = []
    for together in (True, False):
        batch = Batch.from_list(files, "", Samples.numbered(len(files)))
        if not together:
            monkeypatch.setattr(headers, "_take_supported", lambda *_: np.empty(0, np.int64))
        ctx = Context(Image_(), "cpu", batch.samples)
        read = headers.read_headers(ctx, batch, rules)
        rejects = [(r.slot, r.code, r.message) for r in ctx.rejects]
        rows = [getattr(read, name).tolist() for name in ("good", "orientation", "extents", "channels")]
        found.append((rows, read.rows.tolist(), sorted(rejects), read.bad))
    assert found[0] == found[1]
    assert 1 <= found[0][-1] < 16


def test_a_batch_that_nobody_wants_any_more_is_not_decoded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As at the end of a run that has read ahead: what is in the queue takes neither time nor memory."""
    files = []
    for i in range(30):
        data = io.BytesIO()
        Image.new("RGB", (40, 40), (i, 0, 0)).save(data, "PNG")
        files.append(np.frombuffer(data.getvalue(), np.uint8))
    batch, queued, made = Batch.from_list(files, "", Samples.numbered(30)), list[Callable[[], Any]](), list[int]()

    class Queue:
        def submit(self, work: Callable[[Any], Any], some: Any) -> None:
            queued.append(lambda: work(some))

    pinned_empty = threaded_decode.pinned_empty

    def noted(nbytes: int) -> Any:
        made.append(nbytes)
        return pinned_empty(nbytes)

    monkeypatch.setattr(threaded_decode, "threads", Queue)
    monkeypatch.setattr(costs, "stragglers", lambda gpu, *_: np.ones(len(gpu), np.bool_))  # threads decode all
    monkeypatch.setattr(threaded_decode, "pinned_empty", noted)
    with faked():
        ctx = Context(Image_(), "mixed", batch.samples)
        begun = gpu_decode.start_early(ctx, batch, headers.Rules())
        assert begun is not None
        assert len(queued) == 4
        assert len(queued[0]().images) == 8
        assert len(made) == 1
        del begun, ctx
        for work in queued[1:]:
            assert work().pixels is None
        assert len(made) == 1
