"""Several processes for one job: the bytes of one, whatever happens to them."""

from __future__ import annotations

import gc
import importlib
import json
import os
import random
import resource
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext, suppress
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from dali_run.ops.errors import JobError, SpecError
from dali_run.pipelines.fleet import driver, processes
from dali_run.pipelines.fleet.job_message import JobMessage, WorkerResources
from dali_run.pipelines.fleet.job_output import JobOutput
from dali_run.pipelines.fleet.processes import Processes
from dali_run.pipelines.fleet.run import run
from dali_run.pipelines.job.run import CLEAN, FAILED, INTERRUPTED, REJECTS, JobResult, Progress, run_job
from dali_run.writers.shards import manifest
from dali_run.writers.shards.verify import verify
from tests.kit.fake_cupy import faked
from tests.kit.jobs.held import held
from tests.kit.long import thinned

ROOT = Path(__file__).parents[3]
SPEC = """
version: 1
name: many
pipeline: {batch_size: 8, num_threads: 1, device: cpu, seed: 3}
graph:
  - {op: readers.file, file_root: IN, random_shuffle: true, out: [x, label]}
  - {op: decoders.image, in: x, out: x}
  - {op: resize, in: x, size: [16, 16], out: x}
outputs: {x: x, label: label}
write: {writer: tfrecord, path: OUT, shard: {samples: 5}, fields: {x: {encode: raw}, label: {}}}
on_error: {policy: skip, max_errors: 3}
"""


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("in")
    rng = np.random.default_rng(1)
    for i in range(120):
        (folder / "ab"[i % 2]).mkdir(exist_ok=True)
        Image.fromarray(rng.integers(0, 255, (24, 24, 3), np.uint8)).save(folder / "ab"[i % 2] / f"{i:03d}.png")
    (folder / "a" / "010.png").write_bytes(b"no picture")
    return folder


@pytest.fixture
def spec(data: Path, tmp_path: Path) -> Path:
    file = tmp_path / "spec.yaml"
    file.write_text(SPEC.replace("IN", str(data)).replace("OUT", str(tmp_path / "out")))
    return file


@pytest.fixture(scope="module")
def expected(data: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, bytes]:
    """The files that one process writes."""
    folder = tmp_path_factory.mktemp("one")
    file = folder / "spec.yaml"
    file.write_text(SPEC.replace("IN", str(data)).replace("OUT", str(folder / "out")))
    assert run_job(file).exit_code == REJECTS
    return contents(folder / "out")


def contents(folder: Path) -> dict[str, bytes]:
    """All files but the report, which tells times."""
    return {p.name: p.read_bytes() for p in folder.iterdir() if p.name != "report.json"}


def workers_of(parent: int) -> list[int]:
    """Processes below ``parent``'s nurseries: its workers."""
    found = parents()
    nurseries = children_of(parent)
    return [pid for pid, above in found.items() if above in nurseries]


def children_of(parent: int) -> set[int]:
    """Processes that ``parent`` has started."""
    return {pid for pid, above in parents().items() if above == parent}


def parents() -> dict[int, int]:
    """The parent of every process."""
    found = {}
    for entry in os.listdir("/proc"):
        if entry.isdecimal():
            try:
                found[int(entry)] = int(Path("/proc", entry, "stat").read_text().rpartition(")")[2].split()[1])
            except OSError:
                continue
    return found


@contextmanager
def killing(times: int, kind: signal.Signals, seed: int) -> Iterator[list[int]]:
    """End workers of this process at random moments."""
    over = threading.Event()
    victims: list[int] = []
    rng = random.Random(seed)

    def hunt() -> None:
        while len(victims) < times and not over.wait(0.2 + rng.random() * 0.4):
            alive = [pid for pid in workers_of(os.getpid()) if pid not in victims]
            if alive:
                with suppress(ProcessLookupError):  # its work was done meanwhile
                    os.kill(victim := rng.choice(alive), kind)
                    victims.append(victim)

    hunter = threading.Thread(target=hunt)
    hunter.start()
    try:
        yield victims
    finally:
        over.set()
        hunter.join()


