"""docs/guides/many-machines.md: its recipes, run as they are printed, by stand-ins for the launchers."""

from __future__ import annotations

import json
import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest
import typer
import yaml

from dali_run.cli import main as cli
from dali_run.ops.errors import SpecError
from dali_run.pipelines.job.launchers import INDICES, LAUNCHERS, part_of
from dali_run.pipelines.job.run import run_job
from dali_run.pipelines.tools.sample_data import make_sample_data

ROOT = Path(__file__).parents[1]
PAGE = (ROOT / "docs" / "guides" / "many-machines.md").read_text()
SPEC = """
version: 1
name: parts
vars: {data: "", out: out}
pipeline: {batch_size: 8, num_threads: 1, device: cpu}
graph: [{op: readers.file, file_root: "${data}", out: [x, label]}]
outputs: {x: x, label: label}
write: {writer: tfrecord, path: "${out}", shard: {samples: 2}, fields: {x: {}, label: {}}}
"""
NAMES = {n for pair in LAUNCHERS for n in pair} | set(INDICES)
NOTE = (
    "import json, os, sys; "
    "json.dump([sys.argv[1:], dict(os.environ)], open(os.environ['NOTES'] + f'/{os.getpid()}', 'w'))"
)
FAKES = {
    "dali-run": f'exec {sys.executable} -c "{NOTE}" "$@"',
    "srun": 'export SLURM_STEP_NUM_TASKS=1 SLURM_PROCID=0; exec "$@"',
    "torchrun": "n=0; while [[ $1 == --* ]]; do if [ $1 == --nproc-per-node ]; then n=$2; fi; "
    "if [ $1 == --no-python ]; then shift; else shift 2; fi; done; "
    "export WORLD_SIZE=$n; for ((RANK=0; RANK<n; RANK++)); do export RANK; $@ & done; wait",
}


def blocks(kind: str) -> list[str]:
    """The page's code of a kind."""
    return re.findall(rf"```{kind}\n(.*?)```", PAGE, re.S)


