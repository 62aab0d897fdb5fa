"""Commands on sample data: what they print, write and end with."""

from __future__ import annotations

import contextlib
import json
import os
import pty
import shutil
import signal
import subprocess
import sys
import threading
import time
from dataclasses import dataclass
from pathlib import Path

import jsonschema
import numpy as np
import pytest
import tfrecord
import yaml
from PIL import Image

from dali_run.cli import main as cli
from dali_run.cli import progress
from tests.kit.jobs import commands
from tests.kit.jobs.held import held
from tests.kit.pages import Page

ROOT = Path(__file__).parents[2]
VAL = str(ROOT / "configs" / "imagenet_val.yaml")

SPEC = commands.SPEC + "on_error: {policy: skip, max_errors: 50%}\n"


@pytest.fixture
def spec(tmp_path: Path, sample: Path) -> Path:
    """A small job over the training pictures."""
    path = tmp_path / "spec.yaml"
    path.write_text(SPEC.replace("data: .", f"data: {sample / 'train'}").replace("./out", str(tmp_path / "out")))
    return path


def pixels(path: Path) -> np.ndarray:
    with Image.open(path) as image:
        return np.asarray(image.convert("RGB"), np.int16)


def out_of(spec: Path) -> Path:
    return spec.parent / "out"


# -- run --------------------------------------------------------------------------------------------------------------


def test_run_writes_shards_and_shows_the_report(spec: Path, capsys: pytest.CaptureFixture[str]) -> None:
    copy, page = spec.parent / "copy.json", spec.parent / "page.html"
    assert cli.main(["run", str(spec), "--report", str(copy), "--html", str(page)]) == 0
    assert "<h1>small</h1>" in page.read_text()
    printed, err = capsys.readouterr()
    assert all(" samples (" in line for line in err.splitlines())  # progress, where compiling takes its time
    for expected in ("small: 24 samples read", "decoders.image", "resize", "To go faster: ", "wrote 24 samples"):
        assert expected in printed
    records = [r for p in sorted(out_of(spec).glob("*.tfrecord")) for r in tfrecord.tfrecord_loader(str(p), None)]
    assert len(records) == 24
    assert all(len(r["image"]) == 32 * 32 * 3 for r in records)
    report = json.loads(copy.read_text())
    assert report == json.loads((out_of(spec) / "report.json").read_text())
    assert report["samples"] == {"read": 24, "written": 24, "rejected": 0}
    assert [o["name"] for o in report["operators"]] == ["Reader", "decoders.image", "resize"]
    assert cli.main(["run", str(spec), "--report", str(copy)]) == 0  # nothing ran: times of another day would mislead
    assert capsys.readouterr().out.startswith(f"{out_of(spec)} is complete already (24 samples)")
    assert json.loads(copy.read_text()) == report


def test_run_prints_json_or_nothing(spec: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["run", str(spec), "--json", "--limit", "8"]) == 0
    result = json.loads(capsys.readouterr().out)
    assert result["exit_code"] == 0
    assert result["report"]["samples"]["written"] == 8
    assert cli.main(["run", str(spec), "--quiet", "--fresh"]) == 0
    assert capsys.readouterr() == ("", "")


