"""readers.nemo_asr: manifests, parts of files, and what DALI 2.4 gave for the same."""

from __future__ import annotations

import json
import wave
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from dali_run.ops.errors import JobError, SpecError
from dali_run.readers.nemo import NemoAsr
from tests.kit.readers import content, fetch, open_reader

soundfile = pytest.importorskip("soundfile")
RAMP = np.arange(40000).astype(np.int16)


@pytest.fixture
def root(tmp_path: Path) -> Path:
    with wave.open(str(tmp_path / "ramp.wav"), "wb") as out:
        out.setnchannels(1)
        out.setsampwidth(2)
        out.setframerate(16000)
        out.writeframes(RAMP.tobytes())
    soundfile.write(tmp_path / "ramp.flac", RAMP, 16000, subtype="PCM_16")
    return tmp_path


def reader(root: Path, lines: list[Any], **arguments: Any) -> NemoAsr:
    text = "\n".join(line if isinstance(line, str) else json.dumps(line) for line in lines)
    (root / "manifest.json").write_text(text, encoding="utf-8")
    return NemoAsr(manifest_filepaths=(str(root / "manifest.json"),), **arguments)


@pytest.mark.parametrize("name", ["ramp.wav", "ramp.flac"])
def test_parts_of_files_are_those_of_dali(root: Path, name: str) -> None:
    cases = [(0, 0.5, 0, 8000), (0.50003, 0.30007, 8000, 4801), (0.50004, 0.30004, 8000, 4800), (0.5, 9.0, 8000, 32000),
             (0.1, 0.00001, 1600, 0), (0.3, -1, 4800, 35200), (None, None, 0, 40000)]  # fmt: skip
    lines = [{"audio_filepath": str(root / name), "offset": o, "duration": d, "text": "é"} for o, d, _, _ in cases]
    op = reader(root, lines, read_idxs=True)
    (audio, rates, texts, numbers), rejects = fetch(op, open_reader(op), range(len(cases)))
    assert not rejects
    for i, (_, _, first, count) in enumerate(cases):
        np.testing.assert_array_equal(audio.sample(i), RAMP[first : first + count].astype(np.float32) / 32768)
    assert [float(r) for r in rates] == [16000.0] * len(cases)
    assert content(texts) == ["é".encode()] * len(cases)
    assert [(n.shape, int(n[0])) for n in numbers] == [((1,), i) for i in range(len(cases))]


def test_the_order_of_a_shuffle_is_dalis(root: Path) -> None:
    op = reader(root, [{"audio_filepath": str(root / "ramp.wav")}] * 30, random_shuffle=True, initial_fill=5)
    order = op.order(30, seed=7, batch_size=4)
    first = [
        10,
        17,
        26,
        11,
        23,
        20,
        12,
        6,
        14,
        15,
        8,
        4,
        27,
        19,
        7,
        1,
        13,
        24,
        0,
        22,
        16,
        2,
        29,
        18,
        21,
        28,
        5,
        3,
        9,
        25,
    ]
    assert order.pass_order(0).tolist() == first


def test_durations_leave_out_entries_before_they_are_numbered(root: Path) -> None:
    lines = [{"audio_filepath": str(root / "ramp.wav"), "duration": d, "text": str(d)} for d in (0.1, 0.5, 1.0, 2.0)]
    op = reader(root, lines, min_duration=0.5, max_duration=1.0, read_sample_rate=False, read_idxs=True)
    source = open_reader(op)
    assert len(source) == 2
    (_, texts, numbers), _ = fetch(op, source, [0, 1])
    assert content(texts) == [b"0.5", b"1.0"]
    assert [int(n[0]) for n in numbers] == [0, 1]
    with pytest.raises(JobError, match="none of 4 entries has a duration of 5 to 6 s"):
        open_reader(reader(root, lines, min_duration=5.0, max_duration=6.0))


def test_rates_are_those_of_the_files_and_signals_have_the_one_that_is_asked_for(root: Path) -> None:
    op = reader(root, [{"audio_filepath": str(root / "ramp.wav")}], sample_rate=8000.0)
    (audio, rates, _), rejects = fetch(op, open_reader(op), [0])
    assert not rejects
    assert audio.sample(0).shape == (20000,)
    assert float(rates.sample(0)) == 16000.0
    op = reader(root, [{"audio_filepath": str(root / "ramp.wav")}], downmix=False)
    (audio, _, _), _ = fetch(op, open_reader(op), [0])
    assert audio.sample(0).shape == (40000, 1)


def test_bad_files_cost_their_entries_alone(root: Path) -> None:
    (root / "text.wav").write_bytes(b"this is no sound at all" * 9)
    flac = (root / "ramp.flac").read_bytes()
    (root / "half.flac").write_bytes(flac[: len(flac) // 2])
    names = ["ramp.wav", "text.wav", "half.flac", "gone.wav", "ramp.flac"]
    lines: list[Any] = [{"audio_filepath": str(root / n)} for n in names]
    lines.append({"audio_filepath": str(root / "ramp.wav"), "offset": 2.6})
    op = reader(root, lines)
    (audio, _, _), rejects = fetch(op, open_reader(op), range(6))
    codes = [(r.slot, r.code) for r in rejects]
    assert sorted(codes) == [
        (1, "not_audio"), (2, "corrupt_data" if (2, "corrupt_data") in codes else "truncated"), (3, "read_failed"),
        (5, "out_of_bounds"),
    ]  # fmt: skip
    for i in (0, 4):
        np.testing.assert_array_equal(audio.sample(i), RAMP.astype(np.float32) / 32768)


def test_relative_names_start_from_the_manifests_folder_where_they_are_not_here(root: Path) -> None:
    op = reader(root, [{"audio_filepath": "ramp.wav"}])
    (audio, _, _), rejects = fetch(op, open_reader(op), [0])
    assert not rejects
    assert audio.sample(0).shape == (40000,)


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("{", "manifest.json:2: is not JSON"),
        ("[1]", "needs a JSON object"),
        ('{"text": "a"}', "needs audio_filepath"),
        ('{"audio_filepath": "a", "duration": "long"}', "duration must be a number of seconds"),
        ('{"audio_filepath": "a", "text": 5}', "text must be a text"),
    ],
)
def test_what_is_wrong_with_a_manifest(root: Path, line: str, message: str) -> None:
    with pytest.raises(JobError, match=message):
        open_reader(reader(root, [{"audio_filepath": "ramp.wav"}, line]))


def test_a_list_without_manifests_is_refused() -> None:
    with pytest.raises(SpecError, match="empty list"):
        NemoAsr(manifest_filepaths=()).check()