@pytest.fixture(scope="module")
def pictures(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("machines")
    make_sample_data(folder / "data", 26)
    return folder / "data" / "train"


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with the spec of the recipes, in which the launchers are found."""
    (tmp_path / "spec.yaml").write_text(SPEC)
    (tmp_path / "bin").mkdir()
    (tmp_path / "notes").mkdir()
    for name, text in FAKES.items():
        (tmp_path / "bin" / name).write_text(f"#!/bin/bash\n{text}\n")
        (tmp_path / "bin" / name).chmod(0o755)
    for name in NAMES:
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("PATH", f"{tmp_path / 'bin'}:{os.environ['PATH']}")
    monkeypatch.setenv("NOTES", str(tmp_path / "notes"))
    monkeypatch.chdir(tmp_path)
    return tmp_path


class Launched:
    """Runs recipes: first by the stand-ins, which note how dali-run is called, then those calls, here."""

    def __init__(self, place: Path, data: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.place, self.data, self.patch = place, data, monkeypatch

    def run(self, command: list[str], environment: dict[str, str]) -> None:
        subprocess.run(command, env={**os.environ, **environment}, check=True)
        notes = sorted((self.place / "notes").iterdir())
        assert notes
        for note in notes:
            arguments, told = json.loads(note.read_text())
            note.unlink()
            for name in NAMES | {n for n in told if n.startswith("SLURM_")}:
                self.patch.delenv(name, raising=False)
                if name in told:
                    self.patch.setenv(name, told[name])
            assert cli.main([*arguments, "--quiet", "--set", f"data={self.data}"]) == 0
        for name in [n for n in os.environ if n.startswith("SLURM_")]:
            self.patch.delenv(name)

    def check(self) -> None:
        """The parts' shards are those of one process, and the last part has published the manifest."""
        one, out = self.place / "one", self.place / "out"
        assert run_job(self.place / "spec.yaml", {"data": str(self.data), "out": str(one)}).exit_code == 0
        expected = {p.name: p.read_bytes() for p in one.glob("*.tfrecord")}
        assert expected
        assert {p.name: p.read_bytes() for p in out.glob("*.tfrecord")} == expected
        both = [json.loads((folder / "manifest.json").read_text())["samples"] for folder in (one, out)]
        assert both[0] == both[1]


@pytest.fixture
def launched(place: Path, pictures: Path, monkeypatch: pytest.MonkeyPatch) -> Launched:
    return Launched(place, pictures, monkeypatch)


def array(script: str) -> list[int]:
    (told,) = re.findall(r"#SBATCH --array=(\S+)", script)
    low, dash, high = told.partition("-")
    return list(range(int(low), int(high) + 1)) if dash else [int(i) for i in told.split(",")]


def test_the_slurm_arrays(launched: Launched) -> None:
    whole, again = (b for b in blocks("bash") if "#SBATCH" in b)
    for script in (again, whole):  # some parts first, then all: those that are done have nothing to do
        (launched.place / "job.sh").write_text(script)
        tasks = array(script)
        told = {"SLURM_ARRAY_TASK_COUNT": str(len(tasks)), "SLURM_ARRAY_TASK_MIN": str(min(tasks)),
                "SLURM_ARRAY_TASK_MAX": str(max(tasks)), "SLURM_NTASKS": "1", "SLURM_PROCID": "0"}  # fmt: skip
        for i in tasks:
            launched.run(["bash", "-e", "job.sh"], {**told, "SLURM_ARRAY_TASK_ID": str(i)})
    launched.check()


def test_torchrun(launched: Launched) -> None:
    (script,) = (b for b in blocks("bash") if b.startswith("torchrun"))
    launched.run(["bash", "-e", "-c", script], {})
    launched.check()


def test_the_kubernetes_job(launched: Launched) -> None:
    (text,) = blocks("yaml")
    job = yaml.safe_load(text)["spec"]
    command = job["template"]["spec"]["containers"][0]["command"]
    assert command[-1] == f"auto/{job['completions']}"
    for i in range(job["completions"]):
        launched.run(command, {"JOB_COMPLETION_INDEX": str(i)})
    launched.check()


def test_the_batch_array(launched: Launched) -> None:
    (text,) = blocks("json")
    job = json.loads(text)
    size = job["arrayProperties"]["size"]
    for i in range(size):
        told = {"AWS_BATCH_JOB_ARRAY_SIZE": str(size), "AWS_BATCH_JOB_ARRAY_INDEX": str(i)}
        launched.run(job["containerOverrides"]["command"], told)
    launched.check()


def test_every_command_line_of_the_page_is_one_that_is_understood() -> None:
    command = typer.main.get_command(cli.app)
    lines = re.findall(r"^    (dali-run run [^#\n]*)", PAGE, re.M)
    assert len(lines) >= 4
    for line in lines:
        words = shlex.split(line)[2:]
        command.commands["run"].make_context("run", words)  # type: ignore[attr-defined]


SLURM = {"SLURM_ARRAY_TASK_COUNT": "4", "SLURM_ARRAY_TASK_MIN": "1", "SLURM_ARRAY_TASK_MAX": "4"}


@pytest.mark.parametrize(
    ("text", "environment", "part"),
    [
        ("3/8", {"RANK": "1", "WORLD_SIZE": "2"}, (3, 8)),
        ("auto", {"RANK": "1", "WORLD_SIZE": "2", "SLURM_PROCID": "5", "SLURM_NTASKS": "9"}, (1, 2)),
        ("auto", {"SLURM_STEP_NUM_TASKS": "4", "SLURM_NTASKS": "9", "SLURM_PROCID": "3"}, (3, 4)),
        ("auto", {**SLURM, "SLURM_ARRAY_TASK_ID": "3", "SLURM_NTASKS": "1", "SLURM_PROCID": "0"}, (2, 4)),
        ("auto", {**SLURM, "SLURM_ARRAY_TASK_ID": "3", "SLURM_STEP_NUM_TASKS": "2", "SLURM_PROCID": "1"}, (5, 8)),
        ("auto", {"AWS_BATCH_JOB_ARRAY_SIZE": "3", "AWS_BATCH_JOB_ARRAY_INDEX": "2"}, (2, 3)),
        ("auto", {"PMI_SIZE": "3", "PMI_RANK": "0"}, (0, 3)),
        ("auto/7", {"JOB_COMPLETION_INDEX": "6"}, (6, 7)),
        ("auto/9", {**SLURM, "SLURM_ARRAY_TASK_ID": "8", "SLURM_PROCID": "0"}, (8, 9)),
    ],
)
def test_the_part_that_launchers_mean(text: str, environment: dict[str, str], part: tuple[int, int]) -> None:
    assert part_of(text, environment)[0] == part


@pytest.mark.parametrize(
    ("text", "environment", "said"),
    [
        ("8/8", {}, "counted from 0"),
        ("8", {}, "auto or auto/N"),
        ("-1/8", {}, "auto or auto/N"),
        ("auto", {}, "no launcher says how many"),
        ("auto", {"JOB_COMPLETION_INDEX": "1"}, "auto/N with the job's completions"),
        ("auto", {**SLURM, "SLURM_ARRAY_TASK_COUNT": "2", "SLURM_ARRAY_TASK_ID": "4"}, "number of all tasks"),
        ("auto", {"RANK": "two", "WORLD_SIZE": "2"}, "name no part"),
        ("auto/4", {}, "which part this is"),
        ("auto/4", {"JOB_COMPLETION_INDEX": "4"}, "JOB_COMPLETION_INDEX is 4"),
        ("auto/4", {"JOB_COMPLETION_INDEX": "x"}, "is -1"),
    ],
)
def test_environments_that_mean_no_part(text: str, environment: dict[str, str], said: str) -> None:
    with pytest.raises(SpecError, match=said):
        part_of(text, environment)
