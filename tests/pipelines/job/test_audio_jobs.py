"""Whole jobs on sounds: good and bad files, every container, on the CPU and through the GPU's engine."""

from __future__ import annotations

import io
import json
import tarfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from dali_run.pipelines.job.run import REJECTS, run_job
from dali_run.pipelines.tools.sample_sounds import SOUNDS, sound
from tests.kit.fake_cupy import faked

soundfile = pytest.importorskip("soundfile")
KINDS = {"wav": "PCM_16", "flac": "PCM_16", "ogg": "VORBIS", "mp3": "MPEG_LAYER_III", "aiff": "PCM_24", "w64": "FLOAT"}


@pytest.fixture(scope="module")
def sounds(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two folders of good files of all kinds, with bad ones among them."""
    root = tmp_path_factory.mktemp("sounds") / "in"
    for number in range(12):
        kind, rate = list(KINDS)[number % len(KINDS)], (16000, 44100)[number % 2]
        signal = sound(SOUNDS[number % 4], rate, np.random.default_rng(number))[: rate // 2]
        stereo = np.repeat(signal[:, None], 1 + number % 3 // 2, axis=1)
        path = root / str(number % 2) / f"{number:02d}.{kind}"
        path.parent.mkdir(parents=True, exist_ok=True)
        soundfile.write(path, stereo, rate, subtype=KINDS[kind])
    flac = (root / "1" / "01.flac").read_bytes()
    (root / "0" / "half.flac").write_bytes(flac[: len(flac) // 2])
    damaged = bytearray(flac)
    damaged[len(flac) * 2 // 3] ^= 0x55
    (root / "0" / "damaged.flac").write_bytes(damaged)
    (root / "1" / "empty.wav").write_bytes(b"")
    (root / "1" / "text.mp3").write_bytes(b"no sound at all, only words " * 40)
    (root / "1" / "picture.wav").write_bytes(b"\x89PNG\r\n\x1a\n" + bytes(100))
    return root


BAD = {"0/half.flac", "0/damaged.flac", "1/empty.wav", "1/text.mp3", "1/picture.wav"}
FEATURES = """
  - {op: decoders.audio, in: files, downmix: true, sample_rate: 16000, out: [audio, rates]}
  - {op: preemphasis_filter, in: audio, out: filtered}
  - {op: spectrogram, in: filtered, nfft: 512, window_length: 400, window_step: 160, out: spectrum}
  - {op: mel_filter_bank, in: spectrum, sample_rate: 16000, nfilter: 20, out: mel}
  - {op: to_decibels, in: mel, out: decibels}
  - {op: mfcc, in: decibels, n_mfcc: 5, out: features}
  - {op: normalize, in: features, axes: [1], epsilon: 1.0e-6, out: features}
outputs: {npy: features, rate: rates}
"""
READ = "  - {op: readers.file, file_root: IN, file_filters: ['*'], out: [files, labels]}"


def write(folder: Path, graph: str, into: str, name: str = "spec.yaml") -> Path:
    spec = folder / name
    spec.write_text(f"version: 1\nname: sounds\npipeline: {{batch_size: 5}}\ngraph:\n{graph}\n"
                    f"write: {into}\non_error: {{policy: skip, max_errors: 50%}}\n")  # fmt: skip
    return spec


def arrays(out: Path) -> dict[str, np.ndarray]:
    """The features by the key of their sample."""
    found = {}
    for shard in sorted(out.glob("*.tar")):
        with tarfile.open(shard) as tar:
            for member in tar:
                if member.name.endswith(".npy"):
                    content = tar.extractfile(member)
                    assert content is not None
                    found[f"{shard.name}/{member.name}"] = np.load(io.BytesIO(content.read()))
    return found


def rejected(out: Path) -> set[str]:
    return {json.loads(line)["key"] for line in (out / "rejects.jsonl").read_text().splitlines()}


@pytest.mark.parametrize("real", [False, pytest.param(True, marks=pytest.mark.gpu)])
def test_bad_files_cost_themselves_on_the_cpu_and_on_a_gpu(sounds: Path, tmp_path: Path, real: bool) -> None:
    graph = READ.replace("IN", str(sounds)) + FEATURES.rstrip()
    results: dict[str, Any] = {}
    for device in ("cpu", "gpu"):
        out = tmp_path / device
        spec = write(tmp_path, graph, f"{{writer: webdataset, path: {out}, fields: {{npy: {{encode: npy}}}}}}")
        if device == "cpu" or real:
            done = run_job(spec, {}, device=device)
        else:
            with faked(1, memory=True):
                done = run_job(spec, {}, device="gpu")
        assert done.exit_code == REJECTS, done.message
        assert rejected(out) == BAD
        results[device] = arrays(out)
    assert len(results["cpu"]) == 12
    assert results["cpu"].keys() == results["gpu"].keys()
    for key, want in results["cpu"].items():
        np.testing.assert_allclose(results["gpu"][key], want, atol=2e-3)


CONTAINERS = {
    "webdataset": "{op: readers.webdataset, paths: ['OUT/*.tar'], ext: ['wav;flac;ogg;bin'], out: [files]}",
    "tfrecord": "{op: readers.tfrecord, path: ['OUT/*.tfrecord'], features: {x: bytes}, out: [files]}",
}


@pytest.mark.parametrize("writer", CONTAINERS)
def test_records_of_containers_decode_as_files_do(sounds: Path, tmp_path: Path, writer: str) -> None:
    packed, found = tmp_path / "packed", {}
    graph = READ.replace("IN", str(sounds)) + "\noutputs: {x: files}"
    done = run_job(write(tmp_path, graph, f"{{writer: {writer}, path: {packed}, fields: {{x: {{encode: keep}}}}}}"), {},
                   device="cpu")  # fmt: skip
    assert done.exit_code == 0, done.message
    for name, reader in (("files", READ), ("records", "  - " + CONTAINERS[writer].replace("OUT", str(packed)))):
        out = tmp_path / name
        text = reader.replace("IN", str(sounds)) + FEATURES.rstrip()
        spec = write(tmp_path, text, f"{{writer: webdataset, path: {out}, fields: {{npy: {{encode: npy}}}}}}")
        done = run_job(spec, {}, device="cpu")
        assert done.exit_code == REJECTS, done.message
        found[name] = list(arrays(out).values())
    assert len(found["files"]) == len(found["records"]) == 12
    for a, b in zip(found["files"], found["records"], strict=True):
        np.testing.assert_array_equal(a, b)


def test_fields_are_written_as_flac_with_the_rates_of_the_clips(sounds: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    graph = (
        READ.replace("IN", str(sounds))
        + """
  - {op: decoders.audio, in: files, out: [audio, rates]}
outputs: {flac: audio}"""
    )
    into = f"{{writer: webdataset, path: {out}, fields: {{flac: {{encode: flac, sample_rate: 16000}}}}}}"
    done = run_job(write(tmp_path, graph, into), {}, device="cpu")
    assert done.exit_code == REJECTS, done.message
    import io
    import tarfile

    with tarfile.open(next(iter(out.glob("*.tar")))) as tar:
        files = {m.name: tar.extractfile(m) for m in tar.getmembers()}
        names = [n for n in files if n.endswith(".flac")]
        assert len(names) == 12
        decoded = {
            n: soundfile.read(io.BytesIO(f.read()), dtype="int16")[0] for n, f in files.items() if f and n in names
        }
    original, _ = soundfile.read(sounds / "0" / "00.wav", dtype="int16")
    (mine,) = [d for n, d in decoded.items() if n.endswith("00.flac")]
    np.testing.assert_array_equal(mine, original)
