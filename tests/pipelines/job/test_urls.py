"""Inputs and outputs behind URLs: the same samples and shards as in folders, through kills; and no network without."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import textwrap
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import fsspec
import pytest
from fsspec.implementations.local import LocalFileSystem

from dali_run.cli import main as cli
from dali_run.ops.errors import JobError, SpecError
from dali_run.ops.storage.urls import Store, is_url, version_of
from dali_run.pipelines.job.convert import ConvertOptions, convert
from dali_run.pipelines.job.retry import retry_failed
from dali_run.pipelines.job.run import JobResult, run_job
from dali_run.pipelines.tools.datasets import inspect_data
from dali_run.pipelines.tools.sample_data import make_sample_data
from dali_run.readers.fetch import remote
from dali_run.writers.shards.mirror import Mirror, staging_folder
from dali_run.writers.shards.verify import verify
from tests.kit.jobs.faults import ended_at
from tests.kit.writers import PARQUET

ROOT = Path(__file__).parents[3]
SPEC = """\
version: 1
name: small
vars: {data: "", out: "", writer: webdataset}
pipeline: {batch_size: 5, num_threads: 2, device: cpu, seed: 3}
graph:
  - {op: readers.file, name: Reader, file_root: "${data}", random_shuffle: true, out: [jpegs, labels]}
  - {op: decoders.image_random_crop, in: jpegs, out: images}
  - {op: resize, in: images, size: [24, 24], out: images}
