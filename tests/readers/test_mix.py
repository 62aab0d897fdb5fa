"""readers.mix: several data sets as one, in proportion to their weights, in an order that anybody can compute."""

from __future__ import annotations

import json
import math
import os
import tarfile
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from dali_run import load_spec
from dali_run.ops.errors import JobError, SpecError
from dali_run.pipelines.fleet.run import run
from dali_run.pipelines.job.retry import retry_failed
from dali_run.pipelines.job.run import run_job
from dali_run.readers.mix.order import samples_of_epoch
from dali_run.readers.mix.reader import Mix
from dali_run.writers.shards.verify import verify
from tests.kit.jobs.faults import ended_at
from tests.kit.writers import digest

SPEC = """\
version: 1
name: mixed
vars: {a: "", b: "", out: "", epoch: longest, weight: 1}
pipeline: {batch_size: 4, num_threads: 2, device: cpu, seed: 1}
graph:
  - op: readers.mix
    name: Reader
    shuffle: full
    epoch: "${epoch}"
    of:
      a: {op: readers.numpy, file_root: "${a}", file_filter: "*.npy", weight: 2}
      b: {op: readers.numpy, file_root: "${b}", file_filter: "*.npy", weight: "${weight}"}
    out: array
  - {op: random.uniform, range: [0.0, 1.0], out: draw}
outputs: {array: array, draw: draw}
write: {writer: files, path: "${out}", shard: {samples: 6}, fields: {array: {encode: npy}, draw: {}}}
"""
SIZES = {"a": 12, "b": 20}


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(os, "fsync", lambda fd: None)
    for name, n in SIZES.items():
        (tmp_path / name).mkdir()
        for i in range(n):
            np.save(tmp_path / name / f"{i:02d}.npy", np.full((2, 2), i + 100 * (name == "b"), np.float32))
    (tmp_path / "spec.yaml").write_text(SPEC)
    return tmp_path


def overrides(place: Path, out: str, **changes: Any) -> dict[str, Any]:
    return {"a": str(place / "a"), "b": str(place / "b"), "out": str(place / out), **changes}


def rows(out: Path) -> list[dict[str, Any]]:
    paths = sorted(out.glob("mixed-*.jsonl"))
    return [json.loads(line) for path in paths for line in path.read_text().splitlines()]


def drawn(out: Path) -> list[tuple[str, bytes]]:
    """Every sample's key and random number, in the archives of an output."""
    found = []
    for path in out.glob("*.tar"):
        with tarfile.open(path) as tar:
            for member in tar:
                name, _, extension = member.name.partition(".")
                file = tar.extractfile(member)
                assert file is not None
                found += [(name.partition("~")[0], file.read())] * extension.startswith("draw")
    return sorted(found)


def shards(out: Path) -> dict[str, str]:
    return {k: v for k, v in digest(out).items() if not k.startswith(("journal", "manifest", "report", "inputs"))}


def test_epochs_by_the_shortest_the_longest_and_a_count() -> None:
    assert samples_of_epoch([12, 20], [2, 1], "shortest", None).tolist() == [12, 6]
    assert samples_of_epoch([12, 20], [2, 1], "longest", None).tolist() == [40, 20]
    assert samples_of_epoch([12, 20], [2, 1], "longest", 100).tolist() == [67, 33]
    assert samples_of_epoch([12, 20, 5], [12, 20, 5], "shortest", None).tolist() == [12, 20, 5]
    assert samples_of_epoch([10**9, 7], [0.3, 0.7], "shortest", None).tolist() == [3, 7]
    with pytest.raises(JobError, match="one would give none"):
        samples_of_epoch([10**6, 7], [1, 10**7], "shortest", None)


@pytest.mark.parametrize(("epoch", "count"), [("longest", None), ("shortest", 10**30)])
def test_an_epoch_of_absurd_length_is_refused(epoch: Any, count: int | None) -> None:
    with pytest.raises(JobError, match="at most 4,294,967,296 are possible"):
        samples_of_epoch([1000, 10], [1e9, 1e-9], epoch, count)


def test_each_record_comes_as_often_as_the_weights_say(place: Path) -> None:
    result = run_job(place / "spec.yaml", overrides(place, "out"))
    assert result.exit_code == 0, result.message
    assert result.report["mixtures"] == {"Reader": {"a": 40, "b": 20}}
    found = rows(place / "out")
    counts = Counter(r["key"].partition("/")[0] for r in found)
    assert counts == {"a": 40, "b": 20}
    each = Counter(r["key"] for r in found)
    assert {each[f"b/{i:02d}.npy"] for i in range(20)} == {1}
    assert {each[f"a/{i:02d}.npy"] for i in range(12)} == {3, 4}
    spread = np.flatnonzero([r["key"].startswith("b") for r in found])
    assert np.abs(spread - 3 * np.arange(20)).max() < 6, "data sets are mixed evenly"
    draws = [r["field:draw"] for r in found if r["key"] == "a/03.npy"]
    assert len(set(draws)) == len(draws), "a repeated record has random numbers of its own"
    again = overrides(place, "short", epoch="shortest", weight=2)
    run_job(place / "spec.yaml", again)
    assert Counter(r["key"].partition("/")[0] for r in rows(place / "short")) == {"a": 12, "b": 12}


