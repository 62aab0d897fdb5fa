"""Every command that runs loops compiles them ahead, on all cores and with lines that say so: by one mechanism."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Collection
from pathlib import Path

import pytest

from dali_run.cli import main as cli
from dali_run.ops.compiled import ahead, listed, store
from dali_run.ops.compiled.ahead import Answer
from dali_run.ops.compiled.signatures import Loop
from dali_run.ops.compiled.times import messages_to, times
from dali_run.pipelines.bench.measure import Measurement, measure
from dali_run.pipelines.engine import compile_ahead as tested
from dali_run.pipelines.job.run import prepare
from tests.kit.jobs.commands import COMMANDS, SPEC

PROJECT = Path(__file__).parents[2]

Lines = Callable[[Path, Path], list[str]]

RUNNING: dict[str, Lines] = {
    "run": COMMANDS["run"],
    "run, by workers": lambda here, data: [*COMMANDS["run"](here, data), "--on", "processes:2"],
    "inspect": COMMANDS["inspect"],
    "retry-failed": COMMANDS["retry-failed"],
    "convert": lambda here, data: ["convert", str(data / "tfrecord"), str(here / "small"), "--to", "lmdb",
                                   "--resize", "16", "--fresh"],
    "stats": COMMANDS["stats"],
    "stats, of a spec": lambda here, data: ["stats", str(here / "spec.yaml")],
    "bench": COMMANDS["bench"],
    "tune": COMMANDS["tune"],
    "plan, measured": lambda here, data: ["plan", str(here / "spec.yaml"), "--measure", "--seconds", "0.01"],
}  # fmt: skip
WITHOUT = {"init", "top", "validate", "verify", "merge", "convert-pipeline", "ops", "configs", "schema", "doctor",
           "sample-data", "serve-model", "port", "dedupe"}  # fmt: skip
"""They run no graph, ``dedupe`` compiles two small loops itself; ``warm`` compiles whatever it is told to."""


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[set[str]]:
    """Fills with the operators that loops are compiled ahead for; none is compiled."""
    found: list[set[str]] = []

    def needed_by(clients: Collection[str]) -> list[Loop]:
        found.append(set(clients))
        return []

    monkeypatch.setattr(tested, "_done", set())
    monkeypatch.setattr(tested, "needed_by", needed_by)
    return found


@pytest.fixture(scope="module")
def here(sample: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A spec and its output."""
    folder = tmp_path_factory.mktemp("ahead")
    spec = folder / "spec.yaml"
    data = folder / "data"
    shutil.copytree(sample / "val", data)
    (next(data.rglob("*.jpg")).parent / "broken.jpg").write_bytes(b"\xff\xd8\xff no picture")
    text = SPEC.replace("data: .", f"data: {data}").replace("./out", str(folder / "out"))
    spec.write_text(text + "on_error: {max_errors: 9}\n")
    assert cli.main(["run", str(spec), "--quiet"]) == 3
    return folder


def test_every_command_is_one_or_the_other() -> None:
    ours = {name.partition(",")[0] for name in RUNNING} | WITHOUT | {"warm"}
    assert set(COMMANDS) == ours, "does the new command run loops?"


