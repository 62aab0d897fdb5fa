"""A job with the package's reader, operator and writer; run it where the package is installed."""

from pathlib import Path

import numpy as np
import pytest

import dali_run

SPEC = Path(__file__).parents[1] / "cifar.yaml"


@pytest.fixture
def data(tmp_path):
    rows = np.random.default_rng(1).integers(0, 256, (25, 3073), np.uint8)
    rows[:, 0] %= 10
    rows[:12].tofile(tmp_path / "a.bin")
    rows[12:].tofile(tmp_path / "b.bin")
    return rows


def test_images_are_mirrored_or_not(data, tmp_path):
    report = dali_run.run_job(SPEC, data=f"{tmp_path}/*.bin", out=tmp_path / "out", device="cpu")
    (shard,) = report.shards()
    rows = np.fromfile(shard, np.uint8).reshape(-1, 3073)
    np.testing.assert_array_equal(rows[:, 0], data[:, 0])
    images, before = rows[:, 1:].reshape(-1, 3, 32, 32), data[:, 1:].reshape(-1, 3, 32, 32)
    same = (images == before).all(axis=(1, 2, 3))
    np.testing.assert_array_equal(images[~same], before[~same][..., ::-1])
    assert 0 < same.sum() < 25


def test_files_are_appended(data, tmp_path):
    names = {"data": f"{tmp_path}/*.bin", "out": tmp_path / "out", "device": "cpu"}
    dali_run.run_job(SPEC, **names)
    data[:5].tofile(tmp_path / "c.bin")
    report = dali_run.run_job(SPEC, **names, append=True)
    assert report.written == 5


def test_labels_of_the_python_api(data, tmp_path):
    @dali_run.pipeline_def(batch_size=25, num_threads=1, device_id=None)
    def labels():
        _, numbers = dali_run.fn.readers.cifar(path=f"{tmp_path}/*.bin")
        return dali_run.fn.smooth_labels(numbers, num_classes=10, smoothing=0.2)

    (targets,) = labels().run()
    np.testing.assert_allclose(targets.as_array(), np.eye(10)[data[:, 0]] * 0.8 + 0.02, rtol=1e-6)
