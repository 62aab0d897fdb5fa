"""The boundary of docs/security.md: a spec is code to trust, everything else is data."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from dali_run.cli.indexes import rec2idx, tfrecord2idx, wds2idx
from dali_run.cli.main import COMMANDS, main
from dali_run.ops.errors import JobError
from dali_run.pipelines.job.run import run_job
from dali_run.pipelines.tools.sample_data import make_sample_data
from tests.kit.jobs.small_spec import small_spec
from tests.kit.long import thinned

ROOT = Path(__file__).parents[1]
MARKING = "open({mark!r}, 'w').close()\n"


@pytest.fixture
def place(tmp_path: Path) -> Path:
    return made(tmp_path)


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """As `place`, with the output; tests put back what they change."""
    there = made(tmp_path_factory.mktemp("finished"))
    assert run_job(there / "good.yaml").exit_code == 3
    return there


def made(tmp_path: Path) -> Path:
    """A folder with data, one file of it broken, a spec, and a plugin that leaves a mark when it is run."""
    make_sample_data(tmp_path / "data", 16)
    train = tmp_path / "data/train"
    sorted(train.rglob("*.jpg"))[0].write_bytes(b"no picture")
    (tmp_path / "good.yaml").write_text(small_spec(train, tmp_path / "out", size=24))
    (tmp_path / "evil.py").write_text(MARKING.format(mark=str(tmp_path / "PWNED")))
    return tmp_path


def with_plugin(place: Path, operator: str = "resize") -> Path:
    text = (place / "good.yaml").read_text().replace("version: 1", "version: 1\nplugins: [evil.py]", 1)
    spec = place / "evil.yaml"
    spec.write_text(text.replace("op: resize,", f"op: {operator},"))
    return spec


def ran(place: Path) -> bool:
    return (place / "PWNED").exists()


@pytest.mark.parametrize("command", ["validate", "plan"])
@pytest.mark.parametrize("json_", [[], ["--json"]])
def test_looking_at_a_spec_runs_nothing_of_it(
    place: Path, command: str, json_: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([command, str(with_plugin(place)), *json_]) == 0  # its operators are known without the plugin
    assert not ran(place)
    assert main([command, str(with_plugin(place, "example.evil")), *json_]) == (0 if command == "validate" else 2)
    said = capsys.readouterr()
    assert "--plugins" in said.out + said.err
    assert not ran(place)
    (place / "evil.py").write_text(MARKING.format(mark=str(place / "PWNED")) + "def pipe(): pass\n")
    assert main([command, f"{place / 'evil.py'}:pipe"]) == 2
    assert "--plugins" in capsys.readouterr().err
    assert not ran(place)
    main([command, str(with_plugin(place)), "--plugins"])
    assert ran(place)


def hostile_report(place: Path) -> None:
    report = place / "out/report.json"
    told = json.loads(report.read_text())
    (place / "out/evil.yaml").write_text(with_plugin(place).read_text())
    shutil.copy(place / "evil.py", place / "out/evil.py")
    told["command"]["spec"] = str(place / "out/evil.yaml")
    report.write_text(json.dumps(told))


def commands(place: Path) -> dict[str, Callable[[], int]]:
    out = str(place / "out")
    return {
        "retry-failed": lambda: main(["retry-failed", out]),
        "verify": lambda: main(["verify", out]),
        "merge": lambda: main(["merge", out]),
        "inspect": lambda: main(["inspect", out, "--out", str(place / "look")]),
        "stats": lambda: main(["stats", out]),
        "top": lambda: main(["top", out]),
        "convert": lambda: main(["convert", out, str(place / "converted"), "--to", "tfrecord"]),
    }


@pytest.mark.parametrize("name", ["retry-failed", "verify", "merge", "inspect", "stats", "top", "convert"])
@pytest.mark.parametrize("stranger", [True, False])
def test_an_output_runs_nothing(
    place: Path, name: str, stranger: bool, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """``stranger``: somebody else's output. Else this user ran the job, and somebody has changed the folder since."""
    assert run_job(place / "good.yaml").exit_code == 3
    hostile_report(place)
    if stranger:
        monkeypatch.setenv("XDG_STATE_HOME", str(place / "another user"))
    code = commands(place)[name]()
    assert not ran(place)
    if name == "retry-failed":
        assert code == (1 if stranger else 3)
        assert not stranger or f"--spec {place / 'out/evil.yaml'}" in capsys.readouterr().err


