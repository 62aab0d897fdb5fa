"""encoders.audio, read back by soundfile and by the standard library, and by the decoder."""

from __future__ import annotations

import io
import wave
from typing import Any

import numpy as np
import pytest

from dali_run.ops.audio.decoders import Audio
from dali_run.ops.audio.encoders import EncodeAudio
from dali_run.ops.batch import Batch, Samples
from dali_run.ops.context import Context
from dali_run.ops.errors import SpecError

soundfile = pytest.importorskip("soundfile")
RANDOM = np.random.default_rng(3)


def encode(signals: list[np.ndarray], **arguments: Any) -> tuple[Batch, list[Any]]:
    op = EncodeAudio(**arguments)
    op.check()
    batch = Batch.from_list(signals, "", Samples.numbered(len(signals)))
    ctx = Context(op, "cpu", batch.samples)
    return op.cpu(ctx, batch), ctx.rejects


@pytest.mark.parametrize("format_", ["flac", "wav"])
@pytest.mark.parametrize("shape", [(1001,), (500, 2), (333, 3)])
def test_sixteen_bits_come_back_unchanged(format_: Any, shape: tuple[int, ...]) -> None:
    signal = RANDOM.integers(-32768, 32768, shape).astype(np.int16)
    out, rejects = encode([signal, signal[:7]], format=format_, sample_rate=22050.0)
    assert not rejects
    for encoded, want in zip(out, (signal, signal[:7]), strict=True):
        got, rate = soundfile.read(io.BytesIO(encoded.tobytes()), dtype="int16")
        assert rate == 22050
        np.testing.assert_array_equal(got, want)
    op = Audio(downmix=len(shape) == 1)
    floats, _ = op.cpu(Context(op, "cpu", out.samples), out)
    again, _ = encode(list(floats), format=format_, sample_rate=22050.0)
    assert [a.tobytes() for a in again] == [a.tobytes() for a in out]


@pytest.mark.parametrize(("format_", "bits", "bound"), [("flac", 24, 2**-23), ("wav", 24, 2**-23), ("wav", 32, 0.0)])
def test_more_bits(format_: Any, bits: Any, bound: float) -> None:
    signal = (RANDOM.random(401) * 2 - 1).astype(np.float32)
    out, rejects = encode([signal], format=format_, sample_rate=8000.0, bits=bits)
    assert not rejects
    got, _ = soundfile.read(io.BytesIO(out.sample(0).tobytes()), dtype="float32")
    assert np.abs(got - signal).max() <= bound


def test_loud_signals_are_held_and_pythons_own_module_reads_them() -> None:
    out, _ = encode([np.array([0, 0.5, 1, 2, -1, -3, np.nan], np.float32)], format="wav", sample_rate=8000.0)
    with wave.open(io.BytesIO(out.sample(0).tobytes())) as file:
        assert (file.getnchannels(), file.getsampwidth(), file.getframerate()) == (1, 2, 8000)
        assert np.frombuffer(file.readframes(9), np.int16).tolist() == [0, 16384, 32767, 32767, -32768, -32768, 0]


def test_what_a_format_cannot_hold_is_rejected_alone() -> None:
    signals = [np.ones((4, 9), np.float32), np.ones((4, 2), np.float32), np.ones((0, 2), np.float32)]
    out, rejects = encode(signals, format="flac", sample_rate=8000.0)
    assert [(r.slot, r.code) for r in rejects] == [(0, "encode_failed"), (2, "encode_failed")]
    assert out.sample(1)[:4].tobytes() == b"fLaC"
    _, rejects = encode([np.ones(4, np.float32)], format="flac", sample_rate=8000.5)
    assert "whole rates" in rejects[0].message


def test_floats_are_for_wav() -> None:
    with pytest.raises(SpecError, match="flac takes 16 or 24 bits"):
        EncodeAudio(format="flac", sample_rate=8000.0, bits=32).check()
