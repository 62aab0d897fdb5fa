"""DALI itself reads our shards: set DALI_PYTHON to a Python that has DALI 2.4 (as for `make parity`)."""

from __future__ import annotations

import os
import subprocess
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from tests.kit.writers import JOBS, label, payload

SCRIPT = """
import sys
from pathlib import Path
import numpy as np
import nvidia.dali.tfrecord as tfr
from nvidia.dali import fn, pipeline_def

kind, root, expected = sys.argv[1], Path(sys.argv[2]), np.load(sys.argv[3])
def found(suffix):
    return sorted(map(str, root.glob("*" + suffix)))

@pipeline_def(batch_size=8, num_threads=1, device_id=None)
def pipeline():
    if kind == "tfrecord":
        features = {"image": tfr.FixedLenFeature((), tfr.string, ""), "label": tfr.FixedLenFeature([1], tfr.int64, -1)}
        read = fn.readers.tfrecord(path=found(".tfrecord"), index_path=found(".idx"), features=features)
        return read["image"], read["label"]
    if kind == "webdataset":
        return tuple(fn.readers.webdataset(paths=found(".tar"), index_paths=found(".idx"), ext=["jpg;bin", "cls"],
                                           missing_component_behavior="error"))
    return tuple(fn.readers.mxnet(path=found(".rec"), index_path=found(".idx")))

p = pipeline()
p.build()
n, at = int(expected["n"]), 0
while at < n:
    images, labels = p.run()
    for i in range(min(8, n - at)):
        value = np.array(labels.at(i))
        value = int(value.tobytes()) if kind == "webdataset" else int(value.reshape(-1)[0])
        assert np.array_equal(images.at(i), expected[f"image{at + i}"]), at + i
        assert value == expected["labels"][at + i], at + i
    at += 8
"""


@pytest.mark.dali
@pytest.mark.parametrize("kind", ["tfrecord", "webdataset", "recordio"])
def test_dali_reads_it(tmp_path: Path, kind: str) -> None:
    python = os.environ.get("DALI_PYTHON")
    if not python:
        pytest.skip("set DALI_PYTHON to a Python that has DALI")
    # DALI takes one RecordIO file a reader.
    job = replace(JOBS[kind], fields=("image", "label"), total=60, samples=None if kind == "recordio" else 20)
    job.run(tmp_path / "out")
    positions = job.survivors()
    np.savez(tmp_path / "expected.npz", n=len(positions), labels=[label(p) for p in positions],
             **{f"image{k}": payload(p) for k, p in enumerate(positions)})  # fmt: skip
    command = [python, "-c", SCRIPT, kind, str(tmp_path / "out"), str(tmp_path / "expected.npz")]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