outputs: {image: images, label: labels}
write: {writer: "${writer}", path: "${out}", shard: {samples: 6}, fields: {image: {encode: png}, label: {}}}
on_error: {policy: skip}
"""


class Disk(LocalFileSystem):
    """A store that survives processes, and is none of those where a put is atomic."""

    protocol = "disk"

    @classmethod
    def _strip_protocol(cls, path: Any) -> Any:
        path = path.removeprefix("disk://") if isinstance(path, str) else path
        return super()._strip_protocol(path)


fsspec.register_implementation("disk", Disk, clobber=True)


@pytest.fixture(scope="module")
def pictures(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """20 pictures in class folders, one of them damaged."""
    folder = tmp_path_factory.mktemp("urls") / "data"
    make_sample_data(folder, 26)
    victim = sorted((folder / "train").rglob("*.jpg"))[7]
    victim.write_bytes(victim.read_bytes()[:200])
    return folder / "train"


@pytest.fixture(autouse=True)
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A folder with a spec; caches and staging in it; an empty store."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setattr(os, "fsync", lambda fd: None)  # a killed process loses nothing that was written
    (tmp_path / "spec.yaml").write_text(SPEC)
    yield tmp_path
    memory = fsspec.filesystem("memory")
    memory.store.clear()
    memory.pseudo_dirs[:] = [""]


def upload(folder: Path, url: str) -> str:
    store = Store(url)
    for path in sorted(p for p in folder.rglob("*") if p.is_file()):
        store.put(str(path), path.relative_to(folder).as_posix())
    return url


def run(place: Path, data: Path | str, out: Path | str, **more: Any) -> JobResult:
    changes = {"data": str(data), "out": str(out), **more.pop("changes", {})}
    return run_job(place / "spec.yaml", changes, **more)


def in_store(url: str) -> dict[str, bytes]:
    store = Store(url)
    return {n: store.read(n) for n in store.files() if not n.startswith("report")}


def in_folder(root: Path) -> dict[str, bytes]:
    return {p.relative_to(root).as_posix(): p.read_bytes() for p in sorted(root.rglob("*"))
            if p.is_file() and not p.name.startswith("report")}  # fmt: skip


def test_what_is_a_url() -> None:
    assert is_url("s3://bucket/x")
    assert is_url("memory://x")
    assert not any(is_url(p) for p in ("/a/b", "a:b", "file:///a", "C:\\x", "a//b", "", Path("s3://b")))
    with pytest.raises(SpecError, match="nosuch"):
        Store("nosuch://bucket/x")


# -- outputs ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("writer", ["tfrecord", "webdataset", "lmdb", "numpy", "files", "recordio", PARQUET])
def test_a_store_gets_what_a_folder_gets(place: Path, pictures: Path, writer: str) -> None:
    changes: dict[str, Any] = {"writer": writer}
    if writer == "numpy":
        changes["write.fields"] = {"image": {"encode": "raw"}, "label": {}}
    local = run(place, pictures, place / "out", changes=changes)
    there = run(place, pictures, "memory://bucket/out", changes=changes)
    assert (there.exit_code, there.path) == (local.exit_code, "memory://bucket/out")
    assert "memory://bucket/out" in there.message
    assert in_store("memory://bucket/out") == in_folder(place / "out")
    assert Store("memory://bucket/out").info("report.json") is not None
    staging = staging_folder("memory://bucket/out", None)
    assert [p.name for p in staging.iterdir()] == []
    assert verify("memory://bucket/out").sound
    assert "complete already" in run(place, pictures, "memory://bucket/out/", changes=changes).message


def test_file_urls_are_folders(place: Path, pictures: Path) -> None:
    run(place, pictures, place / "a")
    assert run(place, f"file://{pictures}", f"file://{place}/b").exit_code == 3
    assert in_folder(place / "a") == in_folder(place / "b")
    assert verify(f"file://{place}/b").sound


def test_verify_finds_a_flipped_bit_and_a_missing_shard(place: Path, pictures: Path) -> None:
    run(place, pictures, "memory://bucket/out")
    store = fsspec.filesystem("memory")
    name = next(n for n in Store("memory://bucket/out").files() if n.endswith("00001-of-00004.tar"))
    data = bytearray(store.cat_file(f"/bucket/out/{name}"))
    data[1000] ^= 1
    store.pipe_file(f"/bucket/out/{name}", bytes(data))
    assert "its content is not what was written" in str(verify("memory://bucket/out").problems[0])
    store.rm_file(f"/bucket/out/{name}")
    assert "cannot be read" in str(verify("memory://bucket/out").problems[0])
    store.rm_file("/bucket/out/manifest.json")
    with pytest.raises(JobError, match="was written before but is missing"):
        run(place, pictures, "memory://bucket/out")


@pytest.mark.parametrize("local_left", [True, False])
def test_killed_at_any_step_of_an_upload(place: Path, pictures: Path, local_left: bool) -> None:
    """Another machine (or this one, with what was left in its staging folder) ends in the same bytes."""
    run(place, pictures, f"disk://{place}/expected")
    expected = in_folder(place / "expected")
    operations = 0
    for at in range(1 if local_left else 4, 400, 17):
        url = f"disk://{place}/killed-{at}"
        operations = at
        if not killed(place, pictures, url, at):
            break
        complete_so_far(place / f"killed-{at}", expected)
        if not local_left:
            shutil.rmtree(place / "cache", ignore_errors=True)
        assert run(place, pictures, url).exit_code == 3
        assert in_folder(place / f"killed-{at}") == expected, f"after a kill at operation {at}"
        shutil.rmtree(place / f"killed-{at}")
    assert operations > 60


def killed(place: Path, pictures: Path, url: str, at: int) -> bool:
    code = ended_at(at, lambda: 0 if run(place, pictures, url).exit_code == 3 else 1)
    assert code in (0, 77)
    return code == 77


def complete_so_far(root: Path, expected: dict[str, bytes]) -> None:
    """All that the journal in the store tells of is there, whole."""
    found = in_folder(root) if root.exists() else {}
    for line in found.get("journal.jsonl", b"").splitlines()[1:]:
        for info in json.loads(line).get("files", ()):
            assert found[info["name"]] == expected[info["name"]]
    if "manifest.json" in found:
        assert {k: v for k, v in found.items() if not k.startswith(".")} == expected


def test_fresh_removes_what_was_there(place: Path, pictures: Path) -> None:
    run(place, pictures, "memory://bucket/out")
    expected = in_store("memory://bucket/out")
    with pytest.raises(JobError, match="memory://bucket/out holds the output of another job"):
        run(place, pictures, "memory://bucket/out", changes={"pipeline.seed": 4})
    run(place, pictures, "memory://bucket/out", changes={"write.shard.samples": 3}, fresh=True)
    run(place, pictures, "memory://bucket/out", fresh=True)
    assert in_store("memory://bucket/out") == expected


def test_files_of_others_are_left_alone(place: Path, pictures: Path) -> None:
    upload(pictures, "memory://bucket/out")
    Store("memory://bucket/out").put(str(place / "spec.yaml"), "small-00000-of-00004.tar")
    with pytest.raises(JobError, match="already holds small-00000-of-00004"):
        run(place, pictures, "memory://bucket/out")


def test_a_second_job_is_kept_out(place: Path, pictures: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    url = "memory://bucket/out"
    told = []

    def meanwhile(state: Any) -> None:
        if state.done == 5:
            monkeypatch.setenv("XDG_CACHE_HOME", str(place / "another machine's"))
            with pytest.raises(JobError) as caught:
                run(place, pictures, url)
            told.append(str(caught.value))
            monkeypatch.setenv("XDG_CACHE_HOME", str(place / "cache"))

    assert run(place, pictures, url, progress=meanwhile).exit_code == 3
    assert "memory://bucket/out is being written by process" in told[0]
    assert "remove memory://bucket/out/.dali-run.lock" in told[0]


def test_the_lock_of_another_machine_ends_with_its_age(place: Path, pictures: Path) -> None:
    url = "memory://bucket/out"
    lock = json.dumps({"host": "elsewhere", "boot": "x", "pid": 1, "started": 1, "token": "t"}).encode()
    store = fsspec.filesystem("memory")
    store.pipe_file("/bucket/out/.dali-run.lock", lock)
    with pytest.raises(JobError, match="process 1 on elsewhere"):
        run(place, pictures, url)
    old = store.store["/bucket/out/.dali-run.lock"]
    old.modified = old.modified.replace(year=old.modified.year - 1)
    assert run(place, pictures, url).exit_code == 3


def test_who_lost_the_output_stops(place: Path, pictures: Path) -> None:
    """Two that began at the same moment: one finds out, before it tells of a shard."""
    url = "memory://bucket/out"

    def steal(state: Any) -> None:
        if state.done == 5:
            fsspec.filesystem("memory").pipe_file("/bucket/out/.dali-run.lock", b'{"host": "elsewhere", "pid": 2}')

    result = run(place, pictures, url, progress=steal)
    assert result.exit_code == 1
    assert "process 2 on elsewhere has taken the output over" in result.message
    assert Store(url).info("manifest.json") is None


def test_parts_additions_and_retries(place: Path, pictures: Path) -> None:
    data, url = place / "data", "memory://bucket/out"
    shutil.copytree(pictures, data)
    shutil.copytree(data, place / "whole")
    held = sorted(data.rglob("*.jpg"))[1::5]
    for path in held:
        path.unlink()
    for i in range(2):
        assert run(place, data, url, part=(i, 2)).exit_code == (3 if i == 0 else 0)
    assert verify(url).sound, verify(url).problems
    for path in held:
        shutil.copy2(place / "whole" / path.relative_to(data), path)
    with pytest.raises(JobError, match=r"memory://bucket/out holds .*\n.*5 added"):
        run(place, data, url)
    assert run(place, data, url, append=True).exit_code == 0
    victim = sorted(data.rglob("*.jpg"))[7]
    shutil.copy(sorted(data.rglob("*.jpg"))[8], victim)
    assert retry_failed(url).exit_code == 0
    verdict = verify(url)
    assert verdict.sound, verdict.problems
    assert (verdict.samples, verdict.rejects) == (len(list(data.rglob("*.jpg"))), 0)
    assert "has no rejects" in retry_failed(url).message


def test_a_failing_store_ends_the_job_resumably(place: Path, pictures: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    url = "memory://bucket/out"
    put = Store.put
    fail = [7]

    def failing(self: Store, path: str, name: str) -> None:
        fail[0] -= 1
        if fail[0] == 0:
            raise JobError(f"{self.url}/{name} cannot be written: quota")
        put(self, path, name)

    monkeypatch.setattr(Store, "put", failing)
    result = run(place, pictures, url)
    assert (result.exit_code, "quota" in result.message) == (1, True)
    assert run(place, pictures, url).exit_code == 3
    run(place, pictures, place / "out")
    assert in_store(url) == in_folder(place / "out")


# -- inputs -----------------------------------------------------------------------------------------------------------


def test_files_behind_a_url_are_the_same_samples(place: Path, pictures: Path) -> None:
    url = upload(pictures, "memory://bucket/train")
    run(place, pictures, place / "a")
    assert run(place, url, place / "b").exit_code == 3
    a, b = in_folder(place / "a"), in_folder(place / "b")
    tars = {k: v for k, v in a.items() if k.endswith(".tar")}
    assert {k: v for k, v in b.items() if k.endswith(".tar")} == tars
    row = json.loads(b["rejects.jsonl"])
    assert row["source"].startswith("memory://bucket/train/")
    assert row["key"] == json.loads(a["rejects.jsonl"])["key"]
    store = fsspec.filesystem("memory")
    path = next(p for p in store.find("/bucket/train") if p.endswith(".jpg"))
    store.pipe_file(path, store.cat_file(path))
    with pytest.raises(JobError, match=r"1 edited: \S+ \(modified\)"):
        run(place, url, place / "b")


def test_what_is_lost_while_the_job_runs_costs_a_line(place: Path, pictures: Path) -> None:
    url = upload(pictures, "memory://bucket/train")
    gone = sorted(Store(url).files())[3]

    def remove(state: Any) -> None:
        if state.done == 0:
            Store(url).remove(gone)

    assert run(place, url, place / "out", changes={"pipeline.prefetch_queue_depth": 1}, progress=remove).exit_code == 3
    rows = [json.loads(line) for line in (place / "out/rejects.jsonl").read_text().splitlines()]
    assert {r["code"] for r in rows if r["key"] == gone} <= {"read_failed"}
    with pytest.raises(JobError, match="there is no such folder"):
        run(place, "memory://bucket/nowhere", place / "other")


@pytest.mark.parametrize("kind", ["tfrecord", "webdataset", "lmdb", "recordio", "files", PARQUET])
def test_containers_behind_a_url_are_the_same_samples(place: Path, pictures: Path, kind: str) -> None:
    convert(pictures, place / "shards", ConvertOptions(kind, samples=6))
    url = upload(place / "shards", "memory://bucket/shards")
    assert convert(place / "shards", place / "a", ConvertOptions("files")).exit_code == 0
    assert convert(url, place / "b", ConvertOptions("files")).exit_code == 0
    a, b = (in_folder(place / n) for n in "ab")
    jpegs = {k: v for k, v in a.items() if k.endswith((".jpg", ".jpeg", ".bin"))}
    assert jpegs
    assert {k: b.get(k) for k in jpegs} == jpegs
    assert convert(url, "memory://bucket/again", ConvertOptions(kind, samples=6)).exit_code == 0
    assert verify("memory://bucket/again").sound
    told = inspect_data(url, 2)
    assert len(told["samples"]) == 2
    assert told["target"] == url


@pytest.mark.parametrize(
    ("text", "nbytes"),
    [("", 100 << 30), ("2500", 2500), ("7B", 7), ("3k", 3000), ("20M", 20 * 10**6), ("1.5GB", 15 * 10**8),
     ("2t", 2 * 10**12)],
)  # fmt: skip
def test_sizes_of_the_cache_have_units(text: str, nbytes: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DALI_RUN_CACHE_SIZE", text)
    assert remote.cache_limit() == nbytes
    for wrong in ("G", "20X", "many"):
        monkeypatch.setenv("DALI_RUN_CACHE_SIZE", wrong)
        with pytest.raises(SpecError, match=f"'{wrong.upper()}' is not a size; use 500G"):
            remote.cache_limit()


def test_the_cache_is_bounded_and_knows_versions(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store = Store("memory://bucket")
    for name in "abc":
        (place / name).write_bytes(name.encode() * 1000)
        store.put(str(place / name), name)
    monkeypatch.setenv("DALI_RUN_CACHE_SIZE", "2500")
    first = Path(remote.local_copy("memory://bucket/a"))
    assert first.read_bytes() == b"a" * 1000
    assert remote.local_copy("memory://bucket/a") == str(first)
    remote._in_use.clear()
    os.utime(first, ns=(0, first.stat().st_mtime_ns))
    second = Path(remote.local_copy("memory://bucket/b"))
    assert first.exists()
    remote._in_use.clear()
    os.utime(first, ns=(0, first.stat().st_mtime_ns))
    third = Path(remote.local_copy("memory://bucket/c"))
    assert (first.exists(), second.exists(), third.exists()) == (False, True, True)
    remote._in_use.update({second: 0, third: 0})
    with pytest.raises(JobError, match=r"do not fit into the cache .* DALI_RUN_CACHE_SIZE"):
        remote.local_copy("memory://bucket/a")
    remote._in_use.clear()
    (place / "c").write_bytes(b"d" * 1000)
    store.put(str(place / "c"), "c")
    assert Path(remote.local_copy("memory://bucket/c")).read_bytes() == b"d" * 1000
    monkeypatch.setenv("DALI_RUN_CACHE_SIZE", "much")
    with pytest.raises(SpecError, match="is not a size"):
        remote.local_copy("memory://bucket/b")
    assert version_of({"ETag": "x", "size": 1}) != version_of({"ETag": "y", "size": 1})


def test_commands_take_urls(place: Path, pictures: Path, capsys: pytest.CaptureFixture[str]) -> None:
    url = upload(pictures, "memory://bucket/train")
    assert cli.main(["convert", url, "memory://bucket/out", "--to", "webdataset", "--samples", "7", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["path"] == "memory://bucket/out"
    assert cli.main(["verify", "memory://bucket/out"]) == 0
    assert cli.main(["inspect", "memory://bucket/out", "--json"]) == 0
    assert cli.main(["retry-failed", "memory://bucket/out"]) == 0
    assert cli.main(["convert", url, "memory://bucket/other/deep", "--to", "files"]) == 0
    capsys.readouterr()
    assert cli.main(["verify", "memory://bucket/other"]) == 1
    assert "verify memory://bucket/other/deep\n" in " ".join(capsys.readouterr().err.split()) + "\n"
    assert cli.main(["verify", "memory://bucket/other/deep"]) == 0
    assert cli.main(["convert", url, str(place / "other" / "deep"), "--to", "files"]) == 0
    capsys.readouterr()
    assert cli.main(["verify", str(place / "other")]) == 1
    assert f"verify {place}/other/deep" in "".join(capsys.readouterr().err.splitlines())
    assert cli.main(["verify", "memory://bucket/nothing"]) == 1
    assert cli.main(["inspect", "memory://bucket/nothing"]) == 2
    assert "no such file" in capsys.readouterr().err


def test_a_mirror_refuses_to_lead_out_of_its_folder(place: Path) -> None:
    """Names in a store are somebody else's."""
    fsspec.filesystem("memory").pipe_file("/bucket/out/../journal.jsonl", b"x")
    (place / "here").mkdir()
    Mirror("memory://bucket/out", place / "here").fetch()
    assert not (place / "journal.jsonl").exists()