def test_the_output_is_that_of_one_process_and_so_is_the_folder(spec: Path, expected: dict[str, bytes]) -> None:
    seen: list[Progress] = []
    result = run(spec, on="processes:2", progress=seen.append)
    assert result.exit_code == REJECTS, result.message
    assert contents(spec.parent / "out") == expected
    assert verify(spec.parent / "out").sound
    report = json.loads((spec.parent / "out" / "report.json").read_text())
    assert report["samples"] == {"read": 120, "written": 119, "rejected": 1}
    assert sum(w["samples"] for w in report["workers"]) == 120
    assert sum(w["parts"] for w in report["workers"]) == 24
    assert report["nodes"][0]["bottleneck"]["sentence"]
    stages = {s["id"] for s in report["stages"]}
    for worker in (w for w in report["workers"] if w["parts"]):
        assert set(worker["stages"]) == stages
        assert all(share >= 0 for s in worker["stages"].values() for share in s.values())
    over_time = report["over_time"]
    assert over_time["samples"][-1] == 120
    assert sum(counts[-1] for counts in over_time["workers"].values()) == 120
    last = seen[-1].status()
    assert [last["done"], last["rejected"], last["parts"]] == [120, 1, [24, 24]]
    assert {w["part"] for w in last["workers"]} == {None}
    decode = next(o for o in report["operators"] if "decoders.image" in o["op"])
    assert decode["samples"] >= 119
    assert (seen[-1].done, seen[-1].total, seen[-1].rejected) == (120, 120, 1)
    assert [p.done for p in seen] == sorted(p.done for p in seen)
    again = run(spec, on="processes:3")
    assert not again.ran
    assert "complete already" in again.message
    assert run_job(spec).ran is False  # nothing tells that there were several


@pytest.mark.parametrize("seed", [1, 2])
def test_workers_killed_at_random_change_nothing(spec: Path, expected: dict[str, bytes], seed: int) -> None:
    notes: list[str] = []
    with killing(2, signal.SIGKILL, seed) as victims:
        result = run(spec, on="processes:3", note=notes.append)
    assert result.exit_code == REJECTS, result.message
    assert contents(spec.parent / "out") == expected
    assert sum("SIGKILL" in n for n in notes) <= len(victims)  # one that is killed when all is done is not missed


def test_a_worker_asked_to_end_publishes_first_and_another_goes_on(spec: Path, expected: dict[str, bytes]) -> None:
    with killing(2, signal.SIGTERM, 5):
        assert run(spec, on="processes:2").exit_code == REJECTS
    assert contents(spec.parent / "out") == expected


@pytest.mark.parametrize("kind", thinned([signal.SIGKILL, signal.SIGTERM], 2))
def test_a_driver_that_is_killed_continues_with_another_number_of_workers(
    spec: Path, expected: dict[str, bytes], kind: signal.Signals
) -> None:
    command = [sys.executable, "-m", "dali_run.cli.main", "run", str(spec), "--quiet", "--on", "processes:2"]
    out, (environment, go) = spec.parent / "out", held(spec.parent, after=8)
    driver = subprocess.Popen(command, cwd=ROOT, env=environment)
    while driver.poll() is None and len(list(out.glob("*.tfrecord"))) < 4:
        time.sleep(0.02)
    workers = workers_of(driver.pid)
    driver.send_signal(kind)
    go.touch()
    assert driver.wait() == (-signal.SIGKILL if kind == signal.SIGKILL else INTERRUPTED)
    for pid in workers:  # they hear that the driver is gone
        while os.path.exists(f"/proc/{pid}"):
            time.sleep(0.02)
    assert not (out / "manifest.json").exists()
    assert run(spec, on="processes:3").exit_code == REJECTS
    assert contents(out) == expected


def test_ctrl_c_is_heard_and_the_job_continues(spec: Path, expected: dict[str, bytes]) -> None:
    def interrupt(state: Progress) -> None:
        if state.done > 20:
            raise KeyboardInterrupt

    result = run(spec, on="processes:2", progress=interrupt)
    assert result.exit_code == INTERRUPTED
    assert "continues" in result.message
    assert run(spec, on="processes:2").exit_code == REJECTS
    assert contents(spec.parent / "out") == expected


