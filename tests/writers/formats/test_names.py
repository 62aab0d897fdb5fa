"""Names of tar members, made for whole batches: the same as one by one, and what other programs read."""

from __future__ import annotations

import io
import tarfile
from pathlib import Path

import numpy as np

from dali_run.ops.batch import Batch, Origin, Samples
from dali_run.writers.base import FieldConfig
from dali_run.writers.formats import tar_cpu
from dali_run.writers.formats.columns import from_values
from dali_run.writers.formats.names import COMMON, UsedNames, make_unique, webdataset_key
from dali_run.writers.shards.config import WriteConfig
from dali_run.writers.shards.output import Output

PIECES = [
    "a",
    "Z9",
    "_@+=~-",
    "#1",
    ".",
    "..",
    "/",
    "//",
    " ",
    "é",
    "\n",
    "x" * 119,
    "y" * 121,
    ".jpg",
    ".JPEG12345",
    "\x00",
]


def odd_keys(n: int) -> list[str]:
    rng = np.random.default_rng(5)
    return ["".join(rng.choice(PIECES, rng.integers(0, 8))) for _ in range(n)]


def test_common_keys_are_those_of_the_expression() -> None:
    keys = odd_keys(3000)
    column = from_values([k.encode() for k in keys])
    sizes = tar_cpu.common_sizes(column.data, column.starts, column.sizes).tolist()
    matches = [COMMON.fullmatch(k) for k in keys]
    assert sizes == [-1 if m is None else len(m[1]) for m in matches]
    assert 100 < sizes.count(-1) < 2900


def test_unique_names_are_those_made_one_by_one() -> None:
    rng = np.random.default_rng(6)
    taken, known = UsedNames(), set[str]()
    for start in range(0, 400, 40):
        names = [f"n{rng.integers(0, 10**6 if start < 200 else 60)}" for _ in range(40)]
        positions = np.arange(start, start + 40)
        expected = make_unique(names, positions.tolist(), known)
        found = taken.unique(from_values([n.encode() for n in names]), positions)
        assert [found.value(i).decode() for i in range(40)] == expected
        taken.add(found)
        known.update(expected)
    assert len(known) == 400


class Keys:
    def __init__(self, keys: list[str]) -> None:
        self.all = keys

    def origin(self, index: int) -> Origin:
        return Origin(self.all[index], "")

    def keys(self, index: np.ndarray) -> list[bytes]:
        return [self.all[i].encode() for i in index.tolist()]


def test_members_as_tar_reads_them(tmp_path: Path) -> None:
    keys = [*odd_keys(200), "/".join(["d" * 60] * 3), "/".join(["d" * 50] * 4), "e" * 150, "f" * 90, "g/" * 70 + "h"]
    at = np.arange(len(keys))
    samples = Samples(at.astype(np.int32), at, np.zeros(len(at), np.int64), at, Keys(keys))
    fields = {
        "image": Batch.from_list([np.full(i * 7 % 1100, i, np.uint8) for i in at], "", samples),
        "label": Batch.from_dense(at.astype(np.int32), "", samples),
    }
    config = WriteConfig(tmp_path, "x", "webdataset", fields={"image": FieldConfig("keep"), "label": FieldConfig()})
    with Output.open(config, {}, total=len(keys)) as out:
        out.add(0, len(keys), samples, fields)
        out.finish()
    names = make_unique([webdataset_key(k) for k in keys], at.tolist(), set())
    expected = {}
    for i, name in enumerate(names):
        expected |= {f"{name}.bin": bytes([i % 256]) * (i * 7 % 1100), f"{name}.cls": b"%d" % i}
    file = tmp_path / "x-00000-of-00001.tar"
    with tarfile.open(fileobj=io.BytesIO(file.read_bytes())) as tar:
        members = tar.getmembers()
        found = {m.name: tar.extractfile(m).read() for m in members}  # type: ignore[union-attr]
    assert found == expected
    assert all((m.mode, m.uid, m.mtime) == (0o644, 0, 0) for m in members)
    lines = file.with_suffix(".idx").read_text().splitlines()
    assert lines[0] == f"v1.2 {len(keys)}"
    assert [w for line in lines[1:] for w in line.split(" ")] == [
        w for m in members for w in (m.name.rsplit(".", 1)[1], str(m.offset_data), str(m.size), m.name)
    ]