def test_a_local_job_opens_no_socket_and_imports_no_fsspec(place: Path, pictures: Path) -> None:
    script = textwrap.dedent(
        """
        import os, sys
        out, events = sys.argv[3], []
        NETWORK = ("socket.connect", "socket.bind", "socket.getaddrinfo", "socket.gethostbyname", "socket.sendto",
                   "urllib.Request", "http.client.connect", "ftplib.connect", "smtplib.connect")
        SHELL = ("os.system", "os.exec", "os.posix_spawn", "pty.spawn", "ctypes.dlsym/system")
        allowed = [os.path.realpath(p) for p in (out, sys.argv[4], "/tmp", "/dev", "/proc")]

        def hook(event, args):
            if event in NETWORK or event in SHELL:
                events.append((event, repr(args)))
            elif event == "open" and isinstance(args[0], str) and isinstance(args[2], int):
                if args[2] & (os.O_WRONLY | os.O_RDWR | os.O_CREAT):
                    path = os.path.realpath(args[0])
                    if not path.startswith(tuple(allowed)) and "__pycache__" not in path:
                        events.append((event, path))

        sys.addaudithook(hook)
        from dali_run.cli.main import main
        code = main(["run", sys.argv[1], "--set", "data=" + sys.argv[2], "--set", "out=" + out, "--quiet"])
        assert code == 3, code
        assert main(["verify", out]) == 0
        assert "fsspec" not in sys.modules
        assert not events, events
        """
    )
    done = subprocess.run(
        [sys.executable, "-c", script, str(place / "spec.yaml"), str(pictures), str(place / "out"), str(place)],
        cwd=ROOT, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-2000:]


@pytest.mark.parametrize("kind", ["classes", "flat", "tfrecord", "webdataset", "lmdb", "files"])
def test_a_first_spec_of_data_behind_a_url_runs(place: Path, pictures: Path, kind: str) -> None:
    source = place / "shards"
    if kind == "classes":
        shutil.copytree(pictures, source)
    elif kind == "flat":
        source.mkdir()
        for k, path in enumerate(sorted(pictures.rglob("*.jpg"))[:5]):
            shutil.copy(path, source / f"{k}.jpg")
    else:
        convert(pictures, source, ConvertOptions(kind, samples=6))
    url = upload(source, f"memory://bucket/{kind}/shards")
    spec = place / "first.yaml"
    assert (
        cli.main(["init", url, "-o", str(spec), "--task", "keep", "--to", "tfrecord", "--out", str(place / "out")]) == 0
    )
    result = run_job(spec)
    assert result.exit_code == 0, result.message
    count = 5 if kind == "flat" else len(list(pictures.rglob("*.jpg")))
    assert result.report["samples"]["written"] == count
    assert cli.main(["init", "memory://bucket/nowhere", "-o", str(place / "other.yaml")]) == 2
