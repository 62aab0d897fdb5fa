"""run --append: inputs that came later are added; nothing that was written before changes."""

from __future__ import annotations

import json
import os
import shutil
import signal
from pathlib import Path
from typing import Any

import pytest

from dali_run.ops.errors import JobError, SpecError
from dali_run.ops.storage.inventory import Inputs, compare
from dali_run.pipelines.engine.inputs import inventory_of
from dali_run.pipelines.job.convert import ConvertOptions, convert
from dali_run.pipelines.job.retry import retry_failed
from dali_run.pipelines.job.run import JobResult, run_job
from dali_run.pipelines.tools.sample_data import make_sample_data
from dali_run.writers.bytes import files_io
from dali_run.writers.shards.verify import verify
from tests.kit.jobs.faults import ended_at
from tests.kit.jobs.read_back import members
from tests.kit.writers import PARQUET

SPEC = """\
version: 1
name: small
vars: {data: "", shuffle: "none", pixels: 24}
pipeline: {batch_size: 5, num_threads: 2, device: cpu, seed: 3}
graph:
  - {op: readers.file, name: Reader, file_root: "${data}", shuffle: "${shuffle}", out: [jpegs, labels]}
  - {op: decoders.image_random_crop, in: jpegs, out: images}
  - {op: resize, in: images, size: [24, 24], out: images}
outputs: {image: images, label: labels}
write: {writer: webdataset, path: ./out, shard: {samples: 4}, fields: {image: {encode: png}, label: {}}}
"""


