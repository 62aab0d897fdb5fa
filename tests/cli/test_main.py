"""The command as a whole: help, exit codes, errors as lines, and how little is imported for that."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from dali_run.cli import main as cli
from dali_run.ops.errors import DeviceError, JobError, SpecError

ROOT = Path(__file__).parents[2]
HEAVY = ("numba", "cupy", "cv2", "torch", "jax", "scipy", "simplejpeg")


def modules_after(code: str) -> list[str]:
    """All modules that a fresh process has loaded from files once ``code`` has run: ``ops.readers`` and its like are
    objects that are made in no time."""
    code += "; import sys; print(); print('|'.join(n for n, m in sys.modules.items() if getattr(m, '__spec__', None)))"
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True)
    return done.stdout.splitlines()[-1].split("|")


# How long a command takes to start is how much it imports. Seconds depend on the machine, and on who else uses it;
# what is imported does not. A command that needs more than its bound has imported something that it does not need:
# `python -X importtime -c "from dali_run.cli.main import main; main(['validate', 'spec.yaml'])"` says what.
@pytest.mark.parametrize(
    ("arguments", "unneeded", "ours"),
    [
        (["--help"], {"numpy", "rich", "yaml"}, 8),
        (["--version"], {"numpy", "rich", "yaml"}, 8),
        (["run", "--help"], {"numpy", "rich", "yaml"}, 8),
        (["no-such-command"], {"numpy", "rich", "yaml"}, 8),
        (["validate", "configs/quickstart.yaml"], {"rich"}, 222),
        (["validate", *(f"configs/{p.name}" for p in sorted((ROOT / "configs").glob("*.yaml")))], {"rich"}, 267),
        (["plan", "configs/quickstart.yaml", "--set", "data=none", "--json"], {"rich"}, 255),
        (["plan", "configs/quickstart.yaml", "--set", "data=none"], set(), 258),
        (["ops", "resize", "--json"], {"rich", "yaml"}, 45),
        (["ops"], {"yaml"}, 289),
        (["schema"], {"rich"}, 303),
    ],
    ids=lambda value: "-".join(value[:2]) if isinstance(value, list) else "",
)
def test_commands_import_no_more_than_they_need(arguments: list[str], unneeded: set[str], ours: int) -> None:
    loaded = modules_after(f"from dali_run.cli.main import main; main({arguments!r})")
    assert "typer" in loaded
    assert not {name.split(".")[0] for name in loaded} & {*HEAVY, "PIL", "lmdb", "pyarrow", "fsspec", *unneeded}
    ends = ("dali_run.", "dali_run.cli.")  # all commands are declared, whatever runs
    assert len([n for n in loaded if n.startswith(ends[0]) and not n.startswith(ends[1])]) <= ours


def test_a_command_reads_no_signature_but_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    read: list[str] = []
    of_signature = cli.typer.main.get_command_from_info

    def noted(command_info: Any, **given: Any) -> Any:
        read.append(command_info.name)
        return of_signature(command_info, **given)

    monkeypatch.setattr(cli.typer.main, "get_command_from_info", noted)
    cli._with.cache_clear()
    for _ in range(2):
        assert cli.main(["verify", "--help"]) == 0
    assert read == ["verify"]
    assert cli.main(["--help"]) == 0  # of all commands
    assert read[1:] == [module.NAME for module in cli.COMMANDS]


def test_import_dali_run_imports_next_to_nothing() -> None:
    loaded = modules_after("import dali_run")
    assert not {name.split(".")[0] for name in loaded} & {*HEAVY, "PIL", "numpy", "rich", "yaml", "typer"}
    ours = {"dali_run.ops", "dali_run.ops.compiled", "dali_run.ops.compiled.on_import", "dali_run.ops.dali_names",
            "dali_run.version"}  # fmt: skip
    assert {name for name in loaded if name.startswith("dali_run.")} == ours


def test_help_says_the_purpose_first_and_ends_with_two_examples(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    assert cli.main(["--help"]) == 0
    group = capsys.readouterr().out
    texts = {"": (cli.options, group)}
    for command in cli.COMMANDS:
        assert cli.main([command.NAME, "--help"]) == 0
        texts[command.NAME] = command.command, capsys.readouterr().out
    for name, (function, text) in texts.items():
        purpose = (function.__doc__ or "").splitlines()[0]
        lines = text.splitlines()
        assert f"  {name} " in group
        assert max(map(len, lines)) <= 80, name
        assert len(purpose) <= 61, name
        assert purpose == f"{purpose[0].upper()}{purpose[1:-1]}.", name
        assert " ".join(text.split("\n\n")[1].split()) == purpose, name
        assert lines[-3].strip() == "Examples:", name
        assert all("dali-run " in line for line in lines[-2:]), name
        assert any(f"dali-run {name}".strip() in line for line in lines[-2:]), name


@pytest.mark.parametrize(
    "arguments", [[], ["no-such-command"], ["sample-data"], ["sample-data", "x", "--count", "many"], ["doctor", "-z"]]
)
def test_wrong_usage_ends_with_2_and_help_on_stderr(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(arguments) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert "dali-run" in err
    assert len(err.splitlines()) == 1 or not arguments


def test_the_package_is_the_command_as_a_module() -> None:
    command = [sys.executable, "-m", "dali_run", "no-such-command"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert "no-such-command" in done.stderr


@pytest.mark.parametrize(("system", "remedy"), [("win32", "WSL 2"), ("darwin", "container")])
def test_other_systems_are_told_what_to_use(system: str, remedy: str) -> None:
    code = f"import sys; sys.platform = {system!r}; import dali_run"
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=False)
    last = done.stderr.splitlines()[-1]
    assert last.startswith("ImportError: dali-run runs on Linux")
    assert remedy in last


def test_version(capsys: pytest.CaptureFixture[str]) -> None:
    from dali_run.version import __version__

    assert cli.main(["--version"]) == 0
    assert capsys.readouterr().out == f"dali-run {__version__}\n"


def failing(error: BaseException) -> Callable[[], None]:
    def examine() -> None:
        raise error

    return examine


@pytest.mark.parametrize(
    ("error", "code", "line"),
    [
        (SpecError("a.yaml:3:5: step 1 (x): wrong"), 2, "a.yaml:3:5: step 1 (x): wrong"),
        (SpecError("a.yaml:1:1: one\na.yaml:2:1: two"), 2, "a.yaml:1:1: one\na.yaml:2:1: two"),
        (JobError("disk full"), 1, "dali-run: disk full"),
        (DeviceError("no GPU"), 1, "dali-run: no GPU"),
        (FileNotFoundError(2, "No such file or directory", "x.yaml"), 1, "dali-run: x.yaml: No such file or directory"),
        (KeyboardInterrupt(), 130, ""),
    ],
)
def test_errors_are_lines_with_fixed_exit_codes(
    error: BaseException, code: int, line: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("dali_run.pipelines.tools.doctor.examine", failing(error))
    assert cli.main(["doctor"]) == code
    assert capsys.readouterr().err == (line + "\n" if line else "")


def test_internal_errors_ask_for_a_report(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr("dali_run.pipelines.tools.doctor.examine", failing(ZeroDivisionError("oh")))
    monkeypatch.delenv("DALI_RUN_DEBUG", raising=False)
    assert cli.main(["doctor"]) == 1
    err = capsys.readouterr().err
    assert err.startswith("dali-run: internal error: ZeroDivisionError: oh; please report it")
    assert len(err.splitlines()) == 1
    monkeypatch.setenv("DALI_RUN_DEBUG", "1")
    with pytest.raises(ZeroDivisionError):
        cli.main(["doctor"])


def test_a_closed_pipe_is_no_error() -> None:
    command = f"{sys.executable} -m dali_run.cli.main doctor --json | head -1; echo ${{PIPESTATUS[0]}}"
    done = subprocess.run(["bash", "-c", command], cwd=ROOT, capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["{", "0"]
    assert done.stderr == ""


def test_doctor_prints_json(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["doctor", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert {f["what"] for f in found["findings"]} >= {"Python", "numpy", "usable cores", "PNG", "driver"}


def test_doctor_prints_a_table(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["doctor"]) == 0
    assert "libjpeg-turbo through simplejpeg" in " ".join(capsys.readouterr().out.split())  # wrapped, if need be


@pytest.mark.parametrize(
    ("words", "offered"),
    [
        ("dali-run sam", "sample-data"),
        ("dali-run run --fre", "--fresh"),
        ("dali-run ops readers.tf", "readers.tfrecord"),
    ],
)
def test_the_shell_completes(words: str, offered: str) -> None:
    environment = {**os.environ, "_DALI_RUN_COMPLETE": "complete_bash", "COMP_WORDS": words,
                   "COMP_CWORD": str(len(words.split()) - 1)}  # fmt: skip
    command = [sys.executable, "-m", "dali_run.cli.main"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True, env=environment)
    assert done.stdout.split() == [offered]


END = """
import gc, sys
gc.disable()
from dali_run.cli.main import main

class Garbage:
    def __del__(self):
        print("collected")

garbage = Garbage()
garbage.itself = garbage
del garbage
sys.argv = ["dali-run", "--version"]
main()
"""


def test_a_command_ends_without_a_last_search_for_garbage() -> None:
    done = subprocess.run([sys.executable, "-c", END], capture_output=True, text=True, check=True)
    assert done.stdout.startswith("dali-run")
    assert "collected" not in done.stdout
