"""Every command on every kind of terminal: 60 columns, no colours, a dumb one, a pipe, and for machines."""

from __future__ import annotations

import contextlib
import json
import os
import pty
import re
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from rich.cells import cell_len

from dali_run.cli import main as cli
from tests.kit.golden import FOLDER
from tests.kit.jobs.commands import COMMANDS, SPEC, Lines

NARROW = 60
STYLE = re.compile(r"\x1b\[[0-9;]*m")
COLOUR = re.compile(r"\x1b\[(?:[0-9;]*;)?(?:3[0-8]|4[0-8]|9[0-7]|10[0-7])(?:;[0-9;]*)?m")
MOVEMENT = re.compile(r"\x1b\[[0-9?;]*[A-HJKlh]|\r")


MORE: dict[str, Lines] = {
    "run, watched": lambda here, data: ["run", str(here / "spec.yaml"), "--fresh", "--watch"],
    "top, all": lambda here, data: ["top"],
    "top, parts": lambda here, data: ["top", str(here / "parts")],
    "ops, all": lambda here, data: ["ops"],
    "ops, by another name": lambda here, data: ["ops", "--like", "albumentations.ColorJitter"],
    "stats, of a spec": lambda here, data: ["stats", str(here / "spec.yaml")],
    "inspect, data": lambda here, data: ["inspect", str(data / "lmdb"), "-n", "2"],
    "a wrong spec": lambda here, data: ["validate", str(here / "spec.yaml"), "--set", "graph.resize.sizes=3"],
}
SLOW = ("bench",)
"""It starts processes: looked at once. What it prints goes the way of all others."""
NOT_JSON = ("schema", "convert-pipeline")
"""``schema`` prints nothing but JSON, ``convert-pipeline`` YAML."""

HELPS = {f"{name} --help": (lambda here, data, name=name: [name, "--help"]) for name in COMMANDS}
ALL = {**COMMANDS, **MORE, **HELPS, "--help": lambda here, data: ["--help"]}
QUICK = {name: made for name, made in ALL.items() if name not in SLOW and name not in HELPS}


@pytest.fixture(autouse=True)
def quick_to_tune(monkeypatch: pytest.MonkeyPatch) -> None:
    """Settings are tried without starting a process for each."""
    monkeypatch.setattr("dali_run.pipelines.bench.tune.run_in_process", lambda *_: {"samples_per_second": 1234.5})


