"""Jobs free what they held when they end; nothing waits for the collector."""

from __future__ import annotations

from pathlib import Path

import pytest
from PIL import Image

from dali_run.pipelines.job.run import REJECTS, run_job
from tests.kit.engine.rings import left_in_rings

SPEC = """\
version: 1
name: rings
pipeline: {{batch_size: 4, num_threads: 2, device: cpu, seed: 1}}
graph:
  - {{op: readers.file, file_root: "{data}", file_filters: ["*"], random_shuffle: true, out: [encoded, label]}}
  - {{op: decoders.image_random_crop, in: encoded, out: images}}
  - {{op: random.coin_flip, out: mirror}}
  - if: $mirror
    then:
      - {{op: flip, in: images, out: images}}
  - {{op: resize, in: images, size: [16, 16], out: images}}
outputs: {{image: images, label: label}}
write: {{writer: {writer}, path: "{out}", fields: {{image: {{encode: png}}, label: {{}}}}}}
"""


@pytest.fixture
def pictures(tmp_path: Path) -> Path:
    folder = tmp_path / "data" / "class"
    folder.mkdir(parents=True)
    for i, kind in enumerate(["jpeg", "png", "tiff", "webp", "gif", "bmp"] * 2):
        Image.effect_noise((20 + i, 30), 50).convert("RGB").save(folder / f"{i:02d}.{kind}", kind)
    damaged = (folder / "00.jpeg").read_bytes()
    (folder / "bad.jpeg").write_bytes(damaged[: len(damaged) // 2])
    return folder.parent


@pytest.mark.parametrize("writer", ["tfrecord", "files", "webdataset"])
def test_a_job(pictures: Path, tmp_path: Path, writer: str) -> None:
    """On a GPU: test_gpu_engine.py."""

    def job(name: str) -> None:
        spec = tmp_path / f"{name}.yaml"
        spec.write_text(SPEC.format(data=pictures, writer=writer, out=tmp_path / name))
        assert run_job(spec).exit_code == REJECTS

    job("first")  # what is imported or compiled once leaves rings of its own
    assert left_in_rings(lambda: job("second")) == {}
