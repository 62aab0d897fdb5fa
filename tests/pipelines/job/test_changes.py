"""A job that changed is never resumed: every kind of change is refused, and named."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from dali_run.ops.errors import JobError
from dali_run.pipelines.job import run as job
from dali_run.pipelines.tools.sample_data import make_sample_data

SPEC = """\
version: 1
name: small
pipeline: {batch_size: 4, num_threads: 2, device: cpu, seed: 3}
graph:
  - {op: readers.file, name: Reader, file_root: ./data, out: [jpegs, labels]}
  - {op: decoders.image, in: jpegs, out: images}
  - {op: resize, in: images, size: [24, 24], out: images}
outputs: {image: images, label: labels}
write: {writer: tfrecord, path: ./out, shard: {samples: 4}, fields: {image: {encode: jpeg, quality: 80}, label: {}}}
on_error: {policy: skip}
"""
Change = Callable[[Path], Any]


def spec(old: str, new: str) -> Change:
    """Another spec."""

    def change(place: Path) -> None:
        text = (place / "spec.yaml").read_text()
        assert old in text
        (place / "spec.yaml").write_text(text.replace(old, new))

    return change


def setting(**changes: Any) -> Change:
    """Another command line."""
    return lambda place: changes


def files(place: Path) -> list[Path]:
    return sorted((place / "data").rglob("*.jpg"))


CHANGES: dict[str, tuple[Change, str]] = {
    "seed": (spec("seed: 3", "seed: 4"), r"identity\.seed: was 3, now 4"),
    "generator": (spec("seed: 3", "seed: 3, rng: dali"), r'identity\.rng: was "philox", now "dali"'),
    "argument": (spec("[24, 24]", "[24, 25]"), r'3 resize\.size: was "\(24\.0, 24\.0\)", now "\(24\.0, 25\.0\)"'),
    "interpolation": (spec("size: [24", "interp_type: INTERP_CUBIC, size: [24"), r"interp_type: is new: .*CUBIC"),
    "decoder": (spec("decoders.image, in", "decoders.image, output_type: BGR, in"), r"output_type: is new: .*BGR"),
    "operator more": (
        spec("outputs:", "  - {op: flip, in: images, horizontal: 1, out: images}\noutputs:"), r"graph\.4 flip: is new"
    ),
    "operator less": (
        spec("  - {op: resize, in: images, size: [24, 24], out: images}\n", ""), r"graph\.3 resize: was .* is gone"
    ),
    "order": (spec("out: [jpegs", "shuffle: full, out: [jpegs"), r"graph\.1 readers\.file\.shuffle: is new: .*full"),
    "filter": (spec("file_root: ./data", 'file_root: ./data, file_filters: ["*.jp*g"]'), r"file\.file_filters: is new"),
    "policy": (spec("policy: skip", "policy: replace"), r"identity\.replace: was false, now true"),
    "output": (spec("image: ", "picture: "), r"write\.fields\.image: was .* is gone"),
    "field less": (spec("quality: 80}, label: {}", "quality: 80}"), r"write\.fields\.label: was .* is gone"),
    "encoding": (spec("encode: jpeg, quality: 80", "encode: png"), r'fields\.image\.encode: was "jpeg", now "png"'),
    "quality": (spec("quality: 80", "quality: 81"), r"fields\.image\.quality: was 80, now 81"),
    "name": (spec("name: small", "name: large"), r'write\.name: was "small", now "large"'),
    "format": (spec("writer: tfrecord", "writer: webdataset"), r'write\.writer: was "tfrecord", now "webdataset"'),
    "writer's option": (spec("path: ./out", "path: ./out, index: false"), r"write\.options\.index: is new: false"),
    "shard samples": (spec("{samples: 4}", "{samples: 5}"), r"write\.shard\.samples: was 4, now 5"),
    "shard bytes": (spec("{samples: 4}", "{samples: 4, bytes: 1MB}"), r"write\.shard\.bytes: was null, now 1000000"),
    "file edited": (lambda p: files(p)[2].write_bytes(b"other"), r"inputs of Reader: 1 edited: \S+ \(size, modified\)"),
    "file touched": (lambda p: os.utime(files(p)[2]), r"inputs of Reader: 1 edited: \S+\.jpg \(modified\)"),
    "file removed": (lambda p: files(p)[2].unlink(), r"inputs of Reader: 1 removed: \S+\.jpg"),
    "file added": (lambda p: shutil.copy(files(p)[2], files(p)[2].with_name("0.jpg")), r"1 added: \S+/0\.jpg"),
    "file renamed": (
        lambda p: files(p)[2].rename(files(p)[2].with_name("0.jpg")), r"1 added: \S+/0\.jpg\n.* 1 removed: \S+\.jpg"
    ),
    "class added": (lambda p: (p / "data" / "a").mkdir(), r"edited: \S+ \(label\)"),
    "decoder's version": (lambda p: {"version": "simplejpeg"}, r'versions\.simplejpeg: was ".*", now "0\.0\.1"'),
    "our version": (lambda p: {"version": "dali-run"}, r'versions\.dali-run: was ".*", now "0\.0\.1"'),
    "limit": (setting(limit=9), r"range\[?\S*: was .*, now"),
    "parts": (setting(part=(0, 2)), r"holds a job that runs in one piece"),
}  # fmt: skip


@pytest.fixture(scope="module")
def interrupted(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A job that stopped half way."""
    place = tmp_path_factory.mktemp("changes")
    make_sample_data(place / "made", 16)
    (place / "made" / "train").rename(place / "data")
    shutil.rmtree(place / "made")
    (place / "spec.yaml").write_text(SPEC)

    def stop(state: Any) -> None:
        if state.done >= 6:
            raise KeyboardInterrupt

    result = run(place, progress=stop)
    assert result.exit_code == 130
    return place