@pytest.mark.parametrize("name", RUNNING)
def test_commands_compile_ahead(
    name: str, here: Path, sample: Path, asked: list[set[str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("dali_run.pipelines.bench.run._run", lambda *_: {"error": "not measured here"})
    assert cli.main(RUNNING[name](here, sample)) in (0, 3, 1 if name in ("bench", "tune") else 0)
    assert "decoders.image" in set[str]().union(*asked)
    if name.startswith("run"):
        assert "writers.tfrecord" in asked[0]  # all at once, before the job


@pytest.mark.parametrize("name", RUNNING)
def test_a_missing_data_set_is_told_before_anything_is_compiled(
    name: str, here: Path, sample: Path, tmp_path: Path, compiling: list[str], monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    monkeypatch.setattr(tested, "needed_by", lambda clients: LONG)
    gone = tmp_path / "nowhere"
    named = (str(sample / "tfrecord"), str(sample / "val"))
    line = [str(gone) if word in named else word for word in RUNNING[name](here, sample)]
    if str(gone) not in line:
        line += ["--set", f"data={gone}"]
    if name.startswith("run"):
        line += ["--set", f"out={tmp_path / 'out'}"]
    assert cli.main(line) in (1, 2)
    assert str(gone) in "".join(capsys.readouterr())
    assert not compiling


def test_measuring_compiles_ahead(here: Path, asked: list[set[str]]) -> None:
    measure(Measurement(str(here / "spec.yaml"), {}, 0.01, 0))
    assert "decoders.image" in asked[0]


def test_python_compiles_ahead(asked: list[set[str]], sample: Path) -> None:
    from dali_run import fn, pipeline_def

    @pipeline_def(batch_size=2, num_threads=1, device_id=None)
    def definition() -> object:
        jpegs, _ = fn.readers.file(file_root=str(sample / "val"))
        return fn.resize(fn.decoders.image(jpegs), size=[8, 8])

    for _ in range(2):
        pipe = definition()
        pipe.build()
        pipe.run()
    assert [{"decoders.image", "resize"} <= clients for clients in asked] == [True]  # once in a process


# -- the mechanism ----------------------------------------------------------------------------------------------------

LONG = [Loop("ops.here", name, (), frozenset({"a"}), 9.0) for name in ("first", "second", "third")]


@pytest.fixture
def compiling(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Fills with loops that were compiled by processes; of three, the second fails. And nothing is kept yet."""
    compiled: list[str] = []

    def compile_all(todo: list[Loop], processes: int, done: Callable[[Loop, Answer], None]) -> None:
        for loop in todo:
            compiled.append(loop.function)
            done(loop, {"error": "LLVM ERROR: no"} if loop.function == "second" else {"kept": True})

    monkeypatch.setattr(tested, "_done", set())
    monkeypatch.setattr(tested, "needed_by", lambda clients: LONG if "a" in clients else [])
    monkeypatch.setattr(ahead, "missing", list)
    monkeypatch.setattr(ahead, "compile_all", compile_all)
    monkeypatch.setattr(store, "writable_folder", lambda: Path("."))
    monkeypatch.setattr(tested, "announce_once", lambda: True)
    for name in ("announced", "seconds"):
        monkeypatch.setattr(times, name, getattr(times, name))
    return compiled


def test_it_is_told_once_on_a_machine(compiling: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Not by every command that needs loops of its own."""
    monkeypatch.setattr(store, "writable_folder", lambda: tmp_path)
    monkeypatch.setattr(tested, "announce_once", store.announce_once)
    short = Loop("ops.here", "first", (), frozenset({"a"}), tested._SECONDS_BETWEEN_LINES)
    monkeypatch.setattr(tested, "needed_by", lambda clients: [short])
    for client, lines in (("a", 1), ("c", 0), ("d", 0)):
        told: list[str] = []
        with messages_to(told.append):
            tested.compile_ahead({client})
        assert len(told) == lines
    assert compiling == ["first"] * 3


def test_it_is_told_and_done_once(compiling: list[str]) -> None:
    told: list[str] = []
    with messages_to(told.append):
        tested.compile_ahead({"b"})
        assert not told
        tested.compile_ahead({"a", "b"}, processes=2)
        tested.compile_ahead({"a"})
    assert compiling == ["first", "second", "third"]
    assert len(told) == 2
    assert told[0].startswith("compiling 3 CPU kernels for this machine: about 14 s on 2 cores. They are kept")
    assert told[1] == "a CPU kernel could not be compiled ahead: ops.here.second: LLVM ERROR: no"


@pytest.mark.parametrize("program", ["", "/opt/tritonserver/bin/triton", "C:\\app\\editor.exe"])
def test_a_program_that_python_is_embedded_in_is_not_started(
    program: str, compiling: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sys.executable", program)
    tested.compile_ahead({"a"})
    assert not compiling


def test_no_processes_are_no_error(compiling: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(*_: object) -> None:
        raise BlockingIOError("Resource temporarily unavailable")

    monkeypatch.setattr(ahead, "compile_all", refused)
    tested.compile_ahead({"a"})
    assert json.dumps(compiling) == "[]"


@pytest.mark.timeout(900)
def test_the_first_job_needs_no_loop_that_is_not_compiled_ahead(tmp_path: Path, sample: Path) -> None:
    """Progressive JPEGs are rarely among the two samples that jobs warm up with: their loop was compiled in the midst
    of the job, by one thread, without a word."""
    record = tmp_path / "record"
    spec = str(PROJECT / "configs" / "quickstart.yaml")
    prepared = prepare(spec, {"data": str(sample / "train"), "out": str(tmp_path / "out")}, device="cpu")
    clients = tested.clients_of(prepared.plan, "tfrecord")
    tested.compile_ahead(clients, background=False)  # libraries would stand in for loops that are not there yet
    given = ["--set", f"data={sample / 'train'}", "--set", f"out={tmp_path / 'out'}", "--device", "cpu", "--quiet"]
    done = subprocess.run(
        [sys.executable, "-m", "dali_run.cli.main", "run", spec, *given], capture_output=True, text=True, check=False,
        env={**os.environ, "PYTHONPATH": str(PROJECT), "DALI_RUN_RECORD_LOOPS": str(record)},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert json.loads((tmp_path / "out" / "manifest.json").read_text())["samples"] > 16
    used = {listed.of_line(line) for line in record.read_text().splitlines()}
    ahead_of_it = set(listed.needed_by(clients))
    assert any("progressive" in loop.module for loop in used), "the sample data has no progressive JPEG"
    late = {f"{loop.module}.{loop.function}" for loop in used - ahead_of_it}
    assert not [name for name in late if name.startswith(("ops.codecs.", "readers."))], "see ops/compiled/listed.py"
