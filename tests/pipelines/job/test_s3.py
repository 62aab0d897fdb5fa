"""Data behind s3:// against a server that speaks S3's protocol: moto's, where it and s3fs are installed, or the one at
AWS_ENDPOINT_URL with DALI_RUN_TEST_S3=1. Kills included: what is in the bucket ends as what is in a folder.
"""

from __future__ import annotations

import importlib.util
import json
import os
import signal
import socket
import subprocess
import sys
import time
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from dali_run.pipelines.tools.sample_data import make_sample_data
from tests.kit.faulty_proxy import FaultyProxy
from tests.kit.jobs.held import held
from tests.kit.jobs.small_spec import small_spec

ROOT = Path(__file__).parents[3]
pytest.importorskip("s3fs", reason="needs s3fs")
if os.environ.get("DALI_RUN_TEST_S3") != "1" and importlib.util.find_spec("moto") is None:
    pytest.skip("needs moto[server], or DALI_RUN_TEST_S3=1 and AWS_ENDPOINT_URL", allow_module_level=True)

COMMAND = (sys.executable, "-m", "dali_run.cli.main")


@pytest.fixture(scope="module")
def endpoint() -> Iterator[str]:
    if os.environ.get("DALI_RUN_TEST_S3") == "1":
        yield os.environ["AWS_ENDPOINT_URL"]
        return
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    log = subprocess.DEVNULL
    with subprocess.Popen([sys.executable, "-m", "moto.server", "-p", str(port)], stdout=log, stderr=log) as server:
        try:
            for _ in range(600):
                with socket.socket() as probe:
                    if probe.connect_ex(("127.0.0.1", port)) == 0:
                        break
                assert server.poll() is None, "moto's server does not start"
                time.sleep(0.1)
            yield f"http://127.0.0.1:{port}"
        finally:
            server.kill()


