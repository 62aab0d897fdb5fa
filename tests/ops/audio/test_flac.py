"""The FLAC decoder against libsndfile, to the bit; damage never passes."""

from __future__ import annotations

import io
from typing import Any

import numpy as np
import pytest

from dali_run.ops.audio import flac
from dali_run.ops.errors import SampleError
from tests.kit.files.flac import encoded, signal

soundfile = pytest.importorskip("soundfile")


@pytest.fixture
def left_over(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Grows by one for every file that is left to libsndfile."""
    seen: list[int] = []
    by_libsndfile = flac._files.open_memory

    def counted(data: Any) -> Any:
        seen.append(len(data))
        return by_libsndfile(data)

    monkeypatch.setattr(flac._files, "open_memory", counted, raising=False)
    return seen


@pytest.mark.parametrize("encoding", ["PCM_S8", "PCM_16", "PCM_24"])
@pytest.mark.parametrize("kind", ["noise", "tones", "silence", "walk", "square", "alike"])
def test_numbers_are_those_of_libsndfile(kind: str, encoding: str, left_over: list[int]) -> None:
    random = np.random.default_rng(len(kind))
    for channels, count, level in (
        (1, 1, 0.0),
        (1, 9000, 0.5),
        (2, 30001, 1.0),
        (2, 4096, 0.2),
        (3, 5000, 0.8),
        (8, 20, 0.5),
    ):
        file = encoded(signal(kind, count, channels, random), encoding, level)
        found = flac.open_memory(np.frombuffer(file, np.uint8))
        assert found is not None
        assert (found.frames, found.channels, found.rate) == (count, channels, 16000)
        for dtype in ("int16", "int32", "float32"):
            out = np.empty(count * channels, dtype)
            found.read_into(out)
            want, _ = soundfile.read(io.BytesIO(file), dtype=dtype, always_2d=True)
            np.testing.assert_array_equal(out.reshape(-1, channels), want)
    assert not left_over


def test_a_part_of_a_file() -> None:
    data = signal("tones", 20000, 2, np.random.default_rng(0))
    file = encoded(data, "PCM_16", 0.5)
    found = flac.open_memory(np.frombuffer(file, np.uint8))
    assert found is not None
    found.cut(7001, 500)
    out = np.empty(1000, np.int16)
    found.read_into(out)
    want, _ = soundfile.read(io.BytesIO(file), dtype="int16")
    np.testing.assert_array_equal(out.reshape(-1, 2), want[7001:7501])


def test_damage_never_passes(left_over: list[int]) -> None:
    random = np.random.default_rng(5)
    file = np.frombuffer(encoded(signal("walk", 12000, 2, random), "PCM_16", 0.5), np.uint8)
    good = np.empty(24000, np.int16)
    found = flac.open_memory(file)
    assert found is not None
    found.read_into(good)
    refused = 0
    for turn in range(200):
        damaged, at = file.copy(), int(random.integers(100, len(file)))
        if turn % 3:
            damaged[at] ^= np.uint8(1 << int(random.integers(8)))
        else:
            damaged = damaged[:at]
        found = flac.open_memory(damaged)
        if found is None:
            continue
        out = np.empty(24000, np.int16)
        try:
            found.read_into(out)
        except SampleError as e:
            refused += e.code in ("corrupt_data", "truncated")
        else:
            np.testing.assert_array_equal(out, good)  # it was only padding
    assert refused > 150
    assert left_over


@pytest.mark.parametrize("count", [1, 70_000])
def test_files_that_do_not_say_how_long_they_are(count: int) -> None:
    """As a program writes them that cannot go back to the header: a stream's total is 0, which means unknown."""
    from dali_run.ops.audio.decoders import Audio
    from dali_run.ops.batch import Batch, Samples
    from dali_run.ops.context import Context

    data = signal("noise", count, 2, np.random.default_rng(5))
    file = np.frombuffer(encoded(data, "PCM_16", 0.5), np.uint8).copy()
    whole, _ = soundfile.read(io.BytesIO(file.tobytes()), dtype="float32", always_2d=True)
    file[21] &= 0xF0  # the 36 bits of the total
    file[22:26] = 0
    batch = Batch.from_list([file], "", Samples.numbered(1))
    for limit, wanted in ((1 << 20, True), (count, False)):
        op = Audio(max_samples=limit)
        ctx = Context(op, "cpu", batch.samples)
        audio, _rate = op.cpu(ctx, batch)
        assert [r.code for r in ctx.rejects] == ([] if wanted else ["too_large"])
        if wanted:
            np.testing.assert_array_equal(audio.sample(0), whole)
