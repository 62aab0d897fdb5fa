"""Outputs of version 1, whose journals list SHA-256 and no tree: checked, added to, joined, gone on with as they are.

tests/golden/outputs_v1.tar.gz was written by the last dali-run that wrote them (tests/golden/make_outputs_v1.py).
"""

from __future__ import annotations

import json
import tarfile
from pathlib import Path
from typing import Any

import pytest

from dali_run.ops.errors import JobError
from dali_run.writers.shards.merge import merge
from dali_run.writers.shards.verify import verify
from tests.kit.jobs.retries import retry
from tests.kit.writers import Job, digest

JOB = Job("tfrecord", total=40, samples=12, fields=("label",))


@pytest.fixture
def old(tmp_path: Path) -> Path:
    """Its folders: finished, retried, parts, interrupted."""
    with tarfile.open(Path(__file__).parents[2] / "golden" / "outputs_v1.tar.gz") as tar:
        tar.extractall(tmp_path / "old", **({"filter": "data"} if hasattr(tarfile, "data_filter") else {}))
    return tmp_path / "old"


def manifest(path: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((path / "manifest.json").read_text())
    return found


def checksums(path: Path) -> set[str]:
    """Keys that are listed of files."""
    return {key for shard in manifest(path)["shards"] for info in shard["files"] for key in info}


@pytest.mark.parametrize("name", ["finished", "retried", "parts"])
def test_they_are_checked_by_sha256(old: Path, name: str) -> None:
    for deep in (False, True):
        verdict = verify(old / name, deep=deep)
        assert [str(p) for p in verdict.problems] == []
        assert verdict.files == verdict.hashed > 0
    assert manifest(old / name)["version"] == 1
    shard = old / name / "train-00001-of-00004.tfrecord"
    data = bytearray(shard.read_bytes())
    data[-20] ^= 1
    shard.write_bytes(data)
    assert "its content is not what was written (sha256 differs)" in str(verify(old / name).problems[0])


def test_an_interrupted_one_goes_on_as_it_began(old: Path) -> None:
    JOB.run(old / "interrupted")
    assert digest(old / "interrupted") == digest(old / "finished")
    JOB.run(old / "finished")  # nothing to do


def test_what_is_added_is_of_this_version(old: Path) -> None:
    retry(JOB, old / "finished", still_bad={17})
    assert verify(old / "finished").sound
    assert manifest(old / "finished")["version"] == 2
    assert checksums(old / "finished") == {"name", "bytes", "crc32c", "tree", "sha256"}
    retry(JOB, old / "retried", still_bad=set())
    assert verify(old / "retried", deep=True).sound


def test_parts_are_joined_as_they_were(old: Path) -> None:
    before = digest(old / "parts")
    (old / "parts" / "manifest.json").unlink()
    assert merge(old / "parts") == 2
    assert digest(old / "parts") == before


def test_new_ones_list_a_tree_and_sha256_on_request(tmp_path: Path) -> None:
    JOB.run(tmp_path / "tree")
    assert (manifest(tmp_path / "tree")["version"], checksums(tmp_path / "tree")) == (
        2,
        {"name", "bytes", "crc32c", "tree"},
    )
    verdict = verify(tmp_path / "tree", deep=True)
    assert (verdict.sound, verdict.hashed) == (True, 0)
    deep = Job("tfrecord", total=40, samples=12, fields=("label",), sha256=True)
    with pytest.raises(JobError, match=r"write.sha256: is new: true"):
        deep.run(tmp_path / "tree")
    deep.run(tmp_path / "deep")
    assert checksums(tmp_path / "deep") == {"name", "bytes", "crc32c", "tree", "sha256"}
    assert [verify(tmp_path / "deep", deep=d).hashed for d in (False, True)] == [0, 8]


def test_a_version_that_is_not_known_is_refused(tmp_path: Path) -> None:
    from dali_run.writers.shards.journal import _line, _parse

    JOB.run(tmp_path)
    path = tmp_path / "journal.jsonl"
    first, *rest = path.read_bytes().splitlines(keepends=True)
    header = _parse(first[:-1])
    assert header is not None
    path.write_bytes(b"".join([_line({**header, "version": 3}), *rest]))
    with pytest.raises(JobError, match="has format version 3, this dali-run writes 2"):
        JOB.run(tmp_path)
