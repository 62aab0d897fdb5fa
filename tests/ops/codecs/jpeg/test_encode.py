"""The JPEG encoders, the loop on the CPU and the CUDA kernels, against libjpeg-turbo (Pillow): files byte for byte."""

from __future__ import annotations

import io
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray
from PIL import Image, ImageFile

from dali_run.ops.base import Operator, Spec
from dali_run.ops.batch import Batch, Samples
from dali_run.ops.codecs import encoders_cpu
from dali_run.ops.codecs import encoders_gpu as jpeg_encode_gpu
from dali_run.ops.codecs.encoders import EncodeImage
from dali_run.ops.context import Context
from dali_run.ops.types import DALIDataType
from dali_run.pipelines.compile.place import Target
from dali_run.pipelines.compile.plan import Plan, compile_graph
from dali_run.pipelines.engine.engine import Engine, Options, Request
from dali_run.pipelines.graph.builder import GraphBuilder
from dali_run.pipelines.plugins import load_operators
from tests.kit.emulated_lane import EmulatedLane

load_operators()

Picture = NDArray[np.uint8]
SIZES = [(1, 1), (2, 3), (3, 2), (8, 8), (9, 17), (16, 16), (17, 15), (15, 33), (33, 70), (64, 64), (131, 257)]
SUBSAMPLINGS = ("4:4:4", "4:2:2", "4:2:0")


class GuardedLane(EmulatedLane):
    """Around every array, strips that no kernel may write."""

    def __init__(self) -> None:
        super().__init__()
        self._strips: list[NDArray[np.uint8]] = []

    def empty(self, n: int, dtype: Any) -> NDArray[Any]:
        size = n * np.dtype(dtype).itemsize
        memory = np.full(size + 3 * 256, 0x5A, np.uint8)
        start = 256 + -memory.ctypes.data % 256
        self._strips += [memory[:start], memory[start + size :]]
        memory[start : start + size] = 0xA5
        return memory[start : start + size].view(dtype)

    def upload(self, *arrays: NDArray[Any]) -> tuple[NDArray[Any], ...]:
        found = []
        for a in arrays:
            to = self.empty(a.size, a.dtype)
            to[:] = a.reshape(-1)
            found.append(to.reshape(a.shape))
        return tuple(found)

    def synchronize(self) -> None:
        assert all((strip == 0x5A).all() for strip in self._strips)


class HostLane(GuardedLane):
    """The CPU's loop in the place of kernels; around what it allocates are the strips, too."""


@pytest.fixture(params=["emulated", pytest.param("gpu", marks=pytest.mark.gpu(emulated=False))])
def device(request: pytest.FixtureRequest) -> Iterator[Any]:
    """A lane of a GPU, or what stands in for one."""
    yield from opened(request.param)


@pytest.fixture(params=["cpu", "emulated", pytest.param("gpu", marks=pytest.mark.gpu(emulated=False))])
def lane(request: pytest.FixtureRequest) -> Iterator[Any]:
    """Where images are encoded."""
    yield from opened(request.param)


def opened(kind: str) -> Iterator[Any]:
    if kind != "gpu":
        yield HostLane() if kind == "cpu" else GuardedLane()
        return
    from dali_run.ops.gpu.lane import Lane

    with Lane() as device:
        yield device


@pytest.fixture
def no_fallback(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: Any) -> Batch:
        raise AssertionError("a picture was left to the CPU")

    monkeypatch.setattr(jpeg_encode_gpu, "_with_host_files", refuse)