@pytest.fixture
def bucket(endpoint: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """A new bucket; commands find the server by their environment."""
    import s3fs

    settings = {"AWS_ENDPOINT_URL": endpoint, "AWS_DEFAULT_REGION": "us-east-1", "AWS_EC2_METADATA_DISABLED": "true"}
    for name, value in settings.items():
        monkeypatch.setenv(name, value)
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.setenv(name, os.environ.get(name, "testing"))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")]))
    s3fs.S3FileSystem.clear_instance_cache()
    name = f"dali-run-{uuid.uuid4().hex}"
    s3fs.S3FileSystem().mkdir(name)
    return f"s3://{name}"


@pytest.fixture(scope="module")
def pictures(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("s3")
    make_sample_data(folder, 60)
    for path in sorted((folder / "train").rglob("*.jpg"))[::10]:
        path.write_bytes(path.read_bytes()[:200])
    return folder / "train"


def start(*arguments: str, env: dict[str, str] | None = None) -> subprocess.Popen[str]:
    return subprocess.Popen([*COMMAND, *arguments], text=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=env)


def run(*arguments: str, code: int = 0) -> str:
    with start(*arguments) as process:
        out, err = process.communicate()
    assert process.returncode == code, err
    assert "Traceback" not in err
    return out


def told(name: str) -> bool:
    return name.startswith("report") or name.endswith(".lock")


def in_bucket(url: str) -> dict[str, bytes]:
    import s3fs

    s3fs.S3FileSystem.clear_instance_cache()
    store, root = s3fs.S3FileSystem(), url.removeprefix("s3://")
    return {p[len(root) + 1 :]: store.cat_file(p) for p in store.find(root) if not told(p.rpartition("/")[2])}


def in_store(url: str) -> bool:
    import s3fs

    store = s3fs.S3FileSystem()
    store.invalidate_cache()
    return bool(store.exists(url))


def listed(url: str) -> int:
    """Shards that the journal in the store tells of."""
    import s3fs

    s3fs.S3FileSystem.clear_instance_cache()
    try:
        return int(s3fs.S3FileSystem().cat_file(f"{url}/journal.jsonl").count(b'"positions":'))
    except FileNotFoundError:
        return 0


def in_folder(root: Path) -> dict[str, bytes]:
    return {p.relative_to(root).as_posix(): p.read_bytes() for p in root.rglob("*") if p.is_file() and not told(p.name)}


def upload(folder: Path, url: str) -> str:
    import s3fs

    s3fs.S3FileSystem().put(str(folder) + "/", url.removeprefix("s3://") + "/", recursive=True)
    return url


def spec(place: Path, **changes: Any) -> str:
    path = place / "spec.yaml"
    path.write_text(small_spec(**changes))
    return str(path)


def test_conversions_from_bucket_to_bucket(pictures: Path, bucket: str, tmp_path: Path) -> None:
    upload(pictures, f"{bucket}/data")
    to = ["--samples", "7", "--quiet"]
    for k, kind in enumerate(("tfrecord", "webdataset", "lmdb", "recordio", "files")):
        source = (str(pictures), f"{bucket}/data") if k == 0 else (str(tmp_path / "tfrecord"), f"{bucket}/tfrecord")
        run("convert", source[0], str(tmp_path / kind), "--to", kind, *to)
        run("convert", source[1], f"{bucket}/{kind}", "--to", kind, *to)
        skip = {"inputs.gz", "journal.jsonl", "manifest.json"}  # they tell which source it was, and when
        here, there = in_folder(tmp_path / kind), in_bucket(f"{bucket}/{kind}")
        assert here.keys() == there.keys()
        if kind != "files":  # listings name the source, too
            assert {n: d for n, d in here.items() if n not in skip} == {n: d for n, d in there.items() if n not in skip}
        assert "verified" in run("verify", f"{bucket}/{kind}")
    assert "wrote" in run("convert", f"{bucket}/data", str(tmp_path / "back"), "--to", "tfrecord", "--samples", "7")
    assert "complete already" in run("convert", f"{bucket}/data", f"{bucket}/tfrecord", "--to", "tfrecord", *to[:2])
    assert run("inspect", f"{bucket}/tfrecord", "-n", "2").count(".tfrecord") >= 2


def test_killed_and_run_again(pictures: Path, bucket: str, tmp_path: Path) -> None:
    """kill -9 while a shard is to be published, with staging kept and lost: the same bytes, and nothing is left."""
    data = upload(pictures, f"{bucket}/data")
    run("run", spec(tmp_path, data=data, out=f"{bucket}/expected"), "--quiet", code=3)
    expected = in_bucket(f"{bucket}/expected")
    file = spec(tmp_path, data=data, out=f"{bucket}/out")
    for k in range(1, 4):
        folder = tmp_path / str(k)
        folder.mkdir()
        with start("run", file, "--quiet", env=held(folder, k)[0]) as process:
            while listed(f"{bucket}/out") < k:
                assert process.poll() is None, process.communicate()[1]
                time.sleep(0.05)
            process.send_signal(signal.SIGKILL)
        assert listed(f"{bucket}/out") == k
        if k % 2:
            subprocess.run(["rm", "-rf", str(tmp_path / "cache")], check=True)
    run("run", file, "--quiet", code=3)
    assert in_bucket(f"{bucket}/out") == expected
    assert "verified" in run("verify", f"{bucket}/out")
    assert not [n for n in in_bucket(bucket) if ".tmp" in n]


def test_parts_of_one_data_set(pictures: Path, bucket: str, tmp_path: Path) -> None:
    data = upload(pictures, f"{bucket}/data")
    run("run", spec(tmp_path, data=data, out=f"{bucket}/expected"), "--quiet", code=3)
    file = spec(tmp_path, data=data, out=f"{bucket}/out")
    parts = [start("run", file, "--quiet", "--num-shards", "3", "--shard-id", str(i)) for i in range(3)]
    for part in parts:
        err = part.communicate()[1]
        assert part.returncode in (0, 3), err
    run("merge", f"{bucket}/out")
    shards = {n: d for n, d in in_bucket(f"{bucket}/expected").items() if n.endswith(".tar") or n == "rejects.jsonl"}
    assert {n: in_bucket(f"{bucket}/out").get(n) for n in shards} == shards
    assert "verified" in run("verify", f"{bucket}/out")


def test_a_second_job_is_refused_and_a_dead_one_is_no_obstacle(pictures: Path, bucket: str, tmp_path: Path) -> None:
    file = spec(tmp_path, data=pictures, out=f"{bucket}/out")
    with start("run", file, "--quiet") as first:
        while not in_store(f"{bucket}/out/.dali-run.lock") and first.poll() is None:
            time.sleep(0.05)
        first.send_signal(signal.SIGSTOP)
        assert first.poll() is None
        with start("run", file, "--quiet") as second:
            assert "is being written by" in second.communicate()[1]
        assert second.returncode == 1
        first.send_signal(signal.SIGKILL)
    run("run", file, "--quiet", code=3)
    assert "verified" in run("verify", f"{bucket}/out")


def test_what_is_not_there_is_said(bucket: str, tmp_path: Path) -> None:
    for source in (f"{bucket}/nowhere", "s3://dali-run-no-such-bucket/data"):
        with start("convert", source, str(tmp_path / "out"), "--to", "tfrecord") as process:
            err = process.communicate()[1]
        assert process.returncode in (1, 2)
        assert source.removeprefix("s3://").split("/")[0] in err
        assert "Traceback" not in err


REPEATED = """
import json, sys
from dali_run.ops.errors import DaliRunError
from dali_run.pipelines.job.run import run_job
for k in range(60):
    try:
        result = run_job(sys.argv[1])
        code, said = result.exit_code, result.message
    except DaliRunError as e:
        code, said = 1, str(e)
    print(json.dumps([code, said]), flush=True)
    if code in (0, 3):
        break
"""


@pytest.mark.parametrize("every", [40, 8])
def test_a_server_that_fails_stalls_truncates_and_reorders(
    pictures: Path, bucket: str, tmp_path: Path, every: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One request in 40, and in 8, meets a fault, beyond what the client repeats by itself: the same command goes on
    until it is done, with the bytes of a good day; every file is in the output or in the reject log."""
    data = upload(pictures, f"{bucket}/data")
    run("run", spec(tmp_path, data=data, out=f"{bucket}/expected"), "--quiet", code=3)
    expected = in_bucket(f"{bucket}/expected")
    file = spec(tmp_path, data=data, out=f"{bucket}/out")
    endpoint = os.environ["AWS_ENDPOINT_URL"]
    with FaultyProxy(endpoint, every, seed=every) as proxy:
        done = subprocess.run(
            [sys.executable, "-c", REPEATED, file], text=True, capture_output=True, check=False, timeout=900,
            env={**os.environ, "AWS_ENDPOINT_URL": proxy.url, "AWS_MAX_ATTEMPTS": "2"},
        )  # fmt: skip
        faults = sum(proxy.faults.values())
    assert done.returncode == 0, done.stderr[-2000:]
    runs = [json.loads(line) for line in done.stdout.splitlines()]
    assert runs[-1][0] == 3, runs[-3:]
    assert all(code in (1, 3) and "internal" not in said for code, said in runs), runs
    assert faults > 3
    found = in_bucket(f"{bucket}/out")
    rows = [json.loads(line) for line in found["rejects.jsonl"].splitlines()]
    lost = [r for r in rows if r["code"] == "read_failed"]
    verdict = run("verify", f"{bucket}/out")
    assert "verified" in verdict
    if not lost:  # else an input could not be read however often the client tried: it is named, and can be tried again
        assert {n: d for n, d in found.items() if n != "journal.jsonl"} == {
            n: d for n, d in expected.items() if n != "journal.jsonl"
        }
    assert int(verdict.split(" sample")[0].rpartition(" ")[2].replace(",", "")) + len(rows) == len(
        list(pictures.rglob("*.jpg"))
    )