@pytest.mark.parametrize("moment", ["before the parts are listed", "after that"])
def test_an_output_that_is_removed_while_the_job_runs_is_named_and_made_again(
    spec: Path, expected: dict[str, bytes], monkeypatch: pytest.MonkeyPatch, moment: str
) -> None:
    late = moment == "after that"
    owner: object = manifest if late else JobOutput
    inner = getattr(owner, name := "read_journal" if late else "join")

    def removed_first(*args: Any) -> Any:
        victim = sorted((spec.parent / "out").glob("journal-00*.jsonl"))[1]
        victim.unlink()
        monkeypatch.setattr(owner, name, inner)
        return inner(*args)

    monkeypatch.setattr(owner, name, removed_first)
    said = r"journal-00001-of-\d+\.jsonl is gone" if late else r"of \d+ parts these have no journal: 1\."
    with pytest.raises(JobError, match=said + ".* same command again"):
        run(spec, on="processes:2")
    result = run(spec, on="processes:2")
    assert result.exit_code == REJECTS, result.message
    assert contents(spec.parent / "out") == expected


def test_the_budget_of_rejects_is_that_of_all_workers_together(spec: Path, data: Path, tmp_path: Path) -> None:
    spoiled = tmp_path / "spoiled"
    spoiled.mkdir()
    for i in range(40):
        (spoiled / "a").mkdir(exist_ok=True)
        good = (data / "b" / "001.png").read_bytes()
        (spoiled / "a" / f"{i:03d}.png").write_bytes(b"no" if i % 5 == 0 else good)  # one a shard, eight in all
    text = spec.read_text().replace(str(data), str(spoiled))
    spec.write_text(text)
    result = run(spec, on="processes:2")
    assert result.exit_code == FAILED
    log = (tmp_path / "out" / "rejects.jsonl").read_text().splitlines()
    assert len(log) >= 4
    assert f"Too many rejected samples: {len(log)} of " in result.message
    assert f"max_errors: 3: {len(log)} not_an_image; the first: 'a/" in result.message
    assert result.report["samples"]["rejected"] == len(log) == sum(result.report["rejected"].values())
    assert run(spec, {"on_error.max_errors": 8}, on="processes:2").exit_code == REJECTS
    other = {"on_error.max_errors": 8, "write.path": str(tmp_path / "one")}
    assert run_job(spec, other).exit_code == REJECTS
    assert contents(tmp_path / "out") == contents(tmp_path / "one")


@pytest.mark.parametrize("on", ["processes:2", None])
@pytest.mark.parametrize("problem", ["sample", "disk"])
def test_the_cause_of_the_end_is_named_by_many_as_by_one(
    spec: Path, expected: dict[str, bytes], on: str | None, problem: str
) -> None:
    """File, operator and cause; or the path that could not be written, and the system's reason."""
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    if problem == "disk":
        resource.setrlimit(resource.RLIMIT_FSIZE, (3000, limits[1]))  # journals fit, shards do not
    try:
        result = run(spec, {"on_error.policy": "fail"} if problem == "sample" else {}, on=on)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert result.exit_code == FAILED
    said = "a/010.png: decoders.image" if problem == "sample" else "File too large (EFBIG)"
    assert said in result.message
    assert "not_an_image: " in result.message or f"cannot write {spec.parent / 'out'}/" in result.message
    assert result.report["samples"]["written"] < 120
    assert run(spec, on=on).exit_code == REJECTS
    assert contents(spec.parent / "out") == expected


def test_a_job_begun_by_one_process_is_continued_by_one(spec: Path, expected: dict[str, bytes]) -> None:
    def interrupt(state: Progress) -> None:
        if state.done > 20:
            raise KeyboardInterrupt

    assert run_job(spec, progress=interrupt).exit_code == INTERRUPTED
    assert run(spec, on="processes:2").exit_code == REJECTS
    assert contents(spec.parent / "out") == expected


