"""decoders.inflate against Arrow's LZ4, on damaged blocks, and CUDA against the CPU."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from dali_run.ops.base import Spec
from dali_run.ops.batch import Batch, Samples
from dali_run.ops.codecs.inflate import Inflate
from dali_run.ops.context import Context
from dali_run.ops.errors import SpecError
from dali_run.ops.gpu.lane import Lane
from dali_run.ops.types import DALIDataType
from tests.kit.emulated_lane import EmulatedLane
from tests.kit.fake_cupy import faked

pa = pytest.importorskip("pyarrow")


def deflate(array: np.ndarray) -> np.ndarray:
    return np.frombuffer(pa.compress(array.tobytes(), codec="lz4_raw", asbytes=True), np.uint8)


def contents() -> list[np.ndarray]:
    """Noise, runs, short periods, long literals and matches."""
    random = np.random.default_rng(1)
    out = [random.integers(0, 256, 6000), np.zeros(6000), np.arange(6000) % 3, random.integers(0, 2, 6000)]
    out += [np.tile(random.integers(0, 256, p), 6000 // p + 1)[:6000] for p in (1, 2, 7, 31, 33, 300, 2000)]
    return [a.astype(np.uint8).reshape(20, 100, 3) for a in out]


def run(
    packed: list[np.ndarray], stage: str = "cpu", args: Any = None, attempt: int = 0, **how: Any
) -> tuple[Batch, Context]:
    op = Inflate(per_sample=frozenset(args or ()), num_inputs=1, **how)
    op.check()
    samples = Samples.numbered(len(packed))
    ctx = Context(op, stage, samples, args={k: Batch.from_list(v, "", samples) for k, v in (args or {}).items()},
                  attempt=attempt, device=EmulatedLane() if stage == "gpu" else None)  # type: ignore[arg-type]  # fmt: skip
    return op.kernel(stage)(ctx, Batch.from_list(packed, "", samples)), ctx  # type: ignore[arg-type]


@pytest.mark.parametrize("stage", ["cpu", "gpu"])
def test_blocks_of_arrow(stage: str) -> None:
    out, ctx = run([deflate(a) for a in contents()], stage, shape=(20, 100, 3), layout="HWC")
    assert out.layout == "HWC"
    assert not ctx.rejects
    assert all(len(check()) == 0 for check in ctx.checks)
    for got, wanted in zip(out, contents(), strict=True):
        np.testing.assert_array_equal(got, wanted)


@pytest.mark.parametrize("stage", ["cpu", "gpu"])
@pytest.mark.parametrize("how", ["sizes", "offsets", "both"])
def test_chunks(stage: str, how: str) -> None:
    """Frames of float32, another number in each sample."""
    random = np.random.default_rng(2)
    clips = [random.integers(0, 9, (n, 5, 6)).astype(np.float32) for n in (3, 1, 4)]
    frames = [[deflate(f) for f in clip] for clip in clips]
    sizes = [np.array([len(f) for f in clip], np.int32) for clip in frames]
    args = {"chunk_sizes": sizes, "chunk_offsets": [np.cumsum(s, dtype=np.int32) - s for s in sizes]}
    if how != "both":
        args = {f"chunk_{how}": args[f"chunk_{how}"]}
    out, ctx = run(
        [np.concatenate(clip) for clip in frames], stage, args, shape=(5, 6), dtype=DALIDataType.FLOAT, layout="HW"
    )
    assert not ctx.rejects
    assert out.layout == "FHW"
    for got, wanted in zip(out, clips, strict=True):
        np.testing.assert_array_equal(got, wanted)


def test_shapes_of_samples() -> None:
    arrays = [np.arange(n, dtype=np.int16).reshape(-1, 2) for n in (10, 4, 0)]
    shapes = {"shape": [np.array(a.shape, np.int32) for a in arrays]}
    out, ctx = run([deflate(a) for a in arrays], args=shapes, dtype=DALIDataType.INT16)
    assert not ctx.rejects
    for got, wanted in zip(out, arrays, strict=True):
        np.testing.assert_array_equal(got, wanted)


@pytest.mark.parametrize("stage", ["cpu", "gpu"])
def test_damaged_blocks_are_rejected_alone(stage: str) -> None:
    """Every prefix, and every byte changed: either what it should hold, or a reject, and nothing written elsewhere."""
    random = np.random.default_rng(3)
    wanted = np.tile(random.integers(0, 256, 40), 10).astype(np.uint8)
    block = deflate(wanted)
    bad = [block[:k] for k in range(1, len(block))] + [block[:0], np.append(block, 0).astype(np.uint8)]
    for k in range(len(block)):
        changed = block.copy()
        changed[k] ^= 1 << random.integers(0, 8)
        bad.append(changed)
    packed = [part for one in bad for part in (one, block)]
    out, ctx = run(packed, stage, shape=(400,))
    if stage == "gpu":
        wrong = {int(i) for check in ctx.checks for i in check()}
    else:
        wrong = {r.slot for r in ctx.rejects}
        assert {r.code for r in ctx.rejects} == {"corrupt_data"}
    assert wrong >= set(range(0, 2 * (len(block) - 1), 2))
    assert not {i for i in wrong if i % 2}
    for i in range(1, len(packed), 2):
        np.testing.assert_array_equal(out.sample(i), wanted)


def test_what_the_gpu_refuses_is_told_by_the_host() -> None:
    block = deflate(np.arange(50, dtype=np.uint8))
    out, ctx = run([block[:-1], block], "gpu", attempt=1, shape=(50,))
    assert [(r.slot, r.code) for r in ctx.rejects] == [(0, "corrupt_data")]
    np.testing.assert_array_equal(out.sample(1), np.arange(50))


def test_a_retry_leaves_alone_what_others_of_its_batch_have_in_page_locked_memory() -> None:
    """An encoder that was launched before finds the sizes of its files there, once the device is done."""
    block = deflate(np.arange(50, dtype=np.uint8))
    op, samples = Inflate(num_inputs=1, shape=(50,)), Samples.numbered(2)
    with faked(memory=True), Lane() as lane:
        before = lane.pinned(64)
        before[:] = 7
        packed = lane.to_device(Batch.from_list([block[:-1], block], "", samples))
        ctx = Context(op, "gpu", samples, attempt=1, device=lane)
        op.kernel("gpu")(ctx, packed)
        lane.pinned(64)[:] = 9
        assert [r.slot for r in ctx.rejects] == [0]
        assert (before == 7).all()


@pytest.mark.parametrize("stage", ["cpu", "gpu"])
def test_chunks_outside_of_the_sample(stage: str) -> None:
    block = deflate(np.zeros(64, np.uint8))
    size = len(block)
    args = {"chunk_sizes": [np.array(c, np.int32) for c in ([size], [size + 1], [-1])]}
    _, ctx = run([block] * 3, stage, args, shape=(64,))
    wrong = {r.slot for r in ctx.rejects} | {int(i) for check in ctx.checks for i in check()}
    assert wrong == {1, 2}


HUGE = 2**63 - 1


@pytest.mark.parametrize("stage", ["cpu", "gpu"])
def test_sums_and_products_that_wrap_reach_nothing_outside(stage: str) -> None:
    """Offsets and sizes come with the data: one pair of them ended the process."""
    block = deflate(np.zeros(64, np.uint8))
    size = len(block)
    offsets = [[0], [HUGE], [size], [1], [HUGE - 1], [-HUGE]]
    sizes = [[size], [HUGE], [HUGE], [HUGE], [2], [HUGE]]
    args = {
        "chunk_offsets": [np.array(c, np.int64) for c in offsets],
        "chunk_sizes": [np.array(c, np.int64) for c in sizes],
    }
    _, ctx = run([block] * len(sizes), stage, args, shape=(64,))
    wrong = {r.slot for r in ctx.rejects} | {int(i) for check in ctx.checks for i in check()}
    assert wrong == {1, 2, 3, 4, 5}


@pytest.mark.parametrize("stage", ["cpu", "gpu"])
def test_blocks_whose_sizes_multiply_to_nothing(stage: str) -> None:
    """2^16 blocks of 2^48 bytes are 2^64, which is 0 in 64 bits, as are the bytes that the sample got."""
    block, many = deflate(np.ones(64, np.uint8)), 1 << 16
    args = {"chunk_offsets": [np.zeros(many, np.int64)], "chunk_sizes": [np.full(many, len(block))]}
    out, ctx = run([block], stage, args, shape=(1 << 24, 1 << 24))
    assert {r.code for r in ctx.rejects} >= {"too_large"}
    assert out.sizes.tolist() == [0]


def test_what_cannot_work_is_refused_before_it_runs() -> None:
    with pytest.raises(SpecError, match="bytes"):
        Inflate(shape=(3,)).infer(Spec((None,), DALIDataType.FLOAT))
    with pytest.raises(SpecError, match="layout"):
        Inflate(shape=(3,), layout="HWC").check()
    with pytest.raises(SpecError, match="one letter"):
        Inflate(shape=(3,), sequence_axis_name="FF").check()


@pytest.mark.gpu
def test_gpu() -> None:
    from dali_run.ops.gpu.lane import Lane

    packed = [deflate(a) for a in contents()]
    op, samples = Inflate(shape=(20, 100, 3)), Samples.numbered(len(packed))
    with Lane() as lane:
        ctx = Context(op, "gpu", samples, device=lane)
        out = lane.to_host(op.gpu(ctx, lane.to_device(Batch.from_list(packed, "", samples))))
        lane.synchronize()
        assert all(len(check()) == 0 for check in ctx.checks)
    for got, wanted in zip(out, contents(), strict=True):
        np.testing.assert_array_equal(got, wanted)
