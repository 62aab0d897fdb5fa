"""The suites audio and video: files that are made, recipes, strata, and the peer whose packages the tests have."""

from __future__ import annotations

import itertools
import json
import sys
from pathlib import Path
from typing import Any

import pytest

from dali_run.cli import main as cli
from dali_run.ops.errors import SpecError
from dali_run.pipelines.bench import media_mix
from dali_run.pipelines.bench.measure import Measurement
from dali_run.pipelines.bench.run import Bench, median_of, peer_files, run_bench
from dali_run.pipelines.bench.strata import only, strata_of
from dali_run.pipelines.bench.suites import suite_data, write_suite
from dali_run.pipelines.spec.build import load_spec

av, soundfile = pytest.importorskip("av"), pytest.importorskip("soundfile")


@pytest.fixture(autouse=True)
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in {"SECONDS": 1, "FRAMES": 16, "HEIGHT": 48, "WIDTH": 64}.items():
        monkeypatch.setattr(media_mix, name, value)


def written(tmp_path: Path, suite: str) -> Path:
    if suite == "audio":
        media_mix.write_sounds(tmp_path / suite, 6, {"wav": 0.5, "flac": 0.3, "ogg": 0.2})
    else:
        media_mix.write_videos(tmp_path / suite, 3, {"h264": 0.7, "vp9": 0.3})
    return tmp_path / suite


def measurement(tmp_path: Path, suite: str, **changes: str) -> Measurement:
    tmp_path.mkdir(exist_ok=True)
    (spec,) = write_suite(suite, tmp_path).values()
    overrides = {"data": str(written(tmp_path, suite)), "pipeline.device": "cpu", "pipeline.batch_size": "2", **changes}
    return Measurement(str(spec), {**overrides, "pipeline.num_threads": "1"}, seconds=0.02, warm_up=0)


def test_the_files_are_what_they_are_called_and_differ(tmp_path: Path) -> None:
    sounds = sorted(p for p in written(tmp_path, "audio").rglob("*") if p.is_file())
    assert [p.suffix for p in sounds] == [".flac", ".flac", ".ogg", ".wav", ".wav", ".wav"]
    found = [soundfile.read(p) for p in sounds]
    assert {(len(x), rate) for x, rate in found} == {(media_mix.RATE, media_mix.RATE)}
    videos = sorted(p for p in written(tmp_path, "video").rglob("*") if p.is_file())
    assert [p.suffix for p in videos] == [".mp4", ".mp4", ".webm"]
    for path in videos:
        with av.open(str(path)) as container:
            assert sum(1 for _ in container.decode(video=0)) == 16
    for a, b in itertools.combinations([*sounds, *videos], 2):
        assert a.read_bytes() != b.read_bytes()


@pytest.mark.parametrize(
    ("suite", "kinds"), [("audio", {"wav": 3, "flac": 2, "ogg": 1}), ("video", {"h264": 2, "vp9": 1})]
)
def test_strata_are_formats_and_codecs(tmp_path: Path, suite: str, kinds: dict[str, int]) -> None:
    this = measurement(tmp_path, suite)
    graph = load_spec(this.spec, this.overrides).graph
    assert strata_of(graph) == kinds
    for kind, count in kinds.items():
        assert sum(strata_of(only(graph, kind)).values()) == count
    with pytest.raises(SpecError, match="no files of the stratum"):
        only(graph, "mp3")


def test_recipes_say_what_is_done(tmp_path: Path) -> None:
    files = peer_files("librosa", measurement(tmp_path, "audio"))
    compile(files["peer.py"], "peer.py", "exec")
    sounds = json.loads(files["recipe.json"])
    assert (sounds["kind"], sounds["nfft"], sounds["window_length"], sounds["window_step"]) == ("audio", 512, 400, 160)
    assert (sounds["bands"], sounds["reference"], sounds["cutoff"], len(sounds["files"])) == (80, 1, -80, 6)
    videos = json.loads(peer_files("pyav", measurement(tmp_path, "video"))["recipe.json"])
    assert (videos["kind"], videos["shorter"], len(videos["files"])) == ("video", 256, 3)
    assert videos["frames"] == [list(range(16))] * 3
    assert videos["times"][0][:2] == pytest.approx([0, 0.04])
    assert "readers.file" in peer_files("dali", measurement(tmp_path / "again", "audio"))["peer.py"]


@pytest.mark.parametrize(
    ("suite", "old", "new", "reason"),
    [
        ("audio", "downmix: true", "downmix: true, sample_rate: 8000", "sample_rate is not translated"),
        ("audio", "nfilter: 80", "nfilter: 80, mel_formula: htk", "mel_formula is not translated"),
        ("audio", "outputs: {logmel: x", "outputs: {logmel: x, raw: audio", "not translated"),
        ("video", "resize_shorter: 256", "size: [256, 256]", "size is not translated"),
        ("video", "output_layout: FCHW", "output_layout: FHWC", "output_layout: FCHW"),
        (
            "video",
            "  - op: crop_mirror",
            "  - {op: flip, in: frames, out: frames}\n  - op: crop_mirror",
            "has resize, flip",
        ),
    ],
)
def test_what_has_no_place_in_a_recipe_is_refused(tmp_path: Path, suite: str, old: str, new: str, reason: str) -> None:
    this = measurement(tmp_path, suite)
    text = Path(this.spec).read_text()
    assert old in text
    Path(this.spec).write_text(text.replace(old, new))
    with pytest.raises(SpecError, match=reason):
        peer_files("pyav", this)


def test_a_peer_runs_beside_ours(tmp_path: Path) -> None:
    (row, peer, other) = run_bench(
        Bench(
            {"clips": measurement(tmp_path, "video")},
            repeats=1,
            peers=dict.fromkeys(("pyav", "librosa"), sys.executable),
        )
    )["results"]
    assert median_of(row), row
    assert median_of(peer), peer  # a refusal would say that its outputs are not like ours
    assert other["refused"] == "librosa is for audio"


def test_suites_make_their_files_where_none_are_given(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    from dali_run.pipelines.bench import suites

    made: list[Path] = []

    def few(folder: Path) -> Any:
        made.append(folder)
        media_mix.write_sounds(folder, 2, {"wav": 1})

    monkeypatch.setattr(suites, "GENERATED", {"audio": few})
    report = tmp_path / "now.json"
    command = ["bench", "--suite", "audio", "--seconds", "0.01", "--repeats", "1", "--warm-up", "0", "--no-limits"]
    settings = ["--device", "cpu", "--set", "pipeline.batch_size=2", "--set", "pipeline.num_threads=1"]
    assert cli.main([*command, *settings, "--report", str(report)]) == 0
    assert len(made) == 1
    assert not made[0].exists()
    assert json.loads(report.read_text())["results"][0]["samples_per_second"]["median"] > 0
    assert suite_data("audio", tmp_path, tmp_path / "x") == tmp_path
    with pytest.raises(SpecError, match="needs a folder"):
        suite_data("web", None, tmp_path)
    capsys.readouterr()
    assert cli.main(["bench", "--suite", "imagenet"]) == 2
    assert "needs --data" in capsys.readouterr().err