def test_parts_workers_kills_and_retries_write_the_same_bytes(place: Path) -> None:
    spec = place / "spec.yaml"
    spec.write_text(SPEC.replace("writer: files", "writer: webdataset"))
    run_job(spec, overrides(place, "whole"))
    expected = shards(place / "whole")
    for part in (1, 0):
        run_job(spec, overrides(place, "parts"), part=(part, 2))
    by_two = run(spec, overrides(place, "workers"), on="processes:2")
    assert by_two.report["mixtures"] == {"Reader": {"a": 40, "b": 20}}
    run_job(spec, overrides(place, "batches", **{"pipeline.batch_size": 17}))
    for at in (40, 90):
        assert ended_at(at, lambda: run_job(spec, overrides(place, "killed")).exit_code) == 77
    run_job(spec, overrides(place, "killed"))
    for other in ("workers", "batches", "killed"):
        assert shards(place / other) == expected, other
    assert expected.items() <= {**shards(place / "parts"), "rejects.jsonl": expected["rejects.jsonl"]}.items()
    good = (place / "a/03.npy").read_bytes()
    (place / "a/03.npy").write_bytes(b"broken")
    assert run_job(spec, overrides(place, "broken")).exit_code == 3
    (place / "a/03.npy").write_bytes(good)
    assert retry_failed(place / "broken").exit_code == 0
    assert drawn(place / "broken") == drawn(place / "whole")
    for out in ("broken", "parts", "killed"):
        assert verify(place / out).sound


def test_inputs_cannot_be_added_to_a_mixture(place: Path) -> None:
    run_job(place / "spec.yaml", overrides(place, "out"))
    np.save(place / "b/99.npy", np.zeros((2, 2), np.float32))
    with pytest.raises(SpecError, match="cannot be added to a mixture"):
        run_job(place / "spec.yaml", overrides(place, "out"), append=True)


def test_programs_walk_the_data_sets_on_over_epochs(place: Path) -> None:
    pipe = load_spec(place / "spec.yaml", overrides(place, "out", epoch="shortest"))
    size = pipe.epoch_size("Reader")
    assert size == 18
    seen: Counter[int] = Counter()
    for _ in range(10 * size // 6):
        pipe_out = pipe.run()[0]
        seen.update(int(np.asarray(a).ravel()[0]) for a in pipe_out)
    assert set(seen) == {*range(12), *range(100, 120)}
    per_set = [sum(n for k, n in seen.items() if (k >= 100) == b) for b in (False, True)]
    assert abs(per_set[0] - 2 * per_set[1]) <= 6


@pytest.mark.parametrize(
    ("of", "more", "message"),
    [
        ({"a": {"op": "readers.file"}}, {}, "give two data sets or more"),
        ({"a": {"op": "readers.fil"}, "b": {}}, {}, "there is no operator 'readers.fil'; did you mean readers.file"),
        ({"a": {"op": "resize"}, "b": {}}, {}, "a: resize does not read a data set|there is no operator 'resize'"),
        ({"a": {"op": "readers.file", "files": ["x"], "num_shards": 2}, "b": {}}, {}, "num_shards is for all"),
        ({"a": {"op": "readers.file", "filez": ["x"]}, "b": {}}, {}, "no argument 'filez'; did you mean files"),
        ({"a": {"op": "readers.file", "files": ["x"], "weight": 0}, "b": {}}, {}, "weight of a must be a number"),
        ({"a": {"op": "readers.file", "files": ["x"], "weight": math.inf}, "b": {}}, {}, "weight of a must be"),
        ({"a": {"op": "readers.file", "files": ["x"], "weight": math.nan}, "b": {}}, {}, "weight of a must be"),
        ({"a": {"op": "readers.file", "files": ["x"], "weight": 1e-300}, "b": {}}, {}, "weight of a must be a number"),
        ({"a": {"op": "readers.file", "files": ["x"], "weight": 10**400}, "b": {}}, {}, "weight of a must be a number"),
        ({"a": {"op": "readers.file", "files": ["x"], "weight": True}, "b": {}}, {}, "weight of a must be a number"),
        ({"a": {"op": "readers.file", "files": ["x"], "weight": 1}, "b": {"op": "readers.file", "files": ["y"]}}, {},
         "b has no weight"),
        ({"a": {"op": "readers.file", "files": ["x"]}, "b": {"op": "readers.numpy", "files": ["y"]}}, {},
         "different numbers of outputs"),
        ({"a": {"op": "readers.file", "files": ["x"]}, "b": {"op": "readers.file", "files": ["y"]}}, {"limit": 3},
         "limit: give it to the data sets"),
    ],
)  # fmt: skip
def test_wrong_declarations_name_the_data_set(of: Any, more: Any, message: str) -> None:
    with pytest.raises(SpecError, match=message):
        Mix(of=of, **more).check()


def test_a_data_set_that_cannot_be_opened_is_named(place: Path) -> None:
    with pytest.raises((SpecError, JobError), match="of: b: "):
        run_job(place / "spec.yaml", overrides(place, "out", b=str(place / "nowhere")))
