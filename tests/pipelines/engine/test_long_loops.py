"""Nothing is left behind by a job or an epoch: memory, open files and threads are what they were after the last one.

`python benchmarks/jobs/soak.py` watches the same for minutes.
"""

from __future__ import annotations

import gc
import io
import os
import threading
import time
import tracemalloc
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from dali_run import fn, pipeline_def, types
from dali_run.ops.batch import Batch, Samples
from dali_run.pipelines.job.run import REJECTS, run_job
from dali_run.writers.base import FieldConfig
from dali_run.writers.shards.config import WriteConfig
from dali_run.writers.shards.output import Output

RECORDS = 48
SIDE = 120
SPEC = """
version: 1
name: loop
pipeline: {batch_size: 16, num_threads: 2, device: cpu, seed: 1}
graph:
  - {op: %s, out: %s}
  - {op: decoders.image, in: jpegs, out: images}
  - {op: resize, in: images, resize_shorter: 100, out: images}
outputs: {jpg: images}
write: {writer: %s, path: %s, shard: {samples: 20}, fields: {jpg: {encode: jpeg}}}
on_error: {policy: skip, max_errors: 50%%}
"""
JOBS = {
    "files": ("readers.file, file_root: %s/files", "[jpegs, labels]", "webdataset"),
    "tfrecord": ("readers.tfrecord, path: %s/in-00000-of-00001.tfrecord, features: {jpg: string}", "jpegs", "lmdb"),
    "lmdb": ("readers.lmdb, path: %s/in-00000-of-00001.lmdb", "jpegs", "tfrecord"),
    "tar": ("readers.webdataset, paths: %s/in-00000-of-00001.tar, ext: [jpg]", "jpegs", "files"),
}


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Pictures, one of them broken, as files and in containers."""
    root = tmp_path_factory.mktemp("loop")
    (root / "files/a").mkdir(parents=True)
    rng = np.random.default_rng(0)
    pictures = []
    for i in range(RECORDS):
        buffer = io.BytesIO()
        Image.fromarray(rng.integers(0, 255, (SIDE, SIDE + i, 3), np.uint8)).save(buffer, "JPEG")
        pictures.append(np.frombuffer(buffer.getvalue()[: 200 if i == 7 else None], np.uint8))
        (root / f"files/a/{i:03d}.jpg").write_bytes(pictures[-1].tobytes())
    samples = Samples.numbered(RECORDS)
    for writer in ("tfrecord", "lmdb", "webdataset"):
        config = WriteConfig(root / writer, "in", writer, fields={"jpg": FieldConfig("keep")})
        with Output.open(config, {}, total=RECORDS) as out:
            out.add(0, RECORDS, samples, {"jpg": Batch.from_list(pictures, "", samples)})
            out.finish()
        for made in (root / writer).glob("in-*"):
            made.rename(root / made.name)
    return root


def usage() -> tuple[int, int, set[threading.Thread]]:
    gc.collect()
    return tracemalloc.get_traced_memory()[0], len(os.listdir("/proc/self/fd")), set(threading.enumerate())


@pytest.fixture
def traced() -> Iterator[None]:
    before = set(threading.enumerate())
    tracemalloc.start()
    yield
    # Python crashes where tracing ends while other threads allocate: those of an engine that was dropped may still run.
    gc.collect()
    for thread in set(threading.enumerate()) - before:
        thread.join(120)
    tracemalloc.stop()


def stays_flat(round_: Callable[[], object], rounds: int, bound: int) -> None:
    for _ in range(3):  # caches, compiled code, pools
        round_()
    if growth(round_, rounds) >= bound:
        # Python's table of interned strings takes megabytes when it doubles, once; what leaks does so again.
        assert growth(round_, rounds) < bound


def growth(round_: Callable[[], object], rounds: int) -> int:
    """Bytes that are held after ``rounds`` and were not before. Files and threads must not grow."""
    memory, files, threads = usage()
    for _ in range(rounds):
        round_()
    for _ in range(2000):  # threads that read ahead have files open for a moment
        after, open_files, running = usage()
        if open_files <= files and running <= threads:
            break
        time.sleep(0.05)
    assert open_files <= files
    assert running <= threads
    return after - memory


@pytest.mark.parametrize("kind", JOBS)
@pytest.mark.usefixtures("traced")
def test_jobs_leave_nothing_behind(tmp_path: Path, data: Path, kind: str) -> None:
    reader, out, writer = JOBS[kind]
    spec = tmp_path / "spec.yaml"
    spec.write_text(SPEC % (reader % data, out, writer, tmp_path / "out"))

    def job() -> None:
        result = run_job(spec, fresh=True)
        assert result.exit_code == REJECTS, result.message
        assert result.report["samples"] == {"read": RECORDS, "written": RECORDS - 1, "rejected": 1}

    stays_flat(job, 4, bound=4 * SIDE * SIDE * 3)  # a few of the decoded pictures, of which each job makes all


@pytest.mark.usefixtures("traced")
def test_epochs_leave_nothing_behind(data: Path) -> None:
    @pipeline_def(batch_size=16, num_threads=2, device_id=None, seed=1, on_error="skip")
    def training() -> Any:
        jpegs, labels = fn.readers.file(file_root=str(data / "files"), random_shuffle=True, name="Reader")
        images = fn.decoders.image_random_crop(jpegs, output_type=types.RGB)
        images = fn.resize(images, size=[96, 96])
        return fn.crop_mirror_normalize(images, mirror=fn.random.coin_flip()), labels

    pipe = training()
    pipe.build()

    def epoch() -> None:
        for _ in range(RECORDS // 16):
            images, labels = pipe.run()
            assert np.asarray(images.as_tensor()).shape[1:] == (3, 96, 96)
            assert 15 <= len(labels) <= 16

    batch = 16 * 3 * 96 * 96 * 4
    stays_flat(epoch, 10, bound=12 * batch)  # as many as may be on their way, of the 30 that are made
    pipe.close()