def test_settings_from_the_command_line(spec: Path, sample: Path, capsys: pytest.CaptureFixture[str]) -> None:
    other = spec.parent / "other"
    arguments = ["--set", f"out={other}", "--set", f"data={sample / 'val'}", "--set", "pipeline.batch_size=3"]
    assert cli.main(["run", str(spec), *arguments, "--json"]) == 0
    report = json.loads(capsys.readouterr().out)["report"]
    assert report["samples"]["written"] == 8
    assert cli.main(["plan", str(spec), *arguments, "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["batch_size"] == 3
    assert (other / "manifest.json").exists()
    assert not out_of(spec).exists()


def test_rejects_inside_the_budget_end_with_3_and_outside_with_1(
    spec: Path, sample: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    data = spec.parent / "damaged"
    shutil.copytree(sample / "train", data)
    (data / "text" / "broken.jpg").write_bytes(b"\xff\xd8\xff\xe0 no picture")
    assert cli.main(["run", str(spec), "--set", f"data={data}"]) == 3
    printed = capsys.readouterr().out
    assert "wrote 24 samples" in printed
    assert "1 rejected" in printed
    rejects = [json.loads(line) for line in (out_of(spec) / "rejects.jsonl").read_text().splitlines()]
    assert [r["key"] for r in rejects] == ["text/broken.jpg"]
    for change in ("on_error.max_errors=0", "on_error.policy=fail"):
        assert cli.main(["run", str(spec), "--set", f"data={data}", "--fresh", "--set", change]) == 1
        printed, err = capsys.readouterr()
        assert printed == ""
        assert "broken.jpg" in err
        assert err.count("dali-run: ") == 1  # on a slow machine, the progress is printed, too


def test_the_page_of_a_run_shows_samples_before_and_after_and_rejects(spec: Path, sample: Path) -> None:
    data, html = spec.parent / "damaged", spec.parent / "page.html"
    shutil.copytree(sample / "train", data)
    whole = next((sample / "train").rglob("*.jpg")).read_bytes()
    (data / "text" / "cut.jpg").write_bytes(whole[: len(whole) // 2])
    (data / "text" / "none.jpg").write_bytes(b"\xff\xd8\xff\xe0 no picture")
    for more in ([], ["--set", "on_error.max_errors=0"]):  # a job that ends because of rejects shows them, too
        code = cli.main(["run", str(spec), "-q", "--fresh", "--set", f"data={data}", "--html", str(html), *more])
        assert code == (1 if more else 3)
        page = Page(html.read_text())
        seen = [a["alt"] for a in page.named("img")]
        assert "displayable part of text/cut.jpg" in seen
        assert "what can be seen of text/none.jpg" not in seen
        # a job that ends early shows those that were done
        shown = sum(alt.startswith("image of ") for alt in seen)
        assert 0 < shown <= 6 if more else shown == 6
        assert sum(alt.endswith("as it was read") for alt in seen) == shown
        assert more or "text/none.jpg" in page.texts  # it was not come to
        assert spec.read_text().strip() in page.texts
        assert "Samples per second, over time" in page.texts


def test_the_page_shows_images_whose_files_are_read_by_name(
    sample: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """`io.file.read` gives the bytes that are decoded, not the reader."""
    for i, file in enumerate(sorted((sample / "train").rglob("*.jpg"))[:3]):
        np.save(tmp_path / f"{i}.npy", np.frombuffer(str(file).encode(), np.uint8))
    (tmp_path / "spec.yaml").write_text(f"""
version: 1
name: by-name
graph:
  - {{op: readers.numpy, name: Reader, file_root: {tmp_path}, file_filter: "*.npy", out: names}}
  - {{op: io.file.read, in: names, out: jpegs}}
  - {{op: decoders.image, in: jpegs, out: images}}
  - {{op: resize, in: images, size: [32, 32], out: images}}
outputs: {{image: images}}
write: {{writer: files, path: {tmp_path}/out, shard: {{samples: 9}}, fields: {{image: {{encode: jpeg}}}}}}
""")
    assert cli.main(["run", str(tmp_path / "spec.yaml"), "-q", "--html", str(tmp_path / "page.html")]) == 0
    seen = [a["alt"] for a in Page((tmp_path / "page.html").read_text()).named("img")]
    assert sum(alt.endswith("as it was read") for alt in seen) == 2  # of one batch
    assert cli.main(["bench", str(tmp_path / "spec.yaml"), "--limit", "3"]) == 2
    assert "--limit is an option of run, stats" in capsys.readouterr().err


def test_inspect_writes_pages(spec: Path, sample: Path) -> None:
    html = spec.parent / "page.html"
    assert cli.main(["inspect", str(spec), "-n", "2", "--out", str(spec.parent / "look"), "--html", str(html)]) == 0
    page = Page(html.read_text())
    assert {"Reader[0]", "decoders.image", "resize", "32 x 32 x 3"} <= set(page.texts)
    assert len(page.named("img")) == 6
    assert cli.main(["inspect", str(sample / "lmdb"), "-n", "2", "--html", str(html)]) == 0
    page = Page(html.read_text())
    assert {"LMDB", "24 records"} <= set(page.texts)
    assert len(page.named("img")) == 2


@pytest.mark.parametrize(
    ("arguments", "code", "said"),
    [
        (["--set", "nonsense"], 2, "needs KEY=VALUE"),
        (["--set", "dat=1"], 2, "did you mean data"),
        (["--num-shards", "2", "--shard-id", "2"], 2, "--num-shards (2)"),
        (["--device", "tpu"], 2, "device must be"),
        (["--device", "gpu:99"], 1, "dali-run doctor"),
        (["--set", "data=/no/such/folder"], 1, "/no/such/folder"),
    ],
)
def test_what_cannot_run_is_one_line(
    spec: Path, arguments: list[str], code: int, said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.main(["run", str(spec), *arguments]) == code
    printed, err = capsys.readouterr()
    assert printed == ""
    assert said in err
    assert len(err.splitlines()) == 1


def test_parts_of_a_job_make_the_whole(spec: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["run", str(spec), "--quiet"]) == 0
    whole = {p.name: p.read_bytes() for p in out_of(spec).glob("*.tfrecord")}
    parts = spec.parent / "parts"
    for i in range(3):
        arguments = ["--num-shards", "3", "--shard-id", str(i), "--quiet", "--set", f"out={parts}"]
        assert cli.main(["run", str(spec), *arguments]) == 0, capsys.readouterr().err
    assert {p.name: p.read_bytes() for p in parts.glob("*.tfrecord")} == whole


@pytest.mark.parametrize(
    ("command", "option"), [("run", "--report"), ("run", "--html"), ("run", "--trace"), ("tune", "--out")]
)
def test_paths_of_results_are_checked_before_the_job(
    spec: Path, command: str, option: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.main([command, str(spec), option, str(spec.parent / "nowhere" / "file")]) == 2
    assert "nowhere is not a folder; name a file in an existing folder" in capsys.readouterr().err
    assert cli.main([command, str(spec), option, str(spec.parent)]) == 2
    assert "is a folder" in capsys.readouterr().err
    assert not out_of(spec).exists()


@pytest.mark.parametrize(
    ("arguments", "code"),
    [(["--set", "pipeline.device=moon"], 2), (["--set", "data=/nowhere"], 1), (["--num-shards", "2"], 2)],
)
def test_early_failures_are_json_too(
    spec: Path, arguments: list[str], code: int, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.main(["run", str(spec), "--json", *arguments]) == code
    printed, err = capsys.readouterr()
    result = json.loads(printed)
    assert result["exit_code"] == code
    assert result["message"]
    assert result["report"] == {}
    assert err


def test_a_closed_pipe_does_not_change_the_exit_code(spec: Path, sample: Path) -> None:
    data = spec.parent / "damaged"
    shutil.copytree(sample / "train", data)
    (data / "text" / "broken.jpg").write_bytes(b"\xff\xd8\xff\xe0 no picture")
    for more in ("", "--json"):
        run = f"{sys.executable} -m dali_run.cli.main run {spec} --fresh --set data={data} {more}"
        command = f"{run} | head -c 0; echo ${{PIPESTATUS[0]}}"
        done = subprocess.run(["bash", "-c", command], cwd=ROOT, capture_output=True, text=True, check=True)
        assert done.stdout.split() == ["3"], done.stderr
        assert "Traceback" not in done.stderr


def launched(monkeypatch: pytest.MonkeyPatch, **variables: str) -> None:
    for name in ("WORLD_SIZE", "RANK", "SLURM_STEP_NUM_TASKS", "SLURM_NTASKS", "SLURM_PROCID",
                 "OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_RANK"):  # fmt: skip
        monkeypatch.delenv(name, raising=False)
    for name, value in variables.items():
        monkeypatch.setenv(name, value)


def test_parts_come_from_the_environment_when_asked_for(
    spec: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    launched(monkeypatch, SLURM_NTASKS="3", SLURM_PROCID="2")
    assert cli.main(["run", str(spec), "--quiet"]) == 0  # a lone job inside of an allocation does everything
    whole = {p.name: p.read_bytes() for p in out_of(spec).glob("*.tfrecord")}
    assert (out_of(spec) / "manifest.json").exists()
    parts = spec.parent / "parts"
    run = ["run", str(spec), "--num-shards", "auto", "--set", f"out={parts}"]
    for i in range(3):
        if i == 1:
            launched(monkeypatch, WORLD_SIZE="3", RANK="1", SLURM_NTASKS="1", SLURM_PROCID="0")
        else:
            launched(monkeypatch, SLURM_NTASKS="3", SLURM_PROCID=str(i))
        assert cli.main(run) == 0
        assert f"part {i} of 3, from {'RANK and WORLD_SIZE' if i == 1 else 'SLURM_PROCID'}" in capsys.readouterr().err
    assert {p.name: p.read_bytes() for p in parts.glob("*.tfrecord")} == whole


@pytest.mark.parametrize(
    ("variables", "more", "said"),
    [
        ({}, [], "no launcher says"),
        ({"WORLD_SIZE": "2", "RANK": "2"}, [], "name no part"),
        ({"SLURM_NTASKS": "many", "SLURM_PROCID": "0"}, [], "name no part"),
        ({"WORLD_SIZE": "2", "RANK": "0"}, ["--shard-id", "1"], "is taken from the environment"),
    ],
)
def test_an_environment_that_names_no_part_is_refused(
    spec: Path, variables: dict[str, str], more: list[str], said: str, monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    launched(monkeypatch, **variables)
    assert cli.main(["run", str(spec), "--num-shards", "auto", *more]) == 2
    assert said in capsys.readouterr().err
    assert not out_of(spec).exists()


def test_lines_for_people_hold_no_control_characters(capsys: pytest.CaptureFixture[str]) -> None:
    from dali_run.cli.output import say

    say("a\x1b[31m\r\x00\x9b\u202eb")
    assert capsys.readouterr().err == "dali-run: a\\x1b[31m\\r\\x00\\x9b\\u202eb\n"


@pytest.mark.parametrize("name", [signal.SIGINT, signal.SIGTERM])
def test_an_interrupted_job_continues_to_the_same_bytes(spec: Path, sample: Path, name: signal.Signals) -> None:
    flat = spec.parent / "flat"
    (flat / "a").mkdir(parents=True)
    for i in range(10):
        for k, path in enumerate(sorted((sample / "train").rglob("*.jpg"))):
            os.link(path, flat / "a" / f"{i:02d}-{k:02d}.jpg")
    command = [sys.executable, "-m", "dali_run.cli.main", "run", str(spec), "--set", f"data={flat}"]
    environment, go = held(spec.parent, after=15)
    process = subprocess.Popen(
        command, cwd=ROOT, stderr=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environment,
        preexec_fn=lambda: signal.signal(name, signal.SIG_DFL),  # background jobs of a shell ignore SIGINT
    )  # fmt: skip
    while not list(out_of(spec).glob("*.tfrecord")) and process.poll() is None:
        time.sleep(0.01)
    process.send_signal(name)
    go.touch()
    printed, err = process.communicate()
    assert process.returncode == 130, err
    assert printed == ""
    assert "interrupted after" in err
    assert "Traceback" not in err
    assert not (out_of(spec) / "manifest.json").exists()
    assert cli.main(["run", str(spec), "--set", f"data={flat}", "--quiet"]) == 0
    other = spec.parent / "straight"
    assert cli.main(["run", str(spec), "--set", f"data={flat}", "--set", f"out={other}", "--quiet"]) == 0
    resumed = {p.name: p.read_bytes() for p in out_of(spec).glob("*.tfrecord")}
    assert len(resumed) == 30
    assert resumed == {p.name: p.read_bytes() for p in other.glob("*.tfrecord")}


# -- progress ---------------------------------------------------------------------------------------------------------


@dataclass
class State:
    done: int = 0
    total: int = 1000
    rejected: int = 0
    started: float = 0.0

    def status(self) -> dict[str, object]:
        return {"bottleneck": {"what": "cpu", "share": 0.92}} if self.done < 600 else {}


def test_plain_lines_come_every_few_seconds(capsys: pytest.CaptureFixture[str]) -> None:
    now = [0.0]
    lines = progress.Lines(clock=lambda: now[0])
    for done in range(0, 1001, 10):
        now[0] = done / 100
        lines(State(done, rejected=done // 500))
    err = capsys.readouterr().err.splitlines()
    assert err == [
        "500 of 1,000 samples (50%), 100/s, 5.00 s left, 1 rejected; busiest: cpu 92%",
        "1,000 of 1,000 samples (100%), 100/s, 0.00 s left, 2 rejected",
    ]


def test_what_is_counted_has_a_rate_and_the_time_that_is_left(capsys: pytest.CaptureFixture[str]) -> None:
    now = [0.0]
    with progress.counted("checked", quiet=False, clock=lambda: now[0]) as tell:
        for done in range(0, 101, 5):
            now[0] = done / 10
            tell(done << 20, 100 << 20)
    assert capsys.readouterr().err.splitlines() == [
        "checked 50.0 MiB of 100 MiB (50%), 10.0 MiB/s, 5.00 s left",
        "checked 100 MiB of 100 MiB (100%), 10.0 MiB/s, 0.00 s left",
    ]
    with progress.counted("checked", quiet=True) as tell:
        tell(1, 2)
    assert capsys.readouterr().err == ""


def test_a_terminal_gets_a_bar(spec: Path) -> None:
    ours, theirs = pty.openpty()
    command = [sys.executable, "-m", "dali_run.cli.main", "run", str(spec)]
    environment = {**os.environ, "TERM": "xterm", "COLUMNS": "100"}
    process = subprocess.Popen(command, cwd=ROOT, stderr=theirs, stdout=subprocess.PIPE, env=environment)
    os.close(theirs)
    shown = bytearray()

    def look() -> None:  # at once: a terminal that nobody reads fills up, and the job waits for ever
        with contextlib.suppress(OSError):  # the other end is closed and everything was read
            while True:
                shown.extend(os.read(ours, 65536))

    watching = threading.Thread(target=look)
    watching.start()
    printed = process.communicate()[0]
    watching.join()
    os.close(ours)
    assert process.returncode == 0
    assert b"24/24" in shown
    assert b"wrote 24 samples" in printed


# -- validate and plan ------------------------------------------------------------------------------------------------


def test_validate_says_everything_at_once(spec: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["validate", str(spec), VAL]) == 0
    assert capsys.readouterr().out.count(": valid: ") == 2
    spec.write_text(spec.read_text().replace("op: resize", "op: resiz").replace("in: jpegs", "in: jpgs"))
    assert cli.main(["validate", str(spec), VAL]) == 2
    printed, err = capsys.readouterr()
    assert len(printed.splitlines()) == 1
    first, second = err.splitlines()
    assert first.startswith(f"{spec}:7:30: step 2 (decoders.image): there is no batch 'jpgs'")
    assert second.startswith(f"{spec}:8:10: step 3 (resiz): there is no operator 'resiz'; did you mean resize?")
    assert cli.main(["validate", str(spec), "--json"]) == 2
    (result,) = json.loads(capsys.readouterr().out)
    assert [(p["line"], p["column"]) for p in result["problems"]] == [(7, 30), (8, 10)]


def test_validate_says_what_beginners_need(spec: Path, capsys: pytest.CaptureFixture[str]) -> None:
    text = spec.read_text()
    for old, new, said in (
        ("in: images", "in: jpegs", "; if these are encoded files, decode them first, with decoders.image\n"),
        ("op: resize", "op: gauss", "there is no operator 'gauss'; `dali-run ops` lists them\n"),
    ):
        assert old in text
        spec.write_text(text.replace(old, new, 1))
        assert cli.main(["validate", str(spec)]) == 2
        assert said in capsys.readouterr().err
    spec.write_text("\n".join(line for line in text.splitlines() if not line.startswith("outputs")))
    assert cli.main(["validate", str(spec)]) == 2
    assert "; outputs" not in capsys.readouterr().err


def test_validate_notes_what_has_no_effect(spec: Path, capsys: pytest.CaptureFixture[str]) -> None:
    spec.write_text(spec.read_text().replace("name: Reader,", "name: Reader, read_ahead: true,"))
    assert cli.main(["validate", str(spec)]) == 0
    printed, err = capsys.readouterr()
    assert ": valid: " in printed
    assert err.startswith(f"{spec}:6:38: note: step 1 (readers.file): argument 'read_ahead' has no effect")
    assert len(err.splitlines()) == 1
    assert cli.main(["run", str(spec), "--limit", "4"]) == 0
    assert "'read_ahead' has no effect" in capsys.readouterr().err
    assert cli.main(["run", str(spec), "--limit", "4", "--fresh", "--quiet"]) == 0
    assert capsys.readouterr() == ("", "")


def test_another_limit_is_named(spec: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["run", str(spec), "--limit", "4", "--quiet"]) == 0
    assert cli.main(["run", str(spec), "--quiet"]) == 1
    assert "range: was [0, 4], now [0, 24] (--limit is another)" in capsys.readouterr().err


def test_a_file_in_the_place_of_the_output_is_no_job_to_continue(
    spec: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "taken").write_text("")
    assert cli.main(["run", str(spec), "--set", f"write.path={tmp_path}/taken", "--quiet"]) == 1
    assert "nothing was written yet" in capsys.readouterr().err


def test_validate_imports_nothing_heavy(spec: Path) -> None:
    code = f"import sys; from dali_run.cli.main import main; main(['validate', {str(spec)!r}]); print(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True)
    loaded = {m.split(".")[0] for m in done.stdout.splitlines()[-1].split()}
    assert "yaml" in loaded
    assert not loaded & {"numba", "llvmlite", "cupy", "cv2", "av", "torch", "jax", "scipy", "rich"}


def test_hostile_files_as_specs_end_with_2(shared_data: Path, capsys: pytest.CaptureFixture[str]) -> None:
    files = sorted(
        p for kind in ("yaml_bad", "json_bad") for p in (shared_data / "corpus" / kind).rglob("*") if p.is_file()
    )
    assert len(files) > 100
    for path in files:
        assert cli.main(["run", str(path)]) == 2, path
        printed, err = capsys.readouterr()
        assert printed == ""
        assert err.strip()
        assert "internal error" not in err


def test_plan_shows_stages_and_outputs(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["plan", VAL, "--device", "null"]) == 0
    printed = capsys.readouterr().out
    assert "float[3x224x224] CHW" in printed
    assert "Writes image (raw), label (auto) as tfrecord" in printed
    assert cli.main(["plan", VAL, "--device", "null", "--json"]) == 0
    plan = json.loads(capsys.readouterr().out)
    stages = {o["name"]: o["runs_on"] for o in plan["operators"]}
    assert stages["Reader"] == "cpu"
    assert stages["decoders.image"] == "mixed"
    assert cli.main(["plan", VAL, "--device", "gpu", "--json"]) == 0  # nothing is run: no GPU is needed
    assert {o["name"]: o["runs_on"] for o in json.loads(capsys.readouterr().out)["operators"]} == stages
    assert cli.main(["plan", VAL, "--device", "cpu", "--json"]) == 0
    assert {o["runs_on"] for o in json.loads(capsys.readouterr().out)["operators"]} == {"cpu"}


# -- inspect ----------------------------------------------------------------------------------------------------------


def test_inspect_dumps_every_intermediate_of_a_spec(
    spec: Path, sample: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    look = spec.parent / "look"
    assert cli.main(["inspect", str(spec), "-n", "3", "--out", str(look)]) == 0
    assert "decoders.image" in capsys.readouterr().out
    assert (look / "contact-sheet.png").exists()
    first = sorted((sample / "train").rglob("*.jpg"))[0]
    assert next(look.glob("*Reader*-0.jpg")).read_bytes() == first.read_bytes()
    expected = pixels(first)
    shown = pixels(next(look.glob("*decoders*-0.png")))
    assert shown.shape == expected.shape
    assert np.abs(shown - expected).mean() < 1
    assert pixels(next(look.glob("*resize*-2.png"))).shape == (32, 32, 3)
    assert not out_of(spec).exists()


@pytest.mark.parametrize(
    ("where", "kind", "records", "name"),
    [
        ("train", "folders of files", 24, "data"),
        ("train/text", "files", 6, "data"),
        ("lmdb", "LMDB", 24, "data"),
        ("tfrecord", "TFRecord", 24, "image/encoded"),
        ("tfrecord/train-00001-of-00002.tfrecord", "TFRecord", 12, "image/encoded"),
    ],
)
def test_inspect_lists_and_decodes_a_data_set(
    where: str, kind: str, records: int, name: str, sample: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.main(["inspect", str(sample / where), "-n", "2", "--json", "--out", str(tmp_path)]) == 0
    found = json.loads(capsys.readouterr().out)
    assert (found["kind"], found["records"], len(found["samples"])) == (kind, records, 2)
    field = found["samples"][0]["fields"][name]
    assert field["what"] == "jpeg"
    with Image.open(next(tmp_path.glob("*-0.png"))) as shown:
        assert shown.size == (field["width"], field["height"])
    assert cli.main(["inspect", str(sample / where), "-n", "1"]) == 0
    assert "jpeg" in capsys.readouterr().out


def test_inspect_shows_what_a_job_wrote(spec: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for writer, kind in (("tfrecord", "TFRecord"), ("numpy", "NumPy arrays"), ("webdataset", "tar (webdataset)"),
                         ("lmdb", "LMDB")):  # fmt: skip
        assert cli.main(["run", str(spec), "--quiet", "--fresh", "--set", f"write.writer={writer}"]) == 0
        assert cli.main(["inspect", str(out_of(spec)), "--json", "-n", "9"]) == 0
        found = json.loads(capsys.readouterr().out)
        assert (found["kind"], found["records"]) == (f"{kind}, written by dali-run", 24)
        arrays = [f for s in found["samples"] for f in s["fields"].values() if f.get("shape") == [32, 32, 3]]
        assert len(arrays) == 9
        assert all(f["dtype"] == "uint8" for f in arrays)


@pytest.mark.parametrize("where", ["", "data-00000-of-00001.rec"])
def test_inspect_shows_records_of_recordio(
    where: str, sample: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "out"
    assert cli.main(["convert", str(sample / "train"), str(out), "--to", "recordio", "--quiet"]) == 0
    assert cli.main(["inspect", str(out / where), "--json", "-n", "99", "--out", str(tmp_path / "look")]) == 0
    found = json.loads(capsys.readouterr().out)
    assert (found["kind"], found["records"]) == ("RecordIO" if where else "RecordIO, written by dali-run", 24)
    files = sorted((sample / "train").rglob("*.jpg"))
    for number, (shown, file) in enumerate(zip(found["samples"], files, strict=True)):
        assert (shown["key"], shown["record"]) == (f"data-00000-of-00001.rec/{number:08d}", number)
        assert shown["fields"]["data"]["bytes"] == file.stat().st_size
        assert float(shown["fields"]["label"]["value"]) == sorted({f.parent for f in files}).index(file.parent)
    assert len(list((tmp_path / "look").glob("data-*.png"))) == 24


@pytest.mark.parametrize(
    ("name", "kind"),
    [("a.tfrecord-00000-of-00002", "TFRecord"), ("a.tfrecords", "TFRecord"), ("a.target", "files"), ("rec", "files")],
)
def test_inspect_knows_containers_by_the_end_of_their_names(
    name: str, kind: str, sample: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    shutil.copy(next((sample / "tfrecord").glob("*.tfrecord")), tmp_path / name)
    for target in (tmp_path, tmp_path / name):
        assert cli.main(["inspect", str(target), "--json"]) == 0
        assert json.loads(capsys.readouterr().out)["kind"] == kind


def test_what_may_not_be_read_is_said_of_itself(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(os, "access", lambda *_: False)  # root may read everything
    assert cli.main(["inspect", str(tmp_path)]) == 1
    assert f"{tmp_path} cannot be read: Permission denied" in capsys.readouterr().err


def test_inspect_of_a_folder_of_several_data_sets_shows_none_of_them(
    sample: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.main(["inspect", str(sample)]) == 1
    told = capsys.readouterr().err
    assert all(f"{sample / name}" in told.partition(": is ")[2] for name in ("train", "val"))


def test_inspect_names_what_is_broken(sample: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    shard = tmp_path / "x.tfrecord"
    data = bytearray(next((sample / "tfrecord").glob("*.tfrecord")).read_bytes())
    data[200] ^= 1
    shard.write_bytes(data)
    assert cli.main(["inspect", str(shard), "-n", "2", "--json"]) == 0
    first, second = json.loads(capsys.readouterr().out)["samples"]
    assert "corrupt_record" in first["problem"]
    assert second["fields"]["image/encoded"]["what"] == "jpeg"
    (tmp_path / "y.tar").write_bytes(b"no tar at all" * 100)
    assert cli.main(["inspect", str(tmp_path / "y.tar"), "--json"]) == 0
    assert "corrupt_record" in json.loads(capsys.readouterr().out)["samples"][0]["problem"]
    assert cli.main(["inspect", str(tmp_path / "missing")]) == 2
    assert "no such file" in capsys.readouterr().err


# -- verify -----------------------------------------------------------------------------------------------------------


def test_verify_finds_a_flipped_bit(spec: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["run", str(spec), "--quiet"]) == 0
    assert cli.main(["verify", str(out_of(spec))]) == 0
    assert "verified: 24 samples in 3 shards" in capsys.readouterr().out
    assert cli.main(["verify", str(out_of(spec)), "--deep"]) == 0
    assert "6 files without SHA-256: checked by CRC-32C and hash tree" in capsys.readouterr().out
    shard = sorted(out_of(spec).glob("*.tfrecord"))[1]
    data = bytearray(shard.read_bytes())
    data[len(data) // 2] ^= 4
    shard.write_bytes(data)
    assert cli.main(["verify", str(out_of(spec))]) == 1
    printed, err = capsys.readouterr()
    assert printed == ""
    assert shard.name in err
    assert cli.main(["verify", str(out_of(spec)), "--json"]) == 1
    verdict = json.loads(capsys.readouterr().out)
    assert verdict["sound"] is False
    assert {Path(p["file"]).stem for p in verdict["problems"]} == {shard.stem}
    capsys.readouterr()
    missing = ("nothing", "nothing: there is no such file or folder", 2)
    (spec.parent / "empty").mkdir()
    for other, why, code in (missing, ("empty", "empty/journal.jsonl: is missing", 1)):
        assert cli.main(["verify", str(spec.parent / other)]) == code
        assert capsys.readouterr().err.startswith(f"dali-run: {spec.parent / other}{why.removeprefix(other)}")


# -- ops --------------------------------------------------------------------------------------------------------------


def test_ops_lists_and_explains(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["ops", "--json"]) == 0
    listed = {o["name"]: o for o in json.loads(capsys.readouterr().out)}
    assert {"readers.file", "decoders.image", "resize", "crop_mirror_normalize"} <= set(listed)
    assert listed["decoders.image"]["stages"] == ["cpu", "mixed"]
    assert not any(name.startswith("_") for name in listed)
    assert cli.main(["ops"]) == 0
    assert "crop_mirror_normalize" in capsys.readouterr().out
    assert cli.main(["ops", "resize"]) == 0
    printed = capsys.readouterr().out
    assert "interp_type" in printed
    assert "resize_shorter" in printed
    assert cli.main(["ops", "decoders.image"]) == 0
    table, idle = capsys.readouterr().out.split("accepted, without effect:")
    assert "max_pixels" in table  # what matters is not crowded by what DALI's programs may pass
    assert "cache_size" not in table
    assert "cache_size" in idle
    assert cli.main(["ops", "writers.tfrecord"]) == 0
    assert "index" in capsys.readouterr().out
    assert cli.main(["ops", "resise"]) == 2
    assert "did you mean resize" in capsys.readouterr().err


# -- schema -----------------------------------------------------------------------------------------------------------


def test_every_config_follows_the_printed_schema(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["schema"]) == 0
    schema = json.loads(capsys.readouterr().out)
    jsonschema.Draft202012Validator.check_schema(schema)
    validator = jsonschema.Draft202012Validator(schema)
    configs = sorted((ROOT / "configs").glob("*.yaml"))
    assert configs
    for path in configs:
        assert not list(validator.iter_errors(yaml.safe_load(path.read_text()))), path
    wrong = yaml.safe_load(configs[0].read_text())
    wrong["graph"][0]["op"] = "no.such.operator"
    assert list(validator.iter_errors(wrong))