def test_a_retry_needs_no_more_than_the_spec(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from dali_run.pipelines.job.retry import retry_failed

    text = (place / "good.yaml").read_text()
    (place / "good.yaml").write_text(text.replace("seed: 3", 'seed: "${seed}"') + "vars: {seed: 1}\n")
    assert run_job(place / "good.yaml", {"seed": "7"}).exit_code == 3
    monkeypatch.setenv("XDG_STATE_HOME", str(place / "another user"))
    with pytest.raises(JobError, match="--set seed=7"):
        retry_failed(place / "out")
    with pytest.raises(JobError, match="was 7, now 1"):
        retry_failed(place / "out", place / "good.yaml")
    assert retry_failed(place / "out", place / "good.yaml", {"seed": "7"}).exit_code == 3


@pytest.mark.parametrize("file", ["report.json", "manifest.json", "journal.jsonl", "rejects.jsonl", "inputs.gz"])
@pytest.mark.parametrize("kind", ["zero", "pipe", "loop", "folder"])
def test_odd_files_of_an_output_are_not_waited_for(
    finished: Path, file: str, kind: str, capsys: pytest.CaptureFixture[str]
) -> None:
    path = finished / "out" / file
    aside = path.rename(finished / "aside")
    try:
        if kind == "zero":
            path.symlink_to("/dev/zero")
        elif kind == "pipe":
            os.mkfifo(path)
        elif kind == "loop":
            path.symlink_to(path.name)
        else:
            path.mkdir()
        for name, command in commands(finished).items():
            command()  # ends
            assert "internal error" not in capsys.readouterr().err, name
    finally:
        path.rmdir() if kind == "folder" else path.unlink()
        aside.rename(path)


NAME = "x\x1b]0;pwn\x07\x1b[31m\x1b[2J\x9b31m\u202ey.jpg"


def test_no_name_reaches_the_terminal_raw(place: Path, capfd: pytest.CaptureFixture[str]) -> None:
    """One function stands before every print; here every command prints a hostile name."""
    folder = place / "data/train" / "a\x1b[31m"
    folder.mkdir()
    good = sorted((place / "data/train").rglob("*.jpg"))[1]
    shutil.copy(good, folder / NAME)
    (folder / f"bad{NAME}").write_bytes(b"no picture")
    train, out, good_spec = str(place / "data/train"), str(place / "out"), str(place / "good.yaml")
    program = folder / f"{NAME}.py"
    program.write_text(f"import nvidia.dali.fn as fn\nfn.readers.video_resize('{NAME}')\n")
    lines = [
        ["run", good_spec],
        ["run", good_spec],
        ["run", good_spec, "--fresh", "--json", "--set", "on_error.max_errors=0"],
        ["top", out],
        ["top", out, "--json"],
        ["top", NAME],
        ["retry-failed", out],
        ["dedupe", str(folder / NAME)],
        ["verify", out],
        ["verify", out + "/" + NAME],
        ["inspect", train, "--out", str(place / "look")],
        ["inspect", train, "--json", "--out", str(place / "look")],
        ["inspect", good_spec, "-n", "30", "--out", str(place / "look2")],
        ["inspect", str(folder)],
        ["inspect", out, "--out", str(place / "look3")],
        ["stats", train],
        ["stats", train, "--json"],
        ["stats", good_spec],
        ["convert", train, str(place / f"conv{NAME}"), "--to", "webdataset"],
        ["validate", str(folder / NAME)],
        ["validate", good_spec, "--set", f"graph.resize.{NAME}=3"],
        ["plan", str(folder / NAME)],
        ["plan", good_spec],
        ["merge", out + NAME],
        ["bench", str(folder / NAME)],
        ["tune", str(folder / NAME)],
        ["warm", str(folder / NAME)],
        ["init", str(folder / NAME)],
        ["ops", NAME],
        ["ops", "--like", NAME],
        ["schema", NAME],
        ["configs", NAME],
        ["sample-data", str(place / f"made{NAME}"), "--count", "4"],
        ["serve-model", str(folder / NAME), str(place / "models")],
        ["convert-pipeline", str(folder / NAME), str(place / "x.yaml")],
        ["port", str(program)],
        ["doctor", NAME],
        [NAME],
        ["run", NAME, f"--{NAME}"],
    ]
    assert {line[0] for line in lines} == {command.NAME for command in COMMANDS} | {NAME}
    for arguments in lines:
        main(arguments)
        said = "".join(capfd.readouterr())
        assert not set(said) & set("\x1b\x07\x9b\u202e"), (arguments, said)
    for command in (tfrecord2idx, rec2idx, wds2idx):
        assert command([str(folder / f"bad{NAME}"), str(place / "x.idx")])
        assert not set("".join(capfd.readouterr())) & set("\x1b\x07\x9b\u202e"), command.__name__


PROGRAM = "import sys; from dali_run.cli.main import main; sys.exit(main())"


@pytest.mark.parametrize(
    "redirection",
    thinned(
        [
            "0<&- >&- 2>&-",
            "> /dev/full",
            "2>&1 | head -c1",
            "> /dev/full 2>&1",
            "2> /dev/full",
            "2>&1 | true",
            ">&- 2>&-",
        ],
        3,
    ),
)
def test_streams_that_go_away_do_not_end_a_job(finished: Path, redirection: str) -> None:
    place = finished
    shutil.rmtree(place / "again", ignore_errors=True)
    (place / "again.yaml").write_text((place / "good.yaml").read_text().replace("/out", "/again"))
    shell = f'set -o pipefail; "$0" -c "$1" run "$2" {redirection}; echo $? > "$3"'
    if "|" in redirection:
        shell = f'("$0" -c "$1" run "$2"; echo $? > "$3") {redirection}'
    subprocess.run(
        ["bash", "-c", shell, sys.executable, PROGRAM, str(place / "again.yaml"), str(place / "code")],
        check=False, cwd=ROOT, timeout=300, capture_output=True, env={**os.environ, "PYTHONPATH": str(ROOT)},
    )  # fmt: skip
    assert (place / "code").read_text().strip() == "3"
    for path in (place / "out").glob("small-0*.tar"):
        assert (place / "again" / path.name).read_bytes() == path.read_bytes()


@pytest.mark.parametrize("where", ["top", "folder", "whole folder"])
def test_no_link_out_of_a_data_set_is_followed(place: Path, where: str, capsys: pytest.CaptureFixture[str]) -> None:
    train = place / "data/train"
    secret = place / "secret"
    secret.mkdir()
    shutil.copy(sorted(train.rglob("*.jpg"))[1], secret / "mine.jpg")
    inner = sorted(p for p in train.iterdir() if p.is_dir())[0]
    (inner / "fine.jpg").symlink_to(sorted(inner.glob("*.jpg"))[1])  # leads to where it is read anyhow
    if where == "whole folder":
        (train / "zz").symlink_to(secret)
    else:
        (train / "zz.jpg" if where == "top" else inner / "zz.jpg").symlink_to(secret / "mine.jpg")
    out = place / "converted"
    for command in (
        ["convert", str(train), str(out), "--to", "tfrecord"], ["inspect", str(train)], ["stats", str(train)],
    ):  # fmt: skip
        assert main(command) == 2
        assert "--follow-links" in capsys.readouterr().err
        assert not out.exists()
    assert main(["inspect", str(train), "--follow-links"]) == 0
    if where != "top":
        assert main(["stats", str(train), "--follow-links"]) == 3
        assert main(["convert", str(train), str(out), "--to", "tfrecord", "--follow-links"]) == 0


@pytest.mark.parametrize("lie", ["../secret.tfrecord", "/etc/passwd", "..", "a/../../b"])
def test_a_manifest_is_data(finished: Path, lie: str, capsys: pytest.CaptureFixture[str]) -> None:
    path = finished / "out/manifest.json"
    good = path.read_text()
    told = json.loads(good)
    told["shards"][0]["files"][0]["name"] = lie
    path.write_text(json.dumps(told))
    try:
        for name in ("inspect", "convert"):
            code = commands(finished)[name]()
            said = capsys.readouterr()
            assert code in (1, 2) or name == "convert", said
            assert "internal error" not in said.err
            assert "root:" not in said.out
        assert main(["verify", str(finished / "out")]) == 1
    finally:
        path.write_text(good)
