"""Data sets with one valid sample that differs from the others, and the jobs that read and write them."""

from __future__ import annotations

import io
import json
import tarfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from tests.kit.ops.neighbours import UNTRIED, lz4, npy, video, wav
from tests.kit.writers import HAS_PYARROW

N = 20
"""Number of samples of a data set; shards hold 5."""
Arrays = Mapping[str, tuple[Any, Any]]
"""For each member of a sample: the array of an ordinary sample and of the odd one. Members named ``file`` are files,
stored as they are; others are stored as `.npy`."""

_VECTOR = np.arange(3, dtype=np.float32)
_IMAGE = np.arange(48, dtype=np.uint8).reshape(4, 4, 3)
KINDS: Mapping[str, tuple[Arrays, str]] = {
    "rank": ({"x": (_VECTOR, _VECTOR[None])}, ""),
    "type": ({"x": (_VECTOR, _VECTOR.astype(np.int64))}, ""),
    "length": ({"x": (_VECTOR, _VECTOR[:2])}, ""),
    "one number": ({"x": (_VECTOR[:1], _VECTOR[:2])}, ""),
    "channels": ({"x": (_IMAGE, _IMAGE[..., :1])}, ""),
    "a list of lengths": ({"x": (_IMAGE, _IMAGE), "n": (np.int32([-1, 3]), np.int32([-1]))},
                          "- {op: reshape, in: x, shape: $n, out: x}"),
    "a list of sizes": ({"x": (_IMAGE, _IMAGE), "n": (np.float32([5, 6]), np.float32([5, 6, 7]))},
                        '- {op: reinterpret, in: x, layout: HWC, out: x}\n  - {op: resize, in: x, size: $n, out: x}'),
    "scalars": ({"x": (np.int32([1]), np.int32([1, 2]))}, "- {op: one_hot, in: x, num_classes: 4, out: x}"),
    "types of branches": ({"x": (_VECTOR, _VECTOR), "y": (_VECTOR.astype(np.int64),) * 2,
                           "n": (np.bool_(True), np.bool_(False))},
                          "- if: $n\n    then: [{op: copy, in: x, out: x}]\n    else: [{op: copy, in: y, out: x}]"),
    "a block of another rank": ({"file": (lz4(_IMAGE), lz4(_IMAGE)), "n": (np.int32([4, 4, 3]), np.int32([48]))},
                                "- {op: decoders.inflate, in: file, shape: $n, out: x}"),
    **({} if "decoders.audio" in UNTRIED else {
        "audio of another rate": ({"file": (wav(), wav(8000))},
                                  "- {op: decoders.audio, in: file, sample_rate: 8000, out: [x, rate]}"),
        "audio in stereo": ({"file": (wav(), wav(channels=2))}, "- {op: decoders.audio, in: file, out: [x, rate]}"),
    }),
    **({} if "decoders.video" in UNTRIED else {
        "frames of another size": ({"file": (video(), video((32, 16)))}, "- {op: decoders.video, in: file, out: x}"),
    }),
}  # fmt: skip
"""For each kind of difference between samples: the arrays, and the steps of the spec after the reader."""


def write_tar(path: Path, arrays: Arrays, odd: int) -> None:
    """Write a tar of `N` samples of `.npy` members; sample number ``odd`` is the odd one."""
    with tarfile.open(path, "w") as tar:
        for i in range(N):
            for name, pair in arrays.items():
                data = pair[i == odd] if name == "file" else npy(pair[i == odd])
                member = tarfile.TarInfo(f"{i:03d}.{_member(name)}")
                member.size = len(data)
                tar.addfile(member, io.BytesIO(data.tobytes()))


def _member(name: str) -> str:
    return "bin" if name == "file" else f"{name}.npy"


def write_spec(place: Path, kind: str, writer: str, batch: int, threads: int, out: str) -> Path:
    """Write the spec of a job over ``place/in.tar``."""
    arrays, steps = KINDS[kind]
    lines = [
        f"- {{op: readers.webdataset, paths: [{place}/in.tar], ext: [{', '.join(map(_member, arrays))}], "
        f"out: [{', '.join(arrays)}]}}",
        *(f"- {{op: decoders.numpy, in: {n}, out: {n}}}" for n in arrays if n != "file"),
        *([steps] if steps else []),
    ]
    graph = "\n  ".join(lines)
    spec = place / f"{out}.yaml"
    spec.write_text(
        f"version: 1\nname: odd\npipeline: {{batch_size: {batch}, num_threads: {threads}, device: cpu}}\n"
        f"graph:\n  {graph}\noutputs: {{x: x}}\n"
        f"write: {{writer: {writer}, path: {place}/{out}, shard: {{samples: 5}}, fields: {{x: {{}}}}}}\n"
        "on_error: {policy: skip, max_errors: 100%}\n"
    )
    return spec


def rejects(out: Path) -> list[tuple[int, str, str]]:
    """Return position, code and message of each reject of the job's output."""
    rows = [json.loads(line) for line in (out / "rejects.jsonl").read_text().splitlines()]
    return [(row["position"], row["code"], row["message"]) for row in rows]


WRITERS = ("numpy", *(["parquet"] if HAS_PYARROW else []), "tfrecord", "webdataset", "lmdb", "files")
FIRST_DECIDES = {"numpy": set(KINDS), "parquet": {"rank", "type", "one number", "scalars", "types of branches",
                                                   "a block of another rank"}}  # fmt: skip
"""By writer, the kinds of odd samples that it rejects; other writers accept samples that differ only in shape."""
SHAPES_ALONE = {"length", "one number", "channels", "audio of another rate", "audio in stereo",
                "frames of another size"}  # fmt: skip


def expected(kind: str, writer: str, odd: int) -> list[int]:
    """Return the positions that are rejected: the odd sample, or all others if it is the first and sets the type."""
    if kind in SHAPES_ALONE and kind not in FIRST_DECIDES.get(writer, ()):
        return []
    if kind == "a list of sizes":
        return [odd]
    if kind == "one number" and writer == "parquet" and odd == 0:
        return []  # the first sample determines that the column holds lists
    if kind == "scalars" and odd == 0:
        return [] if writer != "numpy" else list(range(1, N))
    return [odd] if odd else list(range(1, N))
