"""Whole jobs on videos, on the CPU and through the GPU's engine."""

from __future__ import annotations

import json
from contextlib import nullcontext
from pathlib import Path

import numpy as np
import pytest
import tfrecord

from dali_run.pipelines.job.run import REJECTS, run_job
from tests.kit.fake_cupy import faked
from tests.kit.files.videos import make_video

pytest.importorskip("av")
from tests.kit.fake_nvdec import faked_nvdec


def test_files_become_cropped_sequences_and_bad_ones_rejects(tmp_path: Path) -> None:
    folder = tmp_path / "in" / "0"
    folder.mkdir(parents=True)
    frames = [make_video(folder / f"{k}.mp4", 12 + k, size=(48, 64 + 16 * k)) for k in range(3)]
    whole = (folder / "0.mp4").read_bytes()
    (folder / "half.mp4").write_bytes(whole[: len(whole) // 2])
    found = {}
    for device in ("cpu", "gpu", "nvdec"):
        out = tmp_path / device
        spec = tmp_path / "spec.yaml"
        spec.write_text(f"""version: 1
name: videos
pipeline: {{batch_size: 3}}
graph:
  - {{op: readers.file, file_root: {tmp_path / "in"}, file_filters: ['*.mp4'], out: [files, labels]}}
  - {{op: decoders.video, in: files, start_frame: 1, sequence_length: 5, stride: 2, out: frames}}
  - {{op: crop, in: frames, crop: [40, 50], out: frames}}
outputs: {{frames: frames}}
write: {{writer: tfrecord, path: {out}, fields: {{frames: {{encode: raw}}}}}}
on_error: {{policy: skip, max_errors: 50%}}
""")
        if device == "cpu":
            done = run_job(spec, {}, device="cpu")
        else:
            with faked(1, memory=True), faked_nvdec() if device == "nvdec" else nullcontext():
                done = run_job(spec, {}, device="gpu")
        assert done.exit_code == REJECTS, done.message
        records = [r for shard in sorted(out.glob("*.tfrecord")) for r in tfrecord.tfrecord_loader(str(shard), None)]
        found[device] = [np.frombuffer(r["frames"], np.uint8).reshape(r["frames/shape"]) for r in records]
    assert len(found["cpu"]) == len(found["gpu"]) == len(found["nvdec"]) == 3
    assert json.loads((tmp_path / "nvdec" / "report.json").read_text())["decoders"] == {"NVDEC": 3}
    for a, b in zip(found["cpu"], found["nvdec"], strict=True):
        assert a.shape == b.shape
        assert np.abs(a.astype(int) - b.astype(int)).max() <= 12
    for k, (a, b) in enumerate(zip(found["cpu"], found["gpu"], strict=True)):
        np.testing.assert_array_equal(a, b)
        left = (frames[k][0].shape[1] - 50) // 2
        np.testing.assert_array_equal(a, np.array(frames[k][1:11:2])[:, 4:44, left : left + 50])


@pytest.mark.parametrize("op", ["readers.video", "experimental.readers.video", "readers.video_resize"])
def test_readers_decode_by_nvdec(op: str, tmp_path: Path) -> None:
    """The same sequences with and without NVDEC: files that it refuses and damaged ones included."""
    folder = tmp_path / "in" / "0"
    folder.mkdir(parents=True)
    for k, codec in enumerate(("libx264", "libx265", "libx264", "mpeg4")):
        make_video(folder / f"{k}.mp4", 10 + k, codec=codec, size=(48, 64 + 16 * (k % 2)))
    whole = (folder / "0.mp4").read_bytes()
    (folder / "half.mp4").write_bytes(whole[: len(whole) // 2])
    extra = "pad_mode: edge" if op.startswith("exp") else "pad_sequences: true"
    extra += ", size: [24, 32]" if op.endswith("resize") else ""
    found = {}
    for device in ("cpu", "nvdec"):
        out = tmp_path / device
        spec = tmp_path / "spec.yaml"
        spec.write_text(f"""version: 1
name: videos
pipeline: {{batch_size: 5}}
graph:
  - {{op: {op}, file_root: {tmp_path / "in"}, sequence_length: 4, {extra}, enable_frame_num: sequence,
     out: [frames, label, numbers]}}
outputs: {{frames: frames, label: label, numbers: numbers}}
write: {{writer: tfrecord, path: {out}, fields: {{frames: {{encode: raw}}, label: {{}}, numbers: {{encode: raw}}}}}}
on_error: {{policy: skip, max_errors: 50%}}
""")
        with faked(1, memory=True) if device == "nvdec" else nullcontext(), \
                faked_nvdec() if device == "nvdec" else nullcontext():  # fmt: skip
            done = run_job(spec, {}, device="cpu" if device == "cpu" else "gpu")
        assert done.exit_code == REJECTS, done.message
        records = [r for shard in sorted(out.glob("*.tfrecord")) for r in tfrecord.tfrecord_loader(str(shard), None)]
        found[device] = records
    report = json.loads((tmp_path / "nvdec" / "report.json").read_text())
    assert set(report["decoders"]) == {"NVDEC", "CPU threads"}
    assert report["decoders"]["CPU threads"] == 4  # of MPEG-4
    assert len(found["cpu"]) == len(found["nvdec"]) > 8
    for a, b in zip(found["cpu"], found["nvdec"], strict=True):
        for name in ("label", "numbers", "numbers/shape", "frames/shape"):
            np.testing.assert_array_equal(a[name], b[name])
        pixels = (np.frombuffer(r["frames"], np.uint8).astype(int) for r in (a, b))
        assert np.abs(next(pixels) - next(pixels)).max() <= 12