@pytest.fixture(scope="module")
def pictures(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("append") / "data"
    make_sample_data(folder, 36)
    return folder / "train"


@pytest.fixture
def place(tmp_path: Path, pictures: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A spec, and a third of the pictures held back: they sort before, between and behind the others."""
    monkeypatch.setattr(os, "fsync", lambda fd: None)  # a killed process loses nothing that was written
    (tmp_path / "spec.yaml").write_text(SPEC)
    shutil.copytree(pictures, tmp_path / "data")
    for path in sorted((tmp_path / "data").rglob("*.jpg"))[::3]:
        hold = tmp_path / "later" / path.relative_to(tmp_path / "data")
        hold.parent.mkdir(parents=True, exist_ok=True)
        path.rename(hold)
    return tmp_path


def add(place: Path) -> None:
    shutil.copytree(place / "later", place / "data", dirs_exist_ok=True)


def run(place: Path, out: str = "out", **more: Any) -> JobResult:
    changes = {"data": str(place / "data"), "write.path": str(place / out), **more.pop("changes", {})}
    return run_job(place / "spec.yaml", changes, **more)


def content(out: Path) -> dict[str, bytes]:
    return {str(p.relative_to(out)): p.read_bytes() for p in sorted(out.rglob("*"))
            if p.is_file() and not p.name.startswith("report")}  # fmt: skip


def old_file(place: Path) -> Path:
    held = {p.relative_to(place / "later") for p in (place / "later").rglob("*.jpg")}
    return sorted(p for p in (place / "data").rglob("*.jpg") if p.relative_to(place / "data") not in held)[3]


@pytest.mark.parametrize("shuffle", ["none", "full", "window"])
def test_new_files_become_new_shards(place: Path, shuffle: str) -> None:
    changes = {"shuffle": shuffle}
    assert run(place, changes=changes).exit_code == 0
    before = content(place / "out")
    keys = list(members(place / "out"))
    add(place)
    result = run(place, append=True, changes=changes)
    assert result.exit_code == 0, result.message
    after = content(place / "out")
    assert {k: after[k] for k in before if k != "manifest.json"} == {
        k: v for k, v in before.items() if k != "manifest.json"
    }
    assert sorted(k for k in after if k.endswith(".tar") and k not in before) == [
        "small-append-001-00000-of-00003.tar",
        "small-append-001-00001-of-00003.tar",
        "small-append-001-00002-of-00003.tar",
    ]
    verdict = verify(place / "out")
    assert verdict.sound, verdict.problems
    manifest = json.loads(after["manifest.json"])
    assert (manifest["samples"], verdict.samples, manifest["positions"]) == (28, 28, [0, 28])
    assert manifest["shards"][-1]["positions"] == [26, 28]
    added = list(members(place / "out"))
    added = [k for k in added if k not in keys]
    wanted = sorted(str(p.relative_to(place / "later").with_suffix("")) for p in (place / "later").rglob("*.jpg"))
    assert sorted({k.rsplit(".", 1)[0] for k in added}) == wanted
    in_order = [k.rsplit(".", 1)[0] for k in added if k.endswith("png")]
    assert (in_order == wanted) == (shuffle == "none")  # shuffled among themselves
    for again in (True, False):
        assert "complete already (28 samples)" in run(place, append=again, changes=changes).message
    assert content(place / "out") == after


def test_killed_at_any_file_operation_while_adding(place: Path) -> None:
    run(place)
    shutil.copytree(place / "out", place / "first")
    add(place)
    run(place, append=True)
    expected = content(place / "out")
    operations = count_operations(place)
    assert operations > 40
    for at in range(1, operations + 1, 9):
        shutil.rmtree(place / "out")
        shutil.copytree(place / "first", place / "out")
        killed(place, at)
        assert run(place, append=True).exit_code == 0
        assert content(place / "out") == expected, f"after a kill at operation {at}"
    assert verify(place / "out").sound


def count_operations(place: Path) -> int:
    seen = [0]

    def count(operation: str, path: str) -> None:
        seen[0] += 1

    shutil.rmtree(place / "out")
    shutil.copytree(place / "first", place / "out")
    files_io.set_hook(count)
    try:
        run(place, append=True)
    finally:
        files_io.set_hook(None)
    return seen[0]


def killed(place: Path, at: int) -> None:
    """End a process that does run --append before its ``at``-th file operation."""
    assert ended_at(at, lambda: run(place, append=True).exit_code) == 77


def interrupt_after(shards: int) -> Any:
    def progress(state: Any) -> None:
        if state.done >= 4 * shards:
            raise KeyboardInterrupt

    return progress


def test_an_interrupted_job_takes_new_inputs_too(place: Path) -> None:
    run(place, out="expected", changes={"shuffle": "full"})
    assert run(place, changes={"shuffle": "full"}, progress=interrupt_after(2)).exit_code == 130
    add(place)
    with pytest.raises(JobError, match=r"inputs of Reader: 10 added: .*\n.*--append"):
        run(place, changes={"shuffle": "full"})
    for out in ("expected", "out"):
        assert run(place, out=out, append=True, changes={"shuffle": "full"}).exit_code == 0
    assert content(place / "out") == content(place / "expected")


def test_additions_follow_on_each_other_and_on_retries(place: Path) -> None:
    held = sorted((place / "later").rglob("*.jpg"))
    clean = {p: p.read_bytes() for p in held}
    held[0].write_bytes(b"no picture")
    first = place / "data" / held[0].relative_to(place / "later")
    victim = sorted((place / "data").rglob("*.jpg"))[4]
    good = victim.read_bytes()
    times = os.stat(victim)
    victim.write_bytes(good[:100])
    assert run(place).exit_code == 3
    for path in held[:4]:
        shutil.copy2(path, place / "data" / path.relative_to(place / "later"))
    result = run(place, append=True)
    assert result.exit_code == 3
    log = [json.loads(line) for line in (place / "out/rejects.jsonl").read_text().splitlines()]
    assert [r["position"] for r in log] == [4, 18]
    assert json.loads((place / "out/manifest.json").read_text())["rejects"] == 2
    assert verify(place / "out").sound, verify(place / "out").problems
    victim.write_bytes(good)
    first.write_bytes(clean[held[0]])
    os.utime(victim, ns=(times.st_atime_ns, times.st_mtime_ns))
    assert retry_failed(place / "out").exit_code == 0
    assert (place / "out/rejects.jsonl").read_text() == ""
    assert verify(place / "out").sound, verify(place / "out").problems
    for path in held[4:]:
        shutil.copy2(path, place / "data" / path.relative_to(place / "later"))
    with pytest.raises(JobError, match="edited"):  # the repaired ones are not what the job read
        run(place, append=True)


def test_a_second_addition(place: Path) -> None:
    run(place)
    held = sorted((place / "later").rglob("*.jpg"))
    for part in (held[5:], held[:5]):
        for path in part:
            shutil.copy2(path, place / "data" / path.relative_to(place / "later"))
        assert run(place, append=True).exit_code == 0
    manifest = json.loads((place / "out/manifest.json").read_text())
    assert (manifest["samples"], manifest["stages"]) == (28, 2)
    assert [a["positions"] for a in manifest["appended"]] == [[18, 23], [23, 28]]
    assert verify(place / "out").sound
    assert len(members(place / "out")) == 2 * 28


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda p: old_file(p).unlink(), r"inputs of Reader: 1 removed: \S+\.jpg"),
        (lambda p: os.utime(old_file(p)), r"1 edited: \S+\.jpg \(modified\)"),
        (lambda p: old_file(p).write_bytes(b"x"), r"1 edited: \S+ \(size, modified\)"),
        (lambda p: (p / "spec.yaml").write_text(SPEC.replace("seed: 3", "seed: 4")), r"identity\.seed: was 3, now 4"),
        (lambda p: (p / "spec.yaml").write_text(SPEC.replace("samples: 4", "samples: 5")), r"shard\.samples: was 4"),
    ],
)
@pytest.mark.parametrize("more", [True, False])
def test_nothing_but_additions(place: Path, change: Any, said: str, more: bool) -> None:
    run(place)
    before = content(place / "out")
    if more:
        add(place)
    change(place)
    with pytest.raises(JobError, match=said):
        run(place, append=True)
    assert content(place / "out") == before


def test_a_new_class_moves_the_labels_of_old_files(place: Path, pictures: Path) -> None:
    run(place)
    shutil.copytree(next(p for p in pictures.iterdir() if p.is_dir()), place / "data" / "aaaa")
    with pytest.raises(JobError, match=r"edited: .*\(label\)"):
        run(place, append=True)


def test_what_excludes_each_other(place: Path) -> None:
    with pytest.raises(SpecError, match="leave out --fresh"):
        run(place, append=True, fresh=True)
    with pytest.raises(SpecError, match="leave out --limit"):
        run(place, append=True, limit=3)
    run(place, limit=6)
    add(place)
    with pytest.raises(JobError, match="--limit"):
        run(place, append=True)


def test_added_to_what_parts_wrote(place: Path) -> None:
    run(place, out="expected")
    for i in (0, 1):
        run(place, part=(i, 2))
    add(place)
    with pytest.raises(JobError, match="without --num-shards"):
        run(place, part=(0, 2), append=True)
    for out in ("expected", "out"):
        assert run(place, out=out, append=True).exit_code == 0
        assert verify(place / out).sound, verify(place / out).problems
    assert members(place / "out") == members(place / "expected")
    assert "complete already" in run(place, part=(0, 2)).message
    for path in (place / "later").rglob("*.jpg"):
        (place / "data" / path.relative_to(place / "later")).unlink()
    assert run(place, part=(0, 2), fresh=True).exit_code == 0
    assert not list((place / "out").glob("*append*"))


def test_parts_can_be_retried(place: Path) -> None:
    victim = sorted((place / "data").rglob("*.jpg"))[13]
    good = victim.read_bytes()
    victim.write_bytes(b"no picture")
    for i in range(3):
        run(place, part=(i, 3))
    assert len((place / "out/rejects.jsonl").read_text().splitlines()) == 1
    (place / "unfinished").mkdir()
    with pytest.raises(JobError, match="not a finished output"):
        retry_failed(place / "unfinished")
    victim.write_bytes(good)
    assert retry_failed(place / "out").exit_code == 0
    assert verify(place / "out").sound, verify(place / "out").problems
    assert len(members(place / "out")) == 2 * 18


@pytest.mark.parametrize("to", ["tfrecord", "webdataset", "lmdb", "recordio", PARQUET])
def test_containers_grow_by_whole_files(place: Path, pictures: Path, to: str) -> None:
    source = place / "shards"
    convert(pictures, source, ConvertOptions(to, samples=5))
    for path in source.iterdir():
        if not path.name.startswith("data-"):
            path.unlink()  # with a manifest, a shard that is missing is refused
    (place / "held").mkdir()
    moved = sorted(p for p in source.iterdir() if "-00002-of" in p.name)
    for path in moved:
        path.rename(place / "held" / path.name)
    assert convert(source, place / "out", ConvertOptions(to, samples=4)).exit_code == 0
    for path in moved:
        (place / "held" / path.name).rename(path)
    with pytest.raises(JobError, match="1 added: data-00002-of"):
        convert(source, place / "out", ConvertOptions(to, samples=4))
    assert convert(source, place / "out", ConvertOptions(to, samples=4), append=True).exit_code == 0
    verdict = verify(place / "out")
    assert verdict.sound, verdict.problems
    assert verdict.samples == 28


def test_the_list_of_inputs_is_read_back_or_refused(place: Path) -> None:
    run(place)
    data = (place / "out/inputs.gz").read_bytes()
    inputs = Inputs.decode(data)
    assert inputs.encode() == data
    assert len(inputs.readers["Reader"]) == 18
    for bad in (b"", data[:-9], b"\x1f\x8b", data[:40] + b"x" + data[41:]):
        with pytest.raises(ValueError, match="not a list of inputs"):
            Inputs.decode(bad)
    add(place)
    (place / "out/inputs.gz").write_bytes(b"")
    with pytest.raises(JobError, match=r"inputs\.gz: is not a list of inputs"):
        run(place, append=True)


def test_a_really_killed_addition(place: Path) -> None:
    """SIGKILL in another process, at a moment of the journal's choosing."""
    run(place, out="expected")
    run(place)
    add(place)
    run(place, out="expected", append=True)
    pid = os.fork()
    if pid == 0:

        def die(operation: str, path: str) -> None:
            if operation == "fsync" and path.endswith("journal-append-001.jsonl") and os.stat(path).st_size > 1500:
                os.kill(os.getpid(), signal.SIGKILL)

        files_io.set_hook(die)
        try:
            run(place, append=True)
        finally:
            os._exit(1)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == -signal.SIGKILL
    assert run(place, append=True).exit_code == 0
    assert content(place / "out") == content(place / "expected")


def test_readers_of_others_need_not_know_of_pieces() -> None:
    class Source:
        """As it was before anyone asked for pieces."""

        def __len__(self) -> int:
            return 3

        def fingerprint(self) -> str:
            return "abc"

    pieces = inventory_of(Source())  # type: ignore[arg-type]
    assert (len(pieces), pieces.records.tolist()) == (1, [3])
    assert compare(pieces, pieces).edited == ()