def test_parts_begun_by_hand_are_continued_by_a_driver(spec: Path, expected: dict[str, bytes]) -> None:
    assert run_job(spec, part=(1, 3)).exit_code in (CLEAN, REJECTS)

    def interrupt(state: Progress) -> None:
        if state.done > 20:
            raise KeyboardInterrupt

    assert run_job(spec, part=(2, 3), progress=interrupt).exit_code == INTERRUPTED
    assert run(spec, on="processes:2").exit_code == REJECTS
    assert contents(spec.parent / "out") == expected


def test_other_inputs_are_refused_and_fresh_starts_anew(spec: Path, data: Path, expected: dict[str, bytes]) -> None:
    def interrupt(state: Progress) -> None:
        if state.done > 20:
            raise KeyboardInterrupt

    assert run(spec, {"pipeline.seed": 4}, on="processes:2", progress=interrupt).exit_code == INTERRUPTED
    result = run(spec, on="processes:2")
    assert result.exit_code == FAILED
    assert "identity.seed: was 4, now 3" in result.message
    assert run(spec, on="processes:2", fresh=True).exit_code == REJECTS
    assert contents(spec.parent / "out") == expected


@pytest.mark.parametrize("on", ["processes:2", None])
def test_a_data_set_that_is_not_there_costs_no_output(
    spec: Path, data: Path, expected: dict[str, bytes], on: str | None
) -> None:
    """Not with --fresh either, which would begin by removing it."""
    out = spec.parent / "out"
    out.mkdir()
    for name, content in expected.items():
        (out / name).write_bytes(content)
    spec.write_text(spec.read_text().replace(str(data), str(data / "nowhere")))
    with pytest.raises((JobError, SpecError), match="nowhere"):
        run(spec, on=on, fresh=True)
    assert contents(out) == expected


def test_what_cannot_be_opened_is_said_once(spec: Path) -> None:
    with pytest.raises(JobError, match="nowhere"):
        run(spec, {"graph.readers.file.file_root": "/nowhere"}, on="processes:2")


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ({"on": "moon"}, "processes:N, ray or ray://host:port"),
        ({"on": "processes:2", "append": True}, "--append needs one process"),
        ({"on": "processes:2", "overrides": {"write.shard": "{}"}}, "would not make the files of one process"),
    ],
)
def test_what_cannot_be_done_by_several(spec: Path, arguments: dict[str, object], said: str) -> None:
    with pytest.raises(SpecError, match=said):
        run(spec, **arguments)  # type: ignore[arg-type]


CUPY = """
import os
with open(os.environ["CUPY_NOTES"], "a") as file:
    file.write(f"{os.getpid()} {os.getppid()} {os.environ.get('CUDA_VISIBLE_DEVICES')}\\n")
raise ImportError("no CuPy here")
"""


