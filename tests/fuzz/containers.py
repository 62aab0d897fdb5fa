"""Whole jobs on mutated containers: `dali-run convert` on a good shard beside one that is damaged, or whose index is.

What must hold, whatever the bytes are: the conversion ends with 0 or 3 and every record of the good shard in the
output, or it is refused with a message that names the damaged file; where the format has checksums (TFRecord), no
record comes out that never went in; the output is sound; nothing is left behind.
`python -m tests.fuzz.containers --seconds 600`.
"""

from __future__ import annotations

import argparse
import io
import json
import random
import shutil
import sys
import tarfile
import tempfile
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from dali_run.ops.errors import DaliRunError
from dali_run.pipelines.job.convert import ConvertOptions, convert
from dali_run.writers.shards.verify import verify

from .jobs import IMAGES, mutated

EACH = 6
"""Records of a shard."""
CONTAINERS: Mapping[str, tuple[str, ...]] = {
    "tfrecord": (".tfrecord", ".idx"),
    "webdataset": (".tar", ".idx"),
    "recordio": (".rec", ".idx"),
    "lmdb": (".lmdb/data.mdb",),
    "parquet": (".parquet",),
    "pax": (".tar",),
    "gnu": (".tar",),
}
"""Files of a shard, and their ends: the data, and its index where there is one."""
CHECKED = ("tfrecord",)
"""Containers with a checksum for each record."""


def _tar(pictures: list[bytes], format: int) -> bytes:
    """An archive as other programs make it: long names, links, folders."""
    file = io.BytesIO()
    with tarfile.open(fileobj=file, mode="w", format=format) as archive:
        for i, data in enumerate(pictures):
            info = tarfile.TarInfo(f"{'long/' * 30}{i:05d}.png")
            info.size = len(data)
            archive.addfile(info, io.BytesIO(data))
    return file.getvalue()


@contextmanager
def shards(name: str) -> Iterator[tuple[list[bytes], dict[str, list[bytes]]]]:
    """The pictures, and for each end of a file its contents in the first and in the second shard of container
    ``name``: half of the pictures are in each."""
    rng = random.Random(name)
    with tempfile.TemporaryDirectory() as there:
        folder = Path(there)
        pictures = [IMAGES["png"](rng) for _ in range(2 * EACH)]
        split_plans = pictures[:EACH], pictures[EACH:]
        if name in ("pax", "gnu"):
            format = tarfile.PAX_FORMAT if name == "pax" else tarfile.GNU_FORMAT
            yield pictures, {".tar": [_tar(half, format) for half in split_plans]}
            return
        files: dict[str, list[bytes]] = {end: [] for end in CONTAINERS[name]}
        for k, half in enumerate(split_plans):
            (folder / f"in{k}/class").mkdir(parents=True)
            for i, data in enumerate(half):
                (folder / f"in{k}/class/{k}{i:02d}.png").write_bytes(data)
            result = convert(folder / f"in{k}", folder / f"out{k}", ConvertOptions(name))
            assert result.exit_code == 0, result.message
            for end in CONTAINERS[name]:
                (path,) = (folder / f"out{k}").rglob(f"*{Path(end).name}")
                files[end].append(path.read_bytes())
        yield pictures, files


def check(name: str, pictures: list[bytes], files: Mapping[str, list[bytes]], seed: int) -> str:
    """One conversion; whether it was ``refused``, ``whole`` or had ``rejects``. Raises AssertionError."""
    rng = random.Random(f"{name} {seed}")
    ends = list(files)
    damaged = rng.choice([ends[0], *ends])  # the data, or now and then its index
    first = rng.random() < 0.5
    bad = "a" if first else "z"
    with tempfile.TemporaryDirectory() as there:
        folder = Path(there)
        for end, (good, other) in files.items():
            for shard, data in (("m", good), (bad, mutated(other, rng) if end == damaged else other)):
                path = folder / f"in/{shard}{end}"
                path.parent.mkdir(parents=True, exist_ok=True)
                path.write_bytes(data)
        said = f"{name} seed {seed}: {bad}{damaged} is damaged"
        try:
            result = convert(folder / "in", folder / "out", ConvertOptions("files"))
            code, message = result.exit_code, result.message
        except DaliRunError as e:
            code, message = 1, str(e)
        said = f"{said}: {code} {message}"
        if code == 1:
            assert "internal" not in message, said
            assert f"/{bad}." in message, f"{said}: the damaged file is not named"
            return "refused"
        assert code in (0, 3), said
        verdict = verify(folder / "out")
        assert verdict.sound, f"{said}: {verdict.problems}"
        assert not list(folder.rglob("*.tmp-*")), said
        made = [
            (folder / "out" / path).read_bytes()
            for listing in (folder / "out").glob("data-*.jsonl")
            for row in map(json.loads, listing.read_text().splitlines())
            for path in row["files"]
        ]
        missing = [k for k, data in enumerate(pictures[:EACH]) if data not in made]
        assert not missing, f"{said}: records {missing} of the good shard are not in the output"
        if name in CHECKED:
            assert all(data in pictures for data in made), f"{said}: a record that never went in"
        rejects = (folder / "out/rejects.jsonl").read_text().splitlines()
        assert (code == 3) == bool(rejects), said
        shutil.rmtree(folder / "in")
    return "rejects" if rejects else "whole"


def main() -> None:
    """Fuzz for a while; a line of a table for each container, and 1 where something was found."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("containers", nargs="*", default=list(CONTAINERS))
    parser.add_argument("--seconds", type=float, default=600)
    parser.add_argument("--first", type=int, default=0, help="number of the first seed")
    asked = parser.parse_args()
    found = False
    for name in asked.containers:
        counts = {"whole": 0, "rejects": 0, "refused": 0, "found": 0}
        end, seed = time.monotonic() + asked.seconds / len(asked.containers), asked.first
        with shards(name) as (pictures, files):
            while time.monotonic() < end:
                try:
                    counts[check(name, pictures, files, seed)] += 1
                except AssertionError as e:
                    counts["found"] += 1
                    sys.stderr.write(f"{e}\n")
                seed += 1
        told = ", ".join(f"{n} {what}" for what, n in counts.items())
        sys.stdout.write(f"| fuzz whole jobs on {name} shards: {told} | {seed - asked.first} | {counts['found']} |\n")
        sys.stdout.flush()
        found |= bool(counts["found"])
    sys.exit(found)


if __name__ == "__main__":
    main()