def picture(height: int, width: int, channels: int = 3, seed: int = 0) -> Picture:
    """Waves, an edge, and noise on one side: blocks of all kinds."""
    rng = np.random.default_rng(seed)
    y, x = np.mgrid[:height, :width]
    waves = [np.sin(x / (5 + 3 * c)) * np.cos(y / (9 - 2 * c)) * 90 + 128 for c in range(channels)]
    image = np.stack(waves, 2) + rng.normal(0, 15, (height, width, channels)) * (x > width / 2)[..., None]
    image[height // 3 : height // 2, width // 4 : width // 2] = rng.integers(0, 256, channels)
    return np.clip(image, 0, 255).astype(np.uint8)


def on_device(lane: Any, batch: Batch) -> Batch:
    return batch if isinstance(lane, EmulatedLane) else lane.to_device(batch)


def encode(lane: Any, batch: Batch, **arguments: Any) -> tuple[Context, Batch]:
    op = EncodeImage(**arguments)
    op.check()
    if isinstance(lane, HostLane):
        ctx = Context(op, "cpu", batch.samples, allocate=lane.empty)
        out = op.cpu(ctx, batch)
        lane.synchronize()
        return ctx, out
    ctx = Context(op, "gpu", batch.samples, device=lane)
    stand_in = op.gpu(ctx, on_device(lane, batch))
    assert len(stand_in) == len(batch)
    assert ctx.finish is not None
    lane.synchronize()
    out = ctx.finish()
    lane.synchronize()
    assert out.on_host
    return ctx, out


def assert_files_of_pillow(lane: Any, batch: Batch, **arguments: Any) -> Batch:
    ctx, out = encode(lane, batch, **arguments)
    assert not ctx.rejects
    for file, image in zip(out, batch, strict=True):
        assert file.tobytes() == by_pillow(image, **arguments), (image.shape, arguments)
    return out


def by_pillow(image: Picture, quality: int = 95, subsampling: str = "4:2:0", optimize: bool = False) -> bytes:
    file = io.BytesIO()
    with pytest.MonkeyPatch.context() as m:
        m.setattr(ImageFile, "MAXBLOCK", 1 << 22)  # optimised files must fit into it
        pixels = Image.fromarray(image[:, :, 0] if image.shape[2] == 1 else image)
        pixels.save(file, "JPEG", quality=quality, subsampling=subsampling, optimize=optimize)
    return file.getvalue()


def batch_of(pictures: list[Picture]) -> Batch:
    return Batch.from_list(pictures, "HWC", Samples.numbered(len(pictures)))


@pytest.mark.parametrize("optimize", [False, True])
@pytest.mark.parametrize("subsampling", SUBSAMPLINGS)
@pytest.mark.parametrize("quality", [1, 30, 75, 95, 100])
@pytest.mark.usefixtures("no_fallback")
def test_sizes_and_qualities(lane: Any, quality: int, subsampling: str, optimize: bool) -> None:
    pictures = [picture(h, w, 3 if k % 3 else 1, k) for k, (h, w) in enumerate(SIZES)]
    out = assert_files_of_pillow(lane, batch_of(pictures), quality=quality, subsampling=subsampling, optimize=optimize)
    assert out.is_packed


@pytest.mark.parametrize("optimize", [False, True])
@pytest.mark.usefixtures("no_fallback")
def test_extremes(lane: Any, optimize: bool) -> None:
    """The largest coefficients, long runs of zeros, symbols of one kind alone, bytes FF in plenty."""
    y, x = np.mgrid[:64, :80]
    stripes = np.where(x % 2, 255, 0)
    squares = np.where(x // 8 % 2 ^ y // 8 % 2, 255, 0)
    high = np.zeros((64, 80))
    high[7::8, 7::8] = 3
    gray = [np.zeros((64, 80)), np.full((64, 80), 255), stripes, stripes.T[:64, :64], squares, high]
    pictures = [np.repeat(g[..., None], 3, 2).astype(np.uint8) for g in gray]
    pictures += [np.stack([g, 255 - g, g], 2).astype(np.uint8) for g in gray]
    for quality in (40, 100):
        assert_files_of_pillow(lane, batch_of(pictures), quality=quality, optimize=optimize)


@pytest.mark.parametrize("optimize", [False, True])
@pytest.mark.usefixtures("no_fallback")
def test_noise(lane: Any, optimize: bool) -> None:
    """Large files: many chunks of coded blocks and of bytes."""
    noise = np.random.default_rng(1).integers(0, 256, (150, 230, 3), np.uint8)
    for subsampling in SUBSAMPLINGS:
        assert_files_of_pillow(lane, batch_of([noise, noise[:9]]), quality=100, subsampling=subsampling,
                               optimize=optimize)  # fmt: skip


@pytest.mark.usefixtures("no_fallback")
def test_real_pictures(lane: Any, imagenet: list[Path]) -> None:
    pictures = []
    for path in imagenet[::12]:
        image = Image.open(path).convert("RGB")
        pictures.append(np.asarray(image.resize((image.width * 256 // min(image.size) + 1, 256))))
    for optimize in (False, True):
        assert_files_of_pillow(lane, batch_of(pictures), quality=90, optimize=optimize)


@pytest.mark.usefixtures("no_fallback")
def test_gaps_and_disorder(lane: Any) -> None:
    whole = batch_of([picture(20 + k, 31, 3, k) for k in range(5)])
    assert_files_of_pillow(lane, whole.take(np.array([3, 0, 4])))


def test_what_does_not_fit_is_encoded_on_the_cpu(device: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    used: list[list[int]] = []
    host = jpeg_encode_gpu._with_host_files

    def watch(op: Any, lane: Any, images: Any, files: Any, left: Any) -> Batch:
        used.append(left.tolist())
        return host(op, lane, images, files, left)

    monkeypatch.setattr(jpeg_encode_gpu, "_with_host_files", watch)
    rng = np.random.default_rng(2)
    noise = (rng.integers(0, 2, (40, 60, 3)) * 255).astype(np.uint8)
    pictures = [picture(30, 40), noise, picture(50, 20, 1), noise[:1, :1], picture(8, 9)]
    # No room for noise in its slot.
    monkeypatch.setattr(jpeg_encode_gpu, "ROOM", ((100, 96),))
    assert_files_of_pillow(device, batch_of(pictures), quality=100, subsampling="4:4:4")
    assert used.pop() == [1]
    # No room for the last files.
    plan = jpeg_encode_gpu.plan_encode
    monkeypatch.setattr(jpeg_encode_gpu, "plan_encode", lambda *a: replace(plan(*a), room=2500))
    assert_files_of_pillow(device, batch_of([p for k, p in enumerate(pictures) if k != 1]))
    assert used.pop() == [2, 3]
    # Pictures that are too large to count.
    monkeypatch.setattr(jpeg_encode_gpu, "plan_encode", plan)
    monkeypatch.setattr(jpeg_encode_gpu, "MAX_BLOCKS", 30)
    assert_files_of_pillow(device, batch_of(pictures))
    assert used.pop() == [0, 1]


@pytest.mark.parametrize("shape", [(0, 5, 3), (5, 5, 4), (5, 5, 2), (1, 65501, 1)])
def test_what_cannot_be_encoded_costs_one_sample(lane: Any, shape: tuple[int, int, int]) -> None:
    good = picture(20, 30)
    ctx, out = encode(lane, batch_of([good, np.zeros(shape, np.uint8), good]))
    assert [r.slot for r in ctx.rejects] == [1]
    assert ctx.rejects[0].message == EncodeImage().unfit(shape)
    assert out.sample(0).tobytes() == out.sample(2).tobytes() == by_pillow(good)


@settings(max_examples=80, deadline=None)
@given(
    st.lists(st.tuples(st.integers(1, 90), st.integers(1, 90), st.sampled_from([1, 3])), min_size=1, max_size=4),
    st.integers(1, 100), st.sampled_from(SUBSAMPLINGS), st.booleans(), st.integers(0, 3), st.integers(0, 1 << 32),
)  # fmt: skip
def test_any_picture_on_the_cpu(
    shapes: list[tuple[int, int, int]], quality: int, subsampling: str, optimize: bool, kind: int, seed: int
) -> None:
    """Of kinds that make few, many and the largest coefficients."""
    rng = np.random.default_rng(seed)
    pictures = []
    for height, width, channels in shapes:
        noise = rng.integers(0, 256, (height, width, channels), np.uint8)
        choices = noise, noise // 128 * 255, noise // 255 * 255, picture(height, width, channels, seed)
        pictures.append(choices[kind])
    batch = batch_of(pictures)
    assert_files_of_pillow(HostLane(), batch, quality=quality, subsampling=subsampling, optimize=optimize)


@pytest.mark.parametrize("optimize", [False, True])
def test_files_that_are_larger_than_expected_get_more_room(monkeypatch: pytest.MonkeyPatch, optimize: bool) -> None:
    monkeypatch.setattr(encoders_cpu, "_BLOCK", ((100, 1),))
    noise = np.random.default_rng(1).integers(0, 256, (150, 230, 3), np.uint8)
    whole = batch_of([noise, picture(20, 30), noise, noise])
    assert_files_of_pillow(HostLane(), whole, quality=100, optimize=optimize)


class Pictures(Operator, name="testing.pictures"):
    """A picture of its own for every index; index 13 cannot be encoded."""

    inputs = (0, 0)

    def infer(self, *specs: Spec) -> Spec:
        return Spec((None, None, None), DALIDataType.UINT8, "HWC")

    def cpu(self, ctx: Context) -> Batch:
        found = [picture(10 + i % 7, 20 + i % 5, 5 if i == 13 else 3, i) for i in ctx.samples.index.tolist()]
        return Batch.from_list(found, "HWC", ctx.samples)


class Feed:
    states: Mapping[int, Any] = {}
    kinds: Mapping[Any, Any] = {}

    def samples(self, request: Request) -> tuple[Samples, Mapping[int, Samples]]:
        return Samples.numbered(request.n, request.start), {}


def compiled(device: str, **arguments: Any) -> Plan:
    b = GraphBuilder()
    (pixels,) = b.add("testing.pictures")
    (moved,) = b.add("copy", [pixels], device="auto" if device == "cpu" else "gpu")
    (files,) = b.add("encoders.image", [moved], arguments)
    return compile_graph(b.build({"pixels": pixels, "files": files}), Target(device=device))  # type: ignore[arg-type]


@pytest.mark.parametrize("device", ["cpu", "null", pytest.param("gpu", marks=pytest.mark.gpu)])
@pytest.mark.parametrize("arguments", [{}, {"quality": 60, "optimize": True}, {"format": "png"}])
def test_in_the_engine(device: str, arguments: dict[str, Any]) -> None:
    plan = compiled(device, **arguments)
    on_gpu = device != "cpu" and arguments.get("format", "jpeg") == "jpeg"
    assert plan.graph.nodes[-1].stage == ("gpu" if on_gpu else "cpu")
    schedule = (Request(start, 16) for start in range(0, 64, 16))
    op = EncodeImage(**arguments)
    seen = []
    with Engine(plan, Feed(), schedule, Options()) as engine:
        for iteration in engine:
            out = iteration.outputs(plan)
            pixels = out["pixels"]
            wanted = op.cpu(Context(op, "cpu", pixels.samples), pixels)
            assert [f.tobytes() for f in out["files"]] == [f.tobytes() for f in wanted]
            seen += iteration.samples.index.tolist()
    assert seen == [i for i in range(64) if i != 13]