def test_only_workers_touch_cuda_each_with_its_own_gpu(
    spec: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A process that has asked CUDA anything cannot fork workers that use it. There is no GPU here, and they say so."""
    (tmp_path / "lib" / "cupy").mkdir(parents=True)
    (tmp_path / "lib" / "cupy" / "__init__.py").write_text(CUPY)
    monkeypatch.setenv("PYTHONPATH", f"{tmp_path / 'lib'}:{ROOT}")
    monkeypatch.setenv("CUPY_NOTES", str(tmp_path / "notes"))
    job = JobMessage(str(spec), spec.read_text(), {}, "gpu", None, str(tmp_path))
    resources = [WorkerResources(f"GPU {i}", 1, 0.5, (), str(i)) for i in (3, 5)]
    told: dict[str, str] = {}
    with Processes(job, resources) as group:
        fork_server = group._fork_server.pid
        group.fill(2)
        while group.workers:
            told |= {w.name: m["problem"] for w, m in group.poll(1.0) if m.get("kind") == "device"}
    assert told.keys() == {"GPU 3", "GPU 5"}
    notes = [line.split() for line in (tmp_path / "notes").read_text().splitlines()]
    assert {pid for pid, _, _ in notes}.isdisjoint({str(fork_server), str(os.getpid())})
    assert {(above, visible) for _, above, visible in notes} == {(str(fork_server), "3"), (str(fork_server), "5")}


def test_a_worker_that_hears_nothing_is_ended_when_its_crew_is_left(
    spec: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing of it is left open: pytest makes a socket that is not closed an error."""
    monkeypatch.setattr("dali_run.pipelines.fleet.processes.PATIENCE", 0.1)
    job = JobMessage(str(spec), spec.read_text(), {}, "cpu", None, str(tmp_path))
    with Processes(job, [WorkerResources("deaf", 1, 1.0, (), None)]) as group:
        group.fill(1)
        (worker,) = group.workers
        os.kill(worker.pid, signal.SIGSTOP)
    gc.collect()
    assert worker.messages.fileno() == -1
    while os.path.exists(f"/proc/{worker.pid}"):
        time.sleep(0.02)


def test_workers_that_cannot_be_started_leave_nothing_open(spec: Path, tmp_path: Path) -> None:
    job = JobMessage(str(spec), spec.read_text(), {}, "cpu", None, str(tmp_path))
    with Processes(job, [WorkerResources(name, 1, 0.3, (), None) for name in "abc"]) as group:
        group.fill(1)
        for _ in range(2):
            os.kill(group._fork_server.pid, signal.SIGKILL)
            group._fork_server.wait()
            with (
                pytest.raises(JobError, match="process that forks workers")
                if group._fork_servers > 1
                else nullcontext()
            ):
                group.fill(len(group.workers) + 1)
    gc.collect()


@pytest.mark.parametrize("opened", [False, True])
def test_the_process_that_forks_workers_may_be_lost_once(spec: Path, expected: dict[str, bytes], opened: bool) -> None:
    """Before it has opened the job, and while workers work; those go on."""
    killed: list[int] = []
    begin = Processes._start_fork_server

    def begun(self: Processes) -> None:
        begin(self)
        if not opened and not killed:
            killed.append(self._fork_server.pid)
            self._fork_server.kill()

    def progress(state: Progress) -> None:
        if opened and state.done and not killed:
            killed.append(next(iter(children_of(os.getpid()))))
            os.kill(killed[0], signal.SIGKILL)
            for pid in workers:
                with suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
        elif opened and not killed:
            workers[:] = workers_of(os.getpid())

    workers: list[int] = []
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Processes, "_start_fork_server", begun)
        result = run(spec, on="processes:2", progress=progress)
    assert killed
    assert result.exit_code == REJECTS, result.message
    assert contents(spec.parent / "out") == expected


HANGING = """
import os, sys, threading, time
from tests.kit.fake_cupy import Stream, faked
from dali_run.ops.gpu import watchdog

stand_in = faked(memory=True)
stand_in.__enter__()  # and takes the place of this module, which goes
sys.stand_in = stand_in
globals().update(vars(sys.modules["cupy"]))
if os.environ["CUDA_VISIBLE_DEVICES"] == "1":
    begun, synchronize, calls = threading.Event(), Stream.synchronize, []

    def hang(*args, **kwargs):
        calls.append(1)
        if len(calls) < int(os.environ["FIRST"]):
            return synchronize(*args, **kwargs)
        with open(os.environ["HANGS"], "a") as file:
            file.write(f"{os.getpid()}\\n")
        begun.set()
        threading.Event().wait()

    Stream.synchronize = hang
    watchdog._pause = lambda seconds: begun.wait() and time.sleep(0.001)
"""