def run(place: Path, **more: Any) -> job.JobResult:
    changes = {"write.path": str(place / "out")}
    text = (place / "spec.yaml").read_text().replace("./data", str(place / "data"))
    (place / "now.yaml").write_text(text)
    return job.run_job(place / "now.yaml", changes, **more)


@pytest.mark.parametrize("kind", CHANGES)
def test_a_changed_job_is_refused(
    interrupted: Path, tmp_path: Path, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    place = tmp_path / "place"
    shutil.copytree(interrupted, place)
    before = {p.name: p.read_bytes() for p in (place / "out").iterdir()}
    change, said = CHANGES[kind]
    more = change(place)
    more = more if isinstance(more, dict) else {}
    if (package := more.pop("version", None)) is not None:
        known = job._version
        monkeypatch.setattr(job, "_version", lambda name: "0.0.1" if name == package else known(name))
    with pytest.raises(JobError, match=said) as refused:
        run(place, **more)
    assert "fresh" in str(refused.value) or "choose another path" in str(refused.value)
    assert {p.name: p.read_bytes() for p in (place / "out").iterdir()} == before


def test_parquet_depends_on_pyarrow(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("pyarrow")
    make_sample_data(tmp_path / "made", 8)
    (tmp_path / "made" / "train").rename(tmp_path / "data")
    (tmp_path / "spec.yaml").write_text(SPEC.replace("tfrecord", "parquet"))
    assert run(tmp_path).exit_code == 0
    known = job._version
    monkeypatch.setattr(job, "_version", lambda name: "0.0.1" if name == "pyarrow" else known(name))
    with pytest.raises(JobError, match=r'versions\.pyarrow: was ".*", now "0\.0\.1"'):
        run(tmp_path)


def test_what_decides_nothing_may_change(interrupted: Path, tmp_path: Path) -> None:
    """Threads, batches, queues, the budget of errors, the place of the data: the job goes on."""
    place = tmp_path / "moved"
    shutil.copytree(interrupted, place)
    for old, new in (("batch_size: 4, num_threads: 2", "batch_size: 7, num_threads: 1, prefetch_queue_depth: 3"),
                     ("policy: skip", "policy: skip, max_errors: 5")):  # fmt: skip
        spec(old, new)(place)
    result = run(place)
    assert result.exit_code == 0, result.message
    assert result.report["resumed_from"] > 0


def test_twenty_kinds() -> None:
    assert len(CHANGES) >= 20
