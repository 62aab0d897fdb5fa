"""Files that libsndfile refuses, through FFmpeg."""

from __future__ import annotations

import io
from typing import Any

import numpy as np
import pytest

from dali_run.ops.audio import by_ffmpeg, libsndfile
from dali_run.ops.audio.decoders import Audio
from dali_run.ops.batch import Batch, Samples
from dali_run.ops.context import Context
from dali_run.ops.errors import SampleError
from dali_run.ops.types import DALIDataType

av = pytest.importorskip("av")
pytest.importorskip("soundfile")


def flac_in_ogg(values: np.ndarray) -> bytes:
    """A file of int16 [frames, 2]."""
    out = io.BytesIO()
    with av.open(out, "w", format="ogg") as container:
        stream = container.add_stream("flac", rate=16000, layout="stereo")
        for at in range(0, len(values), 1152):
            part = np.ascontiguousarray(values[at : at + 1152]).reshape(1, -1)
            frame = av.AudioFrame.from_ndarray(part, format="s16", layout="stereo")
            frame.sample_rate, frame.pts = 16000, at
            container.mux(stream.encode(frame))
        container.mux(stream.encode(None))
    return out.getvalue()


@pytest.fixture(scope="module")
def values() -> np.ndarray:
    random = np.random.default_rng(8)
    return np.cumsum(random.integers(-40, 41, (9000, 2)), axis=0).astype(np.int16)


@pytest.fixture
def refusing(monkeypatch: pytest.MonkeyPatch) -> None:
    """libsndfile takes nothing: which files it refuses differs between its versions."""

    def refused(_data: Any) -> Any:
        raise SampleError("corrupt_data", "no decoder supports it: unimplemented")

    monkeypatch.setattr(libsndfile, "open_memory", refused)


def decoded(file: bytes, **arguments: Any) -> tuple[np.ndarray, list[str]]:
    batch = Batch.from_list([np.frombuffer(file, np.uint8)], "", Samples.numbered(1))
    op = Audio(**arguments)
    ctx = Context(op, "cpu", batch.samples)
    audio, _ = op.cpu(ctx, batch)
    return audio.sample(0), [r.code for r in ctx.rejects]


@pytest.mark.usefixtures("refusing")
def test_integers_come_out_as_they_went_in(values: np.ndarray) -> None:
    file = flac_in_ogg(values)
    for dtype, want in (
        (DALIDataType.INT16, values),
        (DALIDataType.INT32, values.astype(np.int32) << 16),
        (DALIDataType.FLOAT, values.astype(np.float32) / 32768),
    ):
        got, rejects = decoded(file, dtype=dtype)
        assert not rejects
        np.testing.assert_array_equal(got, want)


@pytest.mark.usefixtures("refusing")
def test_what_is_wrong_stays_a_reject(values: np.ndarray, monkeypatch: pytest.MonkeyPatch) -> None:
    file = flac_in_ogg(values)
    assert decoded(file, max_samples=17_999)[1] == ["too_large"]
    damaged = bytearray(file)
    damaged[len(file) // 2] ^= 0x10
    assert decoded(bytes(damaged))[1] == ["corrupt_data"]
    for text in (b"no sound at all, only words " * 40, b"\x89PNG\r\n\x1a\n" + bytes(100), b"OggS"):
        assert decoded(text)[1] == ["corrupt_data"]
    monkeypatch.setitem(__import__("sys").modules, "av", None)  # not installed
    assert decoded(file)[1] == ["corrupt_data"]


def test_a_part_of_a_file(values: np.ndarray) -> None:
    found = by_ffmpeg.open_memory(np.frombuffer(flac_in_ogg(values), np.uint8), 1 << 20)
    assert found is not None
    found.cut(5000, 300)
    out = np.empty(600, np.int16)
    found.read_into(out)
    np.testing.assert_array_equal(out.reshape(-1, 2), values[5000:5300])
