"""`dali-run init`: what it writes for every kind of data validates, and runs."""

from __future__ import annotations

import io
import json
import re
import tarfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml
from PIL import Image

from dali_run import run_job
from dali_run.cli.main import main
from dali_run.ops.errors import SpecError
from dali_run.pipelines.job.first_spec import SCHEMA, TASKS, look_at, spec_text
from dali_run.pipelines.tools.sample_data import make_sample_data
from tests.kit.jobs.read_back import read_by_the_field

ANY: dict[str, list[str]] = {kind: list(tasks) for kind, tasks in TASKS.items()}


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Sample data, a tar of pictures with texts, .npy files, and one folder of pictures."""
    folder = tmp_path_factory.mktemp("data") / "data"
    make_sample_data(folder, 8, 0)
    (folder / "tar").mkdir()
    with tarfile.open(folder / "tar" / "a-000.tar", "w") as tar:
        for i in range(3):
            out = io.BytesIO()
            Image.new("RGB", (40, 30), (40 * i, 0, 0)).save(out, "jpeg")
            for name, content in ((f"{i}.jpg", out.getvalue()), (f"{i}.txt", b"a picture")):
                info = tarfile.TarInfo(name)
                info.size = len(content)
                tar.addfile(info, io.BytesIO(content))
    (folder / "arrays").mkdir()
    for i in range(3):
        np.save(folder / "arrays" / f"{i}.npy", np.full((4, 3), i, np.float32))
    return folder


def init(data: Path, tmp_path: Path, *more: str) -> dict[str, Any]:
    spec = tmp_path / "spec.yaml"
    assert main(["init", str(data), "-o", str(spec), "--out", str(tmp_path / "out"), *more]) == 0
    text = spec.read_text()
    assert "SPEC" not in text
    found: dict[str, Any] = yaml.safe_load(text)
    return found


@pytest.mark.parametrize(
    ("place", "kind", "task", "writer"),
    [
        ("train", "pictures", "resize", "webdataset"),
        ("train", "pictures", "train", "numpy"),
        ("train", "pictures", "val", "tfrecord"),
        ("train", "pictures", "keep", "files"),
        ("coco/images", "pictures", "resize", "recordio"),
        ("lmdb", "pictures", "resize", "webdataset"),
        ("tfrecord", "pictures", "val", "numpy"),
        ("tfrecord", "pictures", "keep", "lmdb"),
        ("tar", "pictures", "resize", "tfrecord"),
        ("tar", "pictures", "keep", "webdataset"),
        ("tar/a-000.tar", "pictures", "resize", "webdataset"),
        ("coco", "coco", "train", "webdataset"),
        ("coco", "coco", "keep", "tfrecord"),
        ("audio", "sounds", "keep", "webdataset"),
        ("arrays", "records", "keep", "numpy"),
    ],
)
def test_what_is_written_runs(place: str, kind: str, task: str, writer: str, data: Path, tmp_path: Path) -> None:
    assert look_at(str(data / place)).kind == kind
    spec = init(data / place, tmp_path, "--task", task, "--to", writer, *["--size", "24"][: 2 * (task != "keep")])
    assert spec["write"]["writer"] == writer
    report = run_job(tmp_path / "spec.yaml", device="cpu", limit=3)
    assert report.rejected == 0
    assert report.written >= 1
    read_by_the_field(spec, tmp_path / "out")


@pytest.mark.parametrize(("place", "writer"), [("train", "webdataset"), ("tfrecord", "tfrecord"), ("tar", "parquet")])
def test_a_curated_data_set(place: str, writer: str, data: Path, tmp_path: Path) -> None:
    if writer == "parquet":
        pytest.importorskip("pyarrow")
    spec = init(data / place, tmp_path, "--task", "curate", "--to", writer)
    assert [step["name"] for step in spec["graph"] if step["op"] == "keep_if"] == ["Size", "Aspect", "Sharp"]
    report = run_job(tmp_path / "spec.yaml", device="cpu")
    assert report.rejected == 0
    assert report.written + report.left_out == report.read
    assert report.written > 0 or place == "tar"
    assert set(report.data["splits"]) == {"train", "val"}
    if report.data["splits"]["train"]["written"]:
        read_by_the_field(spec, tmp_path / "out/train")


def test_features_of_sounds(data: Path, tmp_path: Path) -> None:
    pytest.importorskip("soundfile")
    init(data / "audio", tmp_path)
    report = run_job(tmp_path / "spec.yaml", device="cpu", limit=2)
    assert (report.written, report.rejected) == (2, 0)


def test_videos(tmp_path: Path) -> None:
    pytest.importorskip("av")
    from ...kit.files.videos import make_video

    (tmp_path / "videos" / "a").mkdir(parents=True)
    make_video(tmp_path / "videos" / "a" / "x.mp4", 40)
    init(tmp_path / "videos", tmp_path, "--size", "16")
    assert run_job(tmp_path / "spec.yaml", device="cpu", limit=1).written == 1


def test_it_asks_nothing_without_a_terminal_and_overwrites_nothing(data: Path, tmp_path: Path, capsys: Any) -> None:
    init(data / "train", tmp_path)
    before = (tmp_path / "spec.yaml").read_bytes()
    assert main(["init", str(data / "train"), "-o", str(tmp_path / "spec.yaml")]) == 2
    assert "already exists" in capsys.readouterr().err
    assert (tmp_path / "spec.yaml").read_bytes() == before
    assert main(["init", "-o", str(tmp_path / "other.yaml")]) == 2
    assert "DATA" in capsys.readouterr().err


def test_it_asks_three_questions_in_a_terminal(
    data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any
) -> None:
    import sys

    asked = []

    def prompt(question: str, default: str, err: bool) -> str:
        asked.append(question)
        return {"Where is the data?": str(data / "train"), "Where should the output go?": str(tmp_path / "out")}.get(
            question, default
        )

    monkeypatch.setattr(sys.stdin, "isatty", lambda: True, raising=False)
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True, raising=False)
    monkeypatch.setattr("typer.prompt", prompt)
    assert main(["init", "-o", str(tmp_path / "spec.yaml")]) == 0
    assert asked == ["Where is the data?", "Which task?", "Where should the output go?"]
    assert "resize" in capsys.readouterr().err


def test_the_schema_is_beside_it(data: Path, tmp_path: Path) -> None:
    init(data / "train", tmp_path)
    assert (tmp_path / "spec.yaml").read_text().startswith(f"# yaml-language-server: $schema=./{SCHEMA}\n")
    assert "$defs" in json.loads((tmp_path / SCHEMA).read_text())


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda p: None, "there is no such file or folder"),
        (lambda p: p.mkdir(), "holds no files"),
        (lambda p: (p.mkdir(), (p / "a.doc").write_text("x")), r"no known kind of data \(names end in .doc\)"),
        (
            lambda p: put(p, "train/cats/1.jpg", "val/cats/2.jpg", "n.txt"),
            r"DATA/<folder>/<file>. Name .*x/train or .*x/val,",
        ),
        (lambda p: put(p, "2024/05/01/1.png"), r"Name .*x/2024/05,"),
        (lambda p: put(p, "a/b/1.npy"), r"its .npy files in folders of folders.* Name .*x/a,"),
    ],
)
def test_what_it_cannot_use(make: Any, message: str, tmp_path: Path) -> None:
    make(tmp_path / "x")
    with pytest.raises(SpecError, match=message):
        look_at(str(tmp_path / "x"))


def put(root: Path, *names: str) -> Path:
    """Write images and arrays of 8 x 8 below ``root``, and other files empty."""
    for name in names:
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        if name.endswith(".npy"):
            np.save(root / name, np.zeros((8, 8), np.uint8))
        elif name.endswith(".txt"):
            (root / name).touch()
        else:
            Image.new("RGB", (8, 8)).save(root / name)
    return root


@pytest.mark.parametrize(
    ("names", "read", "unread"),
    [
        (["a/1.jpg", "b/2.JPG"], 2, 0),
        (["a/1.jpg", "2.jpg", "b/c/3.jpg"], 1, 2),
        (["1.jpg", "2.jpg", "b/c/3.jpg"], 2, 1),
        (["1.npy", "a/2.npy", "a/b/3.npy"], 2, 1),
        (["link/1.jpg"], 1, 0),
    ],
)
def test_what_is_read_of_a_folder_is_what_is_said(names: list[str], read: int, unread: int, tmp_path: Path) -> None:
    data = put(tmp_path / "data", *names)
    if names == ["link/1.jpg"]:
        (data / "link").rename(tmp_path / "elsewhere")
        (data / "link").symlink_to(tmp_path / "elsewhere")
    init(data, tmp_path, "--task", "keep")
    assert run_job(tmp_path / "spec.yaml", device="cpu").written == read
    said = re.search(r"; (\d+) that are not in DATA.* are not read", look_at(str(data)).about)
    assert (int(said[1]) if said else 0) == unread


def test_a_task_that_does_not_fit(data: Path) -> None:
    seen = look_at(str(data / "train"))
    with pytest.raises(SpecError, match=r"--task must be resize or .* or keep or curate for pictures, got 'log"):
        spec_text("x", seen, "logmel")
    assert all(next(iter(tasks)) for tasks in ANY.values())
