"""Torture of curating: jobs with keep_if, a split and a mixture, killed at each file operation and run again."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from pathlib import Path

import numpy as np

from dali_run.pipelines.fleet.run import run
from dali_run.writers.bytes import files_io
from tests.kit.jobs.faults import ended_at
from tests.kit.writers import digest
from tests.torture_isolation import Row

_SPEC = """\
version: 1
name: few
pipeline: {{batch_size: 4, num_threads: 2, device: cpu, seed: 1}}
graph:
{reader}
  - {{op: reductions.mean, in: array, out: mean}}
  - {{op: keep_if, if: "mean > 0.4"}}
outputs: {{array: array}}
write: {{writer: {writer}, path: "{out}", shard: {shard}, fields: {{array: {{encode: npy}}}}}}
"""
_FILES = '{op: readers.numpy, file_root: "DATA", file_filter: "*.npy"'
_READERS = {
    "keep_if": f"  - {_FILES}, name: R, shuffle: full, out: array}}",
    "split": f"  - {_FILES}, name: R, shuffle: full, split: {{train: 0.6, val: 0.4, seed: 7}}, out: array}}",
    "readers.mix": f"  - {{op: readers.mix, epoch: longest, shuffle: full, out: array, of: {{a: {_FILES}, weight: 2}}, "
    f"b: {_FILES}, weight: 1}}}}}}",
}


def rows(work: Path, quick: bool) -> Iterator[Row]:
    """Each job killed before each of its file operations (a part of them if ``quick``), and run again."""
    real, os.fsync = os.fsync, lambda fd: None  # a killed process loses nothing that was written
    try:
        (work / "in").mkdir()
        for i in range(30):
            np.save(work / f"in/{i:02d}.npy", np.random.default_rng(i).random((2, 3)).astype(np.float32))
        for name, reader in _READERS.items():
            for shard in ("{samples: 5}", "{samples: 5, full: true}"):
                yield _killed(work, name, reader.replace("DATA", str(work / "in")), shard, 17 if quick else 1)
    finally:
        os.fsync = real


def _killed(work: Path, name: str, reader: str, shard: str, step: int) -> Row:
    out, spec = work / "out", work / "spec.yaml"
    spec.write_text(_SPEC.format(reader=reader, writer="webdataset", out=out, shard=shard))
    seen = [0]

    def count(operation: str, path: str) -> None:
        seen[0] += 1

    shutil.rmtree(out, ignore_errors=True)
    files_io.set_hook(count)
    try:
        run(spec)
    finally:
        files_io.set_hook(None)
    expected, bad, tried = digest(out), [], 0
    for at in range(1, seen[0] + 1, step):
        tried += 1
        shutil.rmtree(out)
        ended_at(at, lambda: run(spec).exit_code)
        if run(spec).exit_code != 0 or digest(out) != expected:
            bad.append(f"after a kill at operation {at}")
    return Row(f"{name}, shards of {shard}: killed at each file operation, then again", tried, bad)
