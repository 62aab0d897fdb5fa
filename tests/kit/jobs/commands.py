"""Every command with valid arguments, and the small spec that they use."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np

SPEC = """\
version: 1
name: small
vars: {data: ., out: ./out}
pipeline: {batch_size: 4, num_threads: 2, device: cpu}
graph:
  - {op: readers.file, name: Reader, file_root: "${data}", out: [jpegs, labels]}
  - {op: decoders.image, in: jpegs, out: images}
  - {op: resize, in: images, size: [32, 32], out: images}
outputs: {image: images, label: labels}
write: {writer: tfrecord, path: "${out}", shard: {samples: 8}}
"""


Lines = Callable[[Path, Path], list[str]]
"""Function that returns the arguments of a command, given a working folder and a folder of sample data."""


def deduplicated(here: Path, _data: Path) -> list[str]:
    """Write a file of hashes, two of which are near, and return the arguments of a command that reads it."""
    np.save(here / "hashes.npy", np.array([3, 1 << 40, 1], np.uint64))
    return ["dedupe", str(here / "hashes.npy"), "--out", str(here / "keep.txt"), "--html", str(here / "clusters.html")]


COMMANDS: dict[str, Lines] = {
    "init": lambda here, data: ["init", str(data / "val"), "-o", str(here / "made.yaml"), "--force"],
    "run": lambda here, data: ["run", str(here / "spec.yaml"), "--fresh"],
    "top": lambda here, data: ["top", str(here / "out")],
    "validate": lambda here, data: ["validate", str(here / "spec.yaml")],
    "plan": lambda here, data: ["plan", str(here / "spec.yaml")],
    "inspect": lambda here, data: ["inspect", str(here / "spec.yaml"), "-n", "2", "--out", str(here / "look")],
    "verify": lambda here, data: ["verify", str(here / "out")],
    "merge": lambda here, data: ["merge", str(here / "parts")],
    "retry-failed": lambda here, data: ["retry-failed", str(here / "out")],
    "convert": lambda here, data: ["convert", str(data / "tfrecord"), str(here / "lmdb"), "--to", "lmdb", "--fresh"],
    "convert-pipeline": lambda here, data: ["convert-pipeline", str(here / "model.dali"), str(here / "model.yaml"),
                                            "--force"],
    "bench": lambda here, data: ["bench", str(here / "spec.yaml"), "--seconds", "0.01", "--repeats", "1",
                                 "--warm-up", "0"],
    "tune": lambda here, data: ["tune", str(here / "spec.yaml"), "--seconds", "0.01", "--warm-up", "0",
                                "-o", str(here / "tuned.yaml"), "--set", "pipeline.batch_size=1"],
    "ops": lambda here, data: ["ops", "resize"],
    "stats": lambda here, data: ["stats", str(data / "val")],
    "dedupe": deduplicated,
    "configs": lambda here, data: ["configs"],
    "schema": lambda here, data: ["schema"],
    "doctor": lambda here, data: ["doctor"],
    "warm": lambda here, data: ["warm", str(here / "spec.yaml"), "--device", "cpu"],
    "sample-data": lambda here, data: ["sample-data", str(data), "--count", "32"],
    "serve-model": lambda here, data: ["serve-model", str(here / "spec.yaml"), str(here / "models"), "--force"],
    "port": lambda here, data: ["port", __file__],
}  # fmt: skip