@pytest.fixture(scope="module")
def here(sample: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A spec, its output, and an output in parts."""
    folder = tmp_path_factory.mktemp("terminals")
    spec = folder / "spec.yaml"
    spec.write_text(SPEC.replace("data: .", f"data: {sample / 'val'}").replace("./out", str(folder / "out")))
    (folder / "model.dali").write_bytes(np.load(FOLDER / "serialized.npz")["pictures/file"].tobytes())
    assert cli.main(["run", str(spec), "--quiet"]) == 0
    for i in range(2):
        part = ["--num-shards", "2", "--shard-id", str(i), "--set", f"out={folder / 'parts'}"]
        assert cli.main(["run", str(spec), "--quiet", *part]) == 0
    return folder


class Terminal:
    """A pseudo-terminal that keeps all that is written to it."""

    def __init__(self) -> None:
        self.shown = bytearray()
        self._ours, theirs = pty.openpty()
        self.stream = open(theirs, "w", encoding="utf-8")  # noqa: SIM115
        self._reader = threading.Thread(target=self._read)
        self._reader.start()

    def _read(self) -> None:
        with contextlib.suppress(OSError):  # the other end is closed and everything was read
            while got := os.read(self._ours, 65536):
                self.shown += got

    def text(self) -> str:
        self.stream.close()
        self._reader.join()
        os.close(self._ours)
        return self.shown.decode().replace("\r\n", "\n")


@contextlib.contextmanager
def on_a_terminal(monkeypatch: pytest.MonkeyPatch, columns: int = NARROW, **variables: str) -> Iterator[list[str]]:
    """Commands run in here print to a terminal; afterwards the list holds the text of stdout and of stderr."""
    for name in ("NO_COLOR", "FORCE_COLOR", "TTY_COMPATIBLE", "TTY_INTERACTIVE", "CI"):
        monkeypatch.delenv(name, raising=False)
    for name, value in {"TERM": "xterm-256color", "COLUMNS": str(columns), "LINES": "24", **variables}.items():
        monkeypatch.setenv(name, value)
    terminals = Terminal(), Terminal()
    texts: list[str] = []
    with monkeypatch.context() as patch:
        patch.setattr(sys, "stdout", terminals[0].stream)
        patch.setattr(sys, "stderr", terminals[1].stream)
        try:
            yield texts
        finally:
            texts += [t.text() for t in terminals]


def may_be_long(line: str) -> bool:
    """Commands and steps are there to be copied, a word is never broken, and JSON is for machines."""
    text = line.strip()
    return text.startswith(("dali-run ", "srun ", "- {op:", "{op:", "#", "-")) or " " not in text or " | jq" in text


@pytest.mark.parametrize("name", ALL)
def test_at_60_columns(name: str, here: Path, sample: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with on_a_terminal(monkeypatch) as texts:
        code = cli.main(ALL[name](here, sample))
    printed, err = texts
    assert code == (2 if name == "a wrong spec" else 0), err
    assert not MOVEMENT.search(printed)
    if name != "schema":
        lines = STYLE.sub("", printed).split("\n")
        wide = [line for line in lines if cell_len(line) > NARROW and not may_be_long(line)]
        assert not wide
        assert "…" not in printed  # nothing was cut off
    for frame in re.split(r"\r|\n|\x1b\[2K|\x1b\[1A", STYLE.sub("", err)):
        assert cell_len(MOVEMENT.sub("", frame)) <= NARROW or may_be_long(frame)


def test_every_command_is_looked_at() -> None:
    assert set(COMMANDS) == {command.NAME for command in cli.COMMANDS}


@pytest.mark.parametrize("name", QUICK)
def test_without_colours(name: str, here: Path, sample: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with on_a_terminal(monkeypatch, NO_COLOR="1") as texts:
        cli.main(QUICK[name](here, sample))
    assert not any(COLOUR.search(text) for text in texts)


@pytest.mark.parametrize("name", QUICK)
def test_on_a_dumb_terminal(name: str, here: Path, sample: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with on_a_terminal(monkeypatch, TERM="dumb") as texts:
        cli.main(QUICK[name](here, sample))
    assert not any("\x1b" in text or "\r" in text for text in texts)


@pytest.mark.parametrize("name", QUICK)
def test_through_a_pipe(name: str, here: Path, sample: Path, capfd: pytest.CaptureFixture[str]) -> None:
    cli.main(QUICK[name](here, sample))
    printed, err = capfd.readouterr()
    assert "\x1b" not in printed + err
    assert "\r" not in printed + err
    assert name == "merge" or printed or err


@pytest.mark.parametrize("name", [n for n in QUICK if n not in (*NOT_JSON, "--help")])
def test_for_machines(name: str, here: Path, sample: Path, capfd: pytest.CaptureFixture[str]) -> None:
    cli.main([*QUICK[name](here, sample), "--json"])
    json.loads(capfd.readouterr().out)


def test_a_locale_without_our_characters(here: Path, sample: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Characters that the locale lacks are written in another way; no job ends because of that."""
    with monkeypatch.context() as patch, (here / "printed.txt").open("w", encoding="ascii") as stream:
        patch.setattr(sys, "stdout", stream)
        assert cli.main(COMMANDS["run"](here, sample)) == 0
        assert cli.main(["inspect", str(here / "out"), "--json"]) == 0
    assert "wrote 8 samples" in (here / "printed.txt").read_text("ascii")


def test_tables_do_not_read_markup(here: Path, sample: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """File names are data: a bracket in one neither colours nor ends anything."""
    folder = here / "odd" / "[red]x["
    folder.mkdir(parents=True)
    (folder / "nothing].jpg").write_bytes(next((sample / "val").rglob("*.jpg")).read_bytes())
    with on_a_terminal(monkeypatch, columns=100) as texts:
        assert cli.main(["inspect", str(here / "odd")]) == 0
    assert "[red]x[/nothing].jpg" in texts[0]


@pytest.mark.parametrize(("columns", "width"), [("60", 60), ("200", 200), ("", 110), ("0", 110), ("wide", 110)])
def test_pipes_are_as_wide_as_asked(
    columns: str, width: int, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("COLUMNS", columns)
    assert cli.main(["configs"]) == 0
    widest = max(cell_len(line) for line in capsys.readouterr().out.splitlines())
    assert width * 0.9 <= widest <= width
