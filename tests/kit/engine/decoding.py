"""Jobs that decode on a GPU, and a stand-in for nvJPEG."""

from __future__ import annotations

import ctypes
import io
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from dali_run.ops.codecs.jpeg import nvjpeg
from dali_run.ops.codecs.jpeg.nvjpeg import Backend, NvJpegError, Output
from dali_run.pipelines.compile.plan import Plan
from dali_run.pipelines.engine.engine import Engine, Options
from dali_run.pipelines.engine.inputs import JobFeed, Sources
from dali_run.pipelines.graph.builder import GraphBuilder
from dali_run.pipelines.graph.nodes import Graph
from dali_run.pipelines.job.report import build_report
from dali_run.pipelines.plugins import load_operators
from tests.kit.fake_cupy import Fake, faked

REFUSED = b"the engines refuse this"


MARK = 3
"""Levels by which images of the nvJPEG stand-in are brighter than those of libjpeg-turbo."""


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
    """Run the plan in batches of ``batch``. Return the outputs by file name, and the report."""
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
    """Stand-in for nvJPEG that decodes into fake device memory, ``MARK`` levels brighter than libjpeg-turbo."""

    engine_count = 7
    fake: Fake
    batches: list[int]

    def __init__(self, backend: Backend, fancy_upsampling: bool = False) -> None:
        pass

    def engines(self) -> int:
        return self.engine_count

    def close(self) -> None:
        pass

    def batch(self, data: Any, lengths: Any, images: Any, output: Output, stream: int, threads: int = 1) -> None:
        self.batches.append(len(data))
        files = [ctypes.string_at(int(a), int(n)) for a, n in zip(data, lengths, strict=True)]
        if any(REFUSED in f for f in files):
            raise NvJpegError("nvjpegDecodeBatched", 4)
        for a, n, image in zip(data, lengths, images, strict=True):
            self.single(a, n, image, output, stream)

    def single(self, data: Any, length: Any, image: Any, output: Output, stream: int) -> None:
        file = ctypes.string_at(int(data), int(length))
        pixels = np.asarray(Image.open(io.BytesIO(file)).convert("RGB")).astype(np.int64) + MARK
        pixels = np.ascontiguousarray(np.minimum(pixels, 255)[..., :: -1 if output is Output.BGR else 1], np.uint8)
        assert int(image[4]) == 3 * pixels.shape[1]
        ctypes.memmove(int(image[0]), pixels.ctypes.data, pixels.nbytes)


@pytest.fixture
def engines(monkeypatch: pytest.MonkeyPatch) -> Iterator[type[FakeNvJpeg]]:
    def missing() -> None:
        raise nvjpeg.DeviceError("nvJPEG was not found")

    with faked(memory=True) as fake:
        made = type("FakeNvJpeg", (FakeNvJpeg,), {"fake": fake, "batches": []})
        monkeypatch.setattr(nvjpeg, "Decoder", made)
        monkeypatch.setattr(nvjpeg, "library", missing)  # no hybrid decoders
        yield made
