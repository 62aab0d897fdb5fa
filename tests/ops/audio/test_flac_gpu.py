"""The GPU's FLAC decoder against libsndfile, to the bit; what it does not take, the CPU does."""

from __future__ import annotations

import io
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from dali_run.ops.audio.decoders import Audio
from dali_run.ops.batch import Batch, Samples
from dali_run.ops.context import Context
from dali_run.ops.types import DALIDataType
from tests.kit.emulated_lane import EmulatedLane
from tests.kit.files.flac import encoded, signal

soundfile = pytest.importorskip("soundfile")

CLIPS = [(1, 1, 0.0), (1, 9000, 0.5), (2, 13001, 1.0), (2, 4096, 0.2), (3, 5000, 0.8), (8, 20, 0.5), (1, 30_000, 0.5)]
"""Channels, samples, compression level."""


@pytest.fixture(params=["emulated", pytest.param("gpu", marks=pytest.mark.gpu(emulated=False))])
def lane(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    if request.param == "emulated":
        monkeypatch.setattr("dali_run.ops.gpu.lane.pinned_empty", lambda n: np.empty(n, np.uint8))
        yield EmulatedLane()
    else:
        from dali_run.ops.gpu.lane import Lane

        with Lane() as lane:
            yield lane


def operator(dtype: str = "FLOAT", **arguments: Any) -> Audio:
    return Audio(dtype=DALIDataType[dtype], **arguments)


def on_gpu(lane: Any, files: list[Any], **arguments: Any) -> tuple[Batch, list[int], Context]:
    """The signals, on the host; the clips that are to be tried again; the context."""
    batch = Batch.from_list([np.frombuffer(f, np.uint8) for f in files], "", Samples.numbered(len(files)))
    ctx = Context(operator(**arguments), "mixed", batch.samples)
    ctx.device = lane
    signals, _rates = ctx.op.kernel("mixed")(ctx, batch)
    signals = lane.to_host(signals)
    lane.synchronize()
    return signals, sorted({int(s) for check in ctx.checks for s in check()}), ctx


def on_cpu(files: list[Any], **arguments: Any) -> tuple[Batch, Context]:
    batch = Batch.from_list([np.frombuffer(f, np.uint8) for f in files], "", Samples.numbered(len(files)))
    ctx = Context(operator(**arguments), "cpu", batch.samples)
    return ctx.op.kernel("cpu")(ctx, batch)[0], ctx


@pytest.mark.parametrize(
    ("encoding", "dtype"),
    [("PCM_S8", "FLOAT"), ("PCM_16", "FLOAT"), ("PCM_16", "INT16"), ("PCM_24", "FLOAT"), ("PCM_24", "INT32")],
)
def test_numbers_are_those_of_libsndfile(encoding: str, dtype: str, lane: Any) -> None:
    random = np.random.default_rng(3)
    files = []
    for kind in ("noise", "tones", "silence", "walk", "square", "alike"):
        files += [encoded(signal(kind, count, channels, random), encoding, level) for channels, count, level in CLIPS]
    got, again, ctx = on_gpu(lane, files, dtype=dtype)
    assert not again
    assert not ctx.rejects
    name = {"FLOAT": "float32", "INT16": "int16", "INT32": "int32"}[dtype]
    for i, file in enumerate(files):
        want, _ = soundfile.read(io.BytesIO(file), dtype=name, always_2d=True)
        np.testing.assert_array_equal(got.sample(i), want)
    if isinstance(lane, EmulatedLane):
        assert lane.launched[:3] == ["find", "decode", "join"]


def test_beside_other_formats(lane: Any) -> None:
    random = np.random.default_rng(4)
    files = []
    kinds = [("FLAC", "PCM_16"), ("WAV", "PCM_16"), ("OGG", "VORBIS"), ("FLAC", "PCM_24"), ("WAV", "PCM_24")]
    for k, (format_, encoding) in enumerate(kinds):
        out = io.BytesIO()
        soundfile.write(out, signal("walk", 5000 + k, 2, random), 16000, format=format_, subtype=encoding)
        files.append(out.getvalue())
    files.insert(2, b"no sound at all, " * 9)
    for arguments in ({}, {"downmix": True}, {"downmix": True, "dtype": "INT16"}, {"sample_rate": 8000.0}):
        got, again, ctx = on_gpu(lane, files, **arguments)
        want, other = on_cpu(files, **arguments)
        assert not again
        assert (
            [(r.slot, r.code) for r in ctx.rejects] == [(r.slot, r.code) for r in other.rejects] == [(2, "not_audio")]
        )
        for i in range(len(files)):
            bound = 2e-5 if "sample_rate" in arguments else 1e-7 if arguments.get("downmix") else 0
            if arguments.get("dtype") == "INT16":
                bound = 1
            assert got.sample(i).shape == want.sample(i).shape
            assert np.abs(got.sample(i).astype(np.float64) - want.sample(i)).max(initial=0) <= bound


def test_damage_never_passes(lane: Any) -> None:
    """Damaged files are tried again, on the CPU; samples of the others are right."""
    random = np.random.default_rng(5)
    file = np.frombuffer(encoded(signal("walk", 12000, 2, random), "PCM_16", 0.5), np.uint8)
    files = []
    for turn in range(120):
        damaged, at = file.copy(), int(random.integers(90, len(file)))
        if turn % 3 == 0:
            damaged = damaged[:at]
        elif turn % 3 == 1:
            damaged[at] ^= np.uint8(1 << int(random.integers(8)))
        else:
            damaged[at : at + 40] = random.integers(0, 256, len(damaged[at : at + 40]))
        files.append(damaged)
    got, again, _ = on_gpu(lane, [*files, file], dtype="INT16")
    want, _ = on_cpu([file], dtype="INT16")
    for i in set(range(len(files) + 1)) - set(again):
        if len(got.sample(i)):
            np.testing.assert_array_equal(got.sample(i), want.sample(0))
    assert len(files) not in again
    assert len(again) > 100


def test_every_bit_of_a_frame_counts(lane: Any) -> None:
    """Each bit of the last frame, its header included, is under a checksum."""
    file = np.frombuffer(encoded(signal("tones", 4096 + 40, 1, np.random.default_rng(0)), "PCM_16", 0.5), np.uint8)
    start = max(k for k in range(len(file) - 5) if file[k] == 0xFF and file[k + 1] == 0xF8 and file[k + 4] == 1)
    files = []
    for at in range(start, len(file)):
        for bit in range(8):
            files.append(file.copy())
            files[-1][at] ^= np.uint8(1 << bit)
    _, again, _ = on_gpu(lane, files, dtype="INT16")
    assert again == list(range(len(files)))


def test_odd_streams_are_the_cpus(lane: Any) -> None:
    """Frames whose numbers begin elsewhere, and a total that says less or more than there is."""
    file = np.frombuffer(encoded(signal("walk", 12288, 1, np.random.default_rng(1)), "PCM_16", 0.5), np.uint8)
    shorter, longer, other = file.copy(), file.copy(), file.copy()
    shorter[24:26] = 0x2F, 0x00  # 12032 samples
    longer[24:26] = 0x40, 0x00
    other[8:10] = 0x10, 0x01  # the smallest block is not the largest
    got, again, _ = on_gpu(lane, [file, shorter, longer, other], dtype="INT16")
    assert again == [1, 2]
    want, ctx = on_cpu([file, other], dtype="INT16")
    assert not ctx.rejects
    np.testing.assert_array_equal(got.sample(0), want.sample(0))
    np.testing.assert_array_equal(got.sample(3), want.sample(1))
    again_batch, _, ctx = tried_again(lane, [shorter, longer])
    assert [r.code for r in ctx.rejects] == [r.code for r in on_cpu([shorter, longer], dtype="INT16")[1].rejects]
    assert len(again_batch) == 2


def tried_again(lane: Any, files: list[Any]) -> tuple[Batch, list[int], Context]:
    batch = Batch.from_list(files, "", Samples.numbered(len(files)))
    ctx = Context(operator(dtype="INT16"), "mixed", batch.samples, attempt=1)
    ctx.device = lane
    signals, _ = ctx.op.kernel("mixed")(ctx, batch)
    lane.synchronize()
    return signals, [int(s) for check in ctx.checks for s in check()], ctx
