"""A newcomer's first hour: specs that come along, one rule for missing paths and for ``--json``, and
answers to the wrong file in the wrong place."""

from __future__ import annotations

import json
import tarfile
from pathlib import Path

import numpy as np
import pytest
import typer.main
import yaml

from dali_run.cli import indexes
from dali_run.cli import main as cli
from dali_run.pipelines.spec.shipped import known_spec, shipped
from dali_run.pipelines.tools.preview import check_spec

ROOT = Path(__file__).parents[2]


# -- specs that come along --------------------------------------------------------------------------------------------


def test_every_config_comes_along_with_a_summary(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["configs", "--json"]) == 0
    listed = {one["name"]: one for one in json.loads(capsys.readouterr().out)}
    assert set(listed) == {p.stem for p in (ROOT / "configs").glob("*.yaml")}
    assert all(20 < len(one["summary"]) < 400 and Path(one["path"]).is_file() for one in listed.values())
    assert not any("yaml-language-server" in one["summary"] for one in listed.values())
    assert cli.main(["configs"]) == 0
    table = capsys.readouterr().out
    assert all(name in table for name in listed)


def test_a_config_is_printed_to_be_copied(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["configs", "imagenet_val"]) == 0
    printed, whole = capsys.readouterr().out, (ROOT / "configs/imagenet_val.yaml").read_text()
    assert "yaml-language-server" not in printed  # the schema is not where the text will be
    assert printed in whole
    assert whole.removesuffix(printed).count("\n") <= 1
    for command in ("configs", "run", "inspect"):
        assert cli.main([command, "imagenet_vale" if command == "configs" else "imagenet_vale.yaml"]) == 2
        assert "did you mean imagenet_val" in capsys.readouterr().err


@pytest.mark.parametrize("name", ["quickstart", "quickstart.yaml", "configs/quickstart.yaml"])
def test_names_of_configs_are_specs_where_no_such_file_is(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert known_spec(name) == shipped()["quickstart"]
    assert check_spec(Path(name))["problems"] == []
    mine = tmp_path / name
    mine.parent.mkdir(exist_ok=True)
    mine.write_text("version: 1\n")
    assert known_spec(name) == Path(name)  # what is here is meant first
    assert check_spec(Path(name))["problems"]


def test_a_job_of_a_config_runs_and_is_retried_by_its_name(
    sample: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    assert cli.main(["run", "lmdb_to_tfrecord", "--set", f"data={sample / 'lmdb'}", "--set", "out=out", "-q"]) == 0
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")
    assert cli.main(["retry-failed", "../out"]) == 0
    assert "nothing" in capsys.readouterr().out


# -- missing paths ----------------------------------------------------------------------------------------------------

MISSING = [
    ["run", "none.yaml"], ["run", "none"], ["validate", "none.yaml"], ["plan", "none.yaml"], ["inspect", "none.yaml"],
    ["inspect", "none"], ["inspect", "none.tar"], ["verify", "none"], ["merge", "none"], ["retry-failed", "none"],
    ["convert", "none", "out", "--to", "tfrecord"], ["bench", "none.yaml"], ["tune", "none.yaml"],
    ["stats", "none"], ["stats", "none.yaml"],
    ["bench", "quickstart", "--baseline", "none.json"], ["bench", "--suite", "imagenet", "--data", "none"],
    ["port", "none.py"], ["run", "quickstart", "--settings", "none.yaml"], ["run", "quickstart", "--report", "none/x"],
]  # fmt: skip


@pytest.mark.parametrize("arguments", MISSING, ids=" ".join)
def test_a_path_on_the_command_line_that_is_not_there_is_wrong_usage(
    arguments: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    assert cli.main(arguments) == 2
    out, err = capsys.readouterr()
    assert "none" in err
    assert len(err.splitlines()) == 1
    assert out == ""
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("arguments", MISSING, ids=" ".join)
def test_errors_are_json_where_json_is_asked_for(
    arguments: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    assert cli.main([*arguments, "--json"]) == 2
    told = json.loads(capsys.readouterr().out)
    if arguments[0] == "validate":
        assert told[0]["problems"]
    else:
        assert told["exit_code"] == 2
        assert "none" in told["message"]


def test_wrong_usage_is_json_too(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["run", "--json"]) == 2
    assert "SPEC" in json.loads(capsys.readouterr().out)["message"]


@pytest.mark.parametrize("script", [indexes.tfrecord2idx, indexes.rec2idx, indexes.wds2idx])
def test_the_index_scripts_keep_to_it(script: object, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert script([str(tmp_path / "none"), str(tmp_path / "idx")]) == 2  # type: ignore[operator]
    assert "there is no such file" in capsys.readouterr().err


def test_data_of_a_spec_that_is_missing_fails_the_job(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    assert cli.main(["run", "quickstart"]) == 1
    assert "there is no such folder" in capsys.readouterr().err


# -- --json -----------------------------------------------------------------------------------------------------------


def test_json_is_a_flag_wherever_it_is() -> None:
    group = typer.main.get_command(cli.app)
    found = {
        name: option
        for name, command in group.commands.items()  # type: ignore[attr-defined]
        for option in command.params
        if "--json" in option.opts
    }
    assert len(found) >= 15
    assert all(option.is_flag for option in found.values()), found


def test_the_former_json_path_of_bench_is_told_its_new_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    assert cli.main(["bench", "quickstart", "--json", "now.json"]) == 2
    assert "--report now.json" in capsys.readouterr().err


# -- the wrong file ---------------------------------------------------------------------------------------------------


def _write(kind: str, sample: Path, folder: Path) -> Path:
    path = folder / "given"
    picture = next((sample / "train").rglob("*.jpg"))
    if kind == "a tar archive":
        with tarfile.open(path, "w") as tar:
            tar.add(picture, "a.jpg")
    elif kind == "a NumPy array":
        np.save(path.with_suffix(".npy"), np.zeros(3))
        return path.with_suffix(".npy")
    elif kind == "a RecordIO file":
        path.write_bytes(b"\x0a\x23\xd7\xce" + bytes(100))
    elif kind == "a Parquet file":
        path.write_bytes(b"PAR1" + bytes(100))
    else:
        return {
            "a TFRecord file": next((sample / "tfrecord").glob("*.tfrecord*")),
            "an LMDB database": sample / "lmdb" / "data.mdb",
            "a JPEG": picture,
        }[kind]
    return path


@pytest.mark.parametrize(
    "kind",
    ["a tar archive", "a NumPy array", "a RecordIO file", "a Parquet file", "a TFRecord file", "an LMDB database",
     "a JPEG"],
)  # fmt: skip
@pytest.mark.parametrize("command", ["run", "validate"])
def test_data_given_for_a_spec_is_recognised(
    kind: str, command: str, sample: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.main([command, str(_write(kind, sample, tmp_path))]) == 2
    said = capsys.readouterr().err
    assert f"is {kind}, not a spec" in said
    assert "dali-run inspect" in said
    assert len(said.splitlines()) == 1


def test_specs_are_not_taken_for_data() -> None:
    for path in shipped().values():
        assert yaml.safe_load(path.read_text())
        assert check_spec(path)["problems"] == []