@pytest.mark.parametrize("first", thinned([1, 3], 2))  # in the midst of a part, and when all of it was done
def test_the_work_of_a_gpu_that_hangs_is_done_by_the_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, first: int
) -> None:
    """Its process is ended, begun once more, ended again; the output is that of one GPU."""
    monkeypatch.setenv("FIRST", str(first))
    (tmp_path / "in" / "a").mkdir(parents=True)
    rng = np.random.default_rng(7)
    for k in range(48):
        (tmp_path / "in" / "a" / f"{k:02d}.jpg").write_bytes(rng.integers(0, 255, 40, np.uint8).tobytes())
    file = tmp_path / "spec.yaml"
    file.write_text(f"""
version: 1
name: hanging
pipeline: {{batch_size: 2, num_threads: 1, device: "gpu:all", seed: 3, gpu_timeout: 1}}
graph:
  - {{op: readers.file, file_root: {tmp_path / "in"}, out: [x, label]}}
  - {{op: cast, in: x, dtype: INT16, device: gpu, out: x}}
outputs: {{x: x}}
write: {{writer: tfrecord, path: {tmp_path / "out"}, shard: {{samples: 4}}, fields: {{x: {{encode: raw}}}}}}
""")
    (tmp_path / "lib" / "cupy").mkdir(parents=True)
    (tmp_path / "lib" / "cupy" / "__init__.py").write_text(HANGING)
    monkeypatch.setenv("PYTHONPATH", f"{tmp_path / 'lib'}:{ROOT}")
    monkeypatch.setenv("HANGS", str(tmp_path / "hangs"))
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    for module in (driver, processes):
        monkeypatch.setattr(module, "PATIENCE", 2.0)  # it ends when it is killed, and does not listen before
    notes: list[str] = []
    with faked(devices=2, memory=True):
        one = run_job(file, {"write.path": str(tmp_path / "one")}, device="gpu:0")
        result = run(file, note=notes.append)
    assert (one.exit_code, result.exit_code) == (CLEAN, CLEAN), (result.message, notes)
    assert contents(tmp_path / "out") == contents(tmp_path / "one")
    assert len(set((tmp_path / "hangs").read_text().split())) in (1, 2), "it was not restarted more than once"
    assert {w["name"] for w in result.report["workers"] if w["parts"]} >= {"GPU 0"}


def test_a_job_that_cannot_be_divided_says_why_one_process_drives_all_gpus(
    spec: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    module = importlib.import_module("dali_run.pipelines.fleet.run")
    notes: list[str] = []
    done = JobResult(CLEAN, "", {}, tmp_path)
    monkeypatch.setattr(module, "run_job", lambda *args, **options: done)
    with faked(devices=2):
        by_bytes = {"write.shard": "{samples: 5, bytes: 4000}"}
        assert run(spec, by_bytes, device="gpu:all", note=notes.append) is done
        assert run(spec, device="gpu:all", append=True, note=notes.append) is done
        assert run(spec, by_bytes, device="gpu:0", note=notes.append) is done
    assert [n.partition(";")[0] for n in notes] == [
        "one process drives all GPUs, because its shards are cut by bytes",
        "one process drives all GPUs, because inputs are added",
    ]


def test_inputs_and_outputs_at_urls(
    spec: Path, data: Path, expected: dict[str, bytes], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("fsspec")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    where = {"write.path": f"local://{tmp_path}/store", "graph.readers.file.file_root": f"local://{data}"}
    with killing(1, signal.SIGKILL, 3):
        result = run(spec, where, on="processes:2")
    assert result.exit_code == REJECTS, result.message
    found = contents(tmp_path / "store")
    assert found.keys() == expected.keys()
    assert all(found[n] == expected[n] for n in found if n.endswith(".tfrecord"))
    assert verify(f"local://{tmp_path}/store").sound
    assert run(spec, where, on="processes:2").ran is False


def test_shards_by_bytes_stay_parts(spec: Path) -> None:
    notes: list[str] = []
    result = run(spec, {"write.shard": "{bytes: 4000}"}, on="processes:2", note=notes.append)
    assert result.exit_code == REJECTS, result.message
    assert any("cut by bytes" in n for n in notes)
    found = verify(spec.parent / "out")
    assert found.sound
    assert json.loads((spec.parent / "out" / "manifest.json").read_text())["samples"] == 119


def test_a_job_of_the_first_samples(spec: Path) -> None:
    assert run(spec, {"on_error.max_errors": 3}, on="processes:2", limit=7).exit_code == CLEAN
    assert json.loads((spec.parent / "out" / "manifest.json").read_text())["positions"] == [0, 7]
