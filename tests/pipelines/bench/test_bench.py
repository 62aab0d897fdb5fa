"""Benchmarks: settings, summaries, baselines, translation to DALI, tuning. No test depends on how fast anything is."""

from __future__ import annotations

import io
import json
import os
import re
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image
from rich.console import Console

from dali_run.ops.errors import SpecError
from dali_run.pipelines.bench import run as module
from dali_run.pipelines.bench.machine import facts, limits
from dali_run.pipelines.bench.measure import MIN_BATCHES, Measurement, measure
from dali_run.pipelines.bench.peers.dali import dali_script
from dali_run.pipelines.bench.run import Bench, compare, comparison, failures, load_baseline, median_of, run_bench
from dali_run.pipelines.bench.tune import climb, read_settings, settings_text
from dali_run.pipelines.bench.view import bench_html, bench_view
from dali_run.pipelines.compile.place import Target
from dali_run.pipelines.compile.plan import compile_graph
from dali_run.pipelines.job.run import run_job

SPEC = """\
version: 1
vars: {size: 16}
pipeline: {batch_size: 4, num_threads: 2, device: cpu}
graph:
  - {op: readers.file, file_root: IN, random_shuffle: true, out: [x, label]}
  - {op: decoders.image, in: x, out: x}
  - {op: resize, in: x, size: ["${size}", "${size}"], interp_type: CUBIC, out: x}
  - {op: random.coin_flip, seed: 7, out: mirror}
  - {op: flip, in: x, horizontal: $mirror, out: x}
  - {op: expr, expr: "clamp(x * 2, 0, 255)", out: bright}
outputs: {x: x, bright: bright, label: label}
"""
WRITE = "write: {writer: tfrecord, path: OUT, fields: {x: {encode: png}, label: {}}}\n"


@pytest.fixture
def spec(tmp_path: Path) -> Path:
    folder = tmp_path / "in" / "a"
    folder.mkdir(parents=True)
    for i in range(6):
        Image.fromarray(np.full((20, 30, 3), 40 * i, np.uint8)).save(folder / f"{i}.png")
    file = tmp_path / "spec.yaml"
    file.write_text(SPEC.replace("IN", str(tmp_path / "in")))
    return file


def measurement(spec: Path, **changes: Any) -> Measurement:
    return Measurement(**{"spec": str(spec), "overrides": {}, "seconds": 0.05, "warm_up": 1, **changes})


def result(speed: float, outputs: Any = ()) -> dict[str, Any]:
    return {"samples_per_second": speed, "first_batch_seconds": 0.5, "outputs": list(outputs)}


def report_of(**medians: float) -> dict[str, Any]:
    rows = [{"setting": k, "engine": "dali-run", "samples_per_second": {"median": v}} for k, v in medians.items()]
    return {"kind": "dali-run bench", "schema_version": 2, "results": rows}


# -- measuring --------------------------------------------------------------------------------------------------------


def test_measure_runs_longer_than_the_data_and_counts_the_window_only(spec: Path) -> None:
    found = measure(measurement(spec, warm_up=3))
    assert found["samples_per_second"] > 0
    assert found["outputs"] == [["UINT8", 3, "HWC"], ["INT32", 3, "HWC"], ["INT32", 1, ""]]
    read = found["report"]["samples"]["read"]
    assert read > 6  # epoch after epoch
    assert read % 4 == 0
    assert [o["name"] for o in found["report"]["operators"]][:2] == ["readers.file", "decoders.image"]
    assert found["report"]["bottleneck"]["sentence"]


def test_settings_are_all_combinations(spec: Path) -> None:
    bench = Bench(
        {"a": measurement(spec, overrides={"size": "8"})}, sweep={"batch_size": ["2", "4"], "size": ["16", "24"]}
    )
    settings = bench.settings()
    assert [label for label, _ in settings] == [
        "batch_size=2 size=16", "batch_size=2 size=24", "batch_size=4 size=16", "batch_size=4 size=24",
    ]  # fmt: skip
    assert settings[1][1].overrides == {"size": "24", "pipeline.batch_size": "2"}


def test_bench_in_processes_of_their_own(spec: Path, tmp_path: Path) -> None:
    said: list[str] = []
    bench = Bench({"a": measurement(spec)}, {"batch_size": ["2", "3"]}, repeats=1, limits=True)
    report = run_bench(bench, ["dali-run", "bench"], said.append)
    json.dumps(report)
    assert [r["setting"] for r in report["results"]] == ["batch_size=2", "batch_size=3"]
    assert all(r["report"]["samples"]["read"] % n == 0 for r, n in zip(report["results"], (2, 3), strict=True))
    assert len(said) == 2
    assert set(report["limits_gb_per_second"]) == {"page_cache_to_memory", "memory_copy"}
    assert report["machine"]["versions"]["dali-run"]
    assert report["command"] == ["dali-run", "bench"]
    assert not failures(report)
    page = bench_html(report)
    assert "batch_size=3" in page
    assert "decoders.image" in page
    assert "Over time" in page
    assert page.count("<path") >= 3


def test_repeats_are_interleaved_and_summed_up(spec: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    order: list[str] = []
    speeds = iter([10.0, 1.0, 30.0, 3.0, 20.0, 2.0])

    def fake(this: Measurement, what: str) -> dict[str, Any]:
        order.append(f"{what} {this.overrides['pipeline.batch_size']}")
        return result(next(speeds))

    monkeypatch.setattr(module, "run_in_process", fake)
    report = run_bench(Bench({"a": measurement(spec)}, {"batch_size": ["2", "4"]}, repeats=3))
    assert order == ["measure 2", "measure 4"] * 3
    first, second = report["results"]
    assert first["samples_per_second"] == {"median": 20, "min": 10, "max": 30, "all": [10, 30, 20]}
    assert median_of(second) == 2


def test_a_setting_that_fails_is_named_and_not_repeated(spec: Path) -> None:
    said: list[str] = []
    report = run_bench(
        Bench({"a": measurement(spec, overrides={"on_error.policy": "fail"})}, repeats=2), note=said.append
    )
    assert not failures(report)
    (spec.parent / "in" / "a" / "0.png").write_bytes(b"no picture")
    said.clear()
    report = run_bench(
        Bench({"a": measurement(spec, overrides={"on_error.policy": "fail"})}, repeats=2), note=said.append
    )
    assert "0.png" in failures(report)[0]
    assert len(said) == 1
    assert "Not measured" in bench_html(report)


def test_a_wrong_setting_is_refused_before_anything_runs(spec: Path) -> None:
    with pytest.raises(SpecError, match="batch_size"):
        run_bench(Bench({"a": measurement(spec)}, {"batch_size": ["4", "-1"]}))


# -- baselines --------------------------------------------------------------------------------------------------------


def compared(before: dict[str, float], **now: float) -> dict[str, Any]:
    return report_of(**now) | {"baseline": {"samples_per_second": before, "other_machine": []}}


def test_compare_names_the_settings_that_are_slower() -> None:
    before = {"a": 100.0, "b": 100.0, "gone": 100.0}
    assert compare(compared(before, a=95, b=200, new=1), 0.95) == []
    assert comparison(compared(before, a=95, b=200, new=1), 0.95) == [
        "not in the baseline: new",
        "2 settings compared with the baseline: 95.0% to 200.0% of it, 0 below 95%",
    ]
    (line,) = compare(compared(before, a=94, b=100), 0.95)
    assert line == "a: 94.0/s is 94.0% of the baseline's 100.0/s"


def test_a_comparison_of_nothing_is_refused_before_anything_runs(spec: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "run_in_process", lambda *_: pytest.fail("measured"))
    with pytest.raises(SpecError, match="no setting is in the baseline, too; it has: a"):
        run_bench(Bench({"b": measurement(spec)}), baseline=report_of(a=1))


def test_the_baseline_is_in_the_report_and_on_the_page(spec: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    whole = measure(measurement(spec))
    monkeypatch.setattr(module, "run_in_process", lambda *_: whole | result(50.0))
    before = report_of(**{"as in the spec": 100.0}) | {"machine": facts() | {"cpu": "another"}}
    report = run_bench(Bench({"a": measurement(spec)}, repeats=1), baseline=before)
    assert report["baseline"]["samples_per_second"] == {"as in the spec": 100.0}
    assert len(compare(report, 0.95)) == 1
    assert "another machine: cpu" in comparison(report, 0.95)[0]
    for page in (bench_html(report), str(rendered(bench_view(report)))):
        assert "of baseline" in page
        assert "50.0%" in page


def rendered(view: Any) -> str:
    console = Console(width=200, record=True, file=io.StringIO())
    console.print(view)
    return console.export_text()


def test_a_plot_shows_long_names_whole_and_how_far_results_are_apart(
    spec: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    speeds, whole = iter([100.0, 40.0, 60.0]), measure(measurement(spec))
    monkeypatch.setattr(module, "run_in_process", lambda *_: whole | result(next(speeds)))
    sweep = {"graph.random.coin_flip.probability": ["0.25"]}
    page = bench_html(run_bench(Bench({"a": measurement(spec)}, sweep, repeats=3)))
    row = next(r for r in page.split("<tr>") if "dali-run graph.random.coin_flip.probability=0.25</th>" in r)
    assert re.findall(r"(?:left|width):([\d.]+)%", row) == ["60.00", "40.00", "60.00"]  # bar, and the line's place
    assert ">60.0/s<" in row
    assert ">40.0/s to 100/s<" in row
    assert "http" not in page.replace("http-equiv", "")  # nothing is fetched
    assert "<script" not in page


def test_a_measurement_has_some_batches_however_short_it_is(spec: Path) -> None:
    found = measure(measurement(spec, seconds=1e-9))
    assert found["report"]["samples"]["read"] == 4 * MIN_BATCHES
    assert "batches < MIN_BATCHES" in script(spec)


@pytest.mark.parametrize("text", ["", "[]", '{"kind": "other"}', '{"kind": "dali-run bench", "schema_version": 99}'])
def test_what_is_no_baseline_is_refused(text: str, tmp_path: Path) -> None:
    (tmp_path / "old.json").write_text(text)
    with pytest.raises(SpecError, match=r"old\.json"):
        load_baseline(tmp_path / "old.json")


# -- DALI -------------------------------------------------------------------------------------------------------------


def script(spec: Path, device: Any = "cpu", **changes: Any) -> str:
    this = measurement(spec, **changes)
    built, _ = this.compiled()
    plan = compile_graph(built.graph, Target(device), 0, fusing=False)
    text = dali_script(plan.graph, plan.target, built.spec.pipeline, 2, seconds=1, warm_up=2, to_host=False)
    compile(text, "peer.py", "exec")
    return text


def test_the_graph_in_dalis_words(spec: Path) -> None:
    lines = script(spec).splitlines()
    root = str(spec.parent / "in")
    begin = lines.index("with pipe:")
    assert lines[begin - 1] == (
        "pipe = nvidia.dali.Pipeline(batch_size=4, num_threads=2, device_id=None, prefetch_queue_depth=2, seed=0)"
    )
    assert lines[begin + 1 : begin + 8] == [
        f"    n0 = fn.readers.file(random_shuffle=True, file_root={root!r}, device='cpu')",
        "    n1 = (fn.decoders.image(n0[0], device='cpu'),)",
        "    n2 = (fn.resize(n1[0], interp_type=types.INTERP_CUBIC, size=[16.0, 16.0], device='cpu'),)",
        "    n3 = (fn.random.coin_flip(seed=7, device='cpu'),)",
        "    n4 = (fn.flip(n2[0], horizontal=n3[0], device='cpu'),)",
        "    n5 = (eval('clamp(x * 2, 0, 255)', FUNCTIONS | {'x': n4[0]}),)",
        "    pipe.set_outputs(n4[0], n5[0], n0[1])",
    ]


def test_on_a_gpu_decoders_are_mixed_and_arguments_stay_on_the_host(spec: Path) -> None:
    text = script(spec, "gpu")
    assert "fn.decoders.image(n0[0], device='mixed')" in text
    assert "fn.flip(n2[0], horizontal=n3[0], device='gpu')" in text
    assert "fn.random.coin_flip(seed=7, device='cpu')" in text
    assert "device_id=0" in text


def test_host_data_is_uploaded_for_gpu_operators(spec: Path) -> None:
    text = spec.read_text().replace("op: decoders.image,", "op: decoders.image, device: cpu,")
    spec.write_text(text.replace("op: resize,", "op: resize, device: gpu,"))
    this = measurement(spec, overrides={"pipeline.device": "null"})
    built, _ = this.compiled()
    plan = compile_graph(built.graph, Target("gpu"), 0, fusing=False)
    made = dali_script(plan.graph, plan.target, built.spec.pipeline, 2, seconds=1, warm_up=2, to_host=False)
    assert "fn.resize(n1[0].gpu()," in made


@pytest.mark.parametrize(
    ("old", "new", "reason"),
    [
        ("clamp(x * 2, 0, 255)", "x > 1 and x < 3", "and, or, or not"),
        ("- {op: expr", "- {if: $mirror, then: [{op: flip, in: x, out: x}], else: [{op: copy, in: x, out: x}]}\n"
         "  - {op: expr", "conditionals"),
    ],
)  # fmt: skip
def test_what_is_not_translated_is_refused(spec: Path, old: str, new: str, reason: str) -> None:
    spec.write_text(spec.read_text().replace(old, new))
    with pytest.raises(SpecError, match=reason):
        script(spec)


RECORDS = """\
version: 1
pipeline: {batch_size: 4, num_threads: 1, device: cpu}
graph:
  - {op: readers.tfrecord, path: "IN", random_shuffle: true, features: FEATURES, out: [x, label]}
outputs: {x: x, label: label}
"""


def records(spec: Path, features: str) -> Path:
    """A spec that reads TFRecords."""
    run_job(write_spec(spec))
    out = spec.parent / "out"
    spec.write_text(RECORDS.replace("IN", f"{out}/*.tfrecord").replace("FEATURES", features))
    return spec


def write_spec(spec: Path) -> Path:
    spec.write_text(spec.read_text() + WRITE.replace("OUT", str(spec.parent / "out")))
    return spec


def test_records_are_read_by_dali_with_indexes_made_for_it(spec: Path) -> None:
    text = script(records(spec, "{x: string, label: int64}"))
    call = "read_tfrecord(features={'x': ([], 'string', ''), 'label': ([1], 'int64', 0)}, random_shuffle=True, path="
    assert f"n0 = {call}" in text


@pytest.mark.parametrize("label", ["{dtype: int64, var_len: true}", "{dtype: int64, default: 3}"])
def test_features_without_a_like_are_refused(spec: Path, label: str) -> None:
    with pytest.raises(SpecError, match="feature 'label' is not translated"):
        script(records(spec, f"{{x: string, label: {label}}}"))


def test_presets_are_refused(spec: Path) -> None:
    with pytest.raises(SpecError, match="DALI has no parity: pillow"):
        script(spec, overrides={"pipeline.parity": "pillow"})


def test_encoders_are_left_out_on_request(spec: Path) -> None:
    write_spec(spec)
    with pytest.raises(SpecError, match="DALI has no encoders"):
        script(spec)
    assert "fn.encoders" not in script(spec, encode=False)


def test_peers_are_compared_with_what_they_can_do_of_a_spec_that_encodes(
    spec: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Ours runs with and without encoders, each in its turns; the peer only without, beside ours without."""
    write_spec(spec)
    ran: list[tuple[str, bool]] = []

    def ours(this: Measurement, what: str) -> dict[str, Any]:
        ran.append((what, this.encode))
        return {
            **result(100.0 if this.encode else 300.0),
            "outputs": [["UINT8", 3, ""], ["INT32", 3, ""], ["INT32", 1, ""]],
        }

    fake = spec.parent / "python"
    outputs = [["UINT8", 3, ""], ["INT32", 3, ""], ["INT32", 1, ""]]
    fake.write_text(f"#!{sys.executable}\n{FAKE_DALI.replace('OUTPUTS', repr(outputs))}")
    fake.chmod(0o755)
    monkeypatch.setattr(module, "run_in_process", ours)
    said: list[str] = []
    report = run_bench(Bench({"a": measurement(spec)}, repeats=2, peers={"dali": str(fake)}), note=said.append)
    rows = {(r["setting"], r["engine"]): median_of(r) for r in report["results"]}
    label = "as in the spec, without encoders"
    assert rows == {("as in the spec", "dali-run"): 100, (label, "dali-run"): 300, (label, "dali"): 5}
    assert ran == [("measure", True), ("measure", False)] * 2
    assert "dali cannot encode" in said[0]
    alone = run_bench(Bench({"a": measurement(spec)}, repeats=1))  # nothing is added without a peer
    assert [r["setting"] for r in alone["results"]] == ["as in the spec"]


def test_a_peer_that_is_not_installed_does_not_end_the_benchmark(spec: Path) -> None:
    report = run_bench(Bench({"a": measurement(spec)}, repeats=1, peers={"dali": str(spec.parent / "no" / "python")}))
    assert "No such file" in report["results"][1]["error"]
    assert not failures(report)
    assert median_of(report["results"][0])


FAKE_DALI = """
import json
print("a warning")
print(json.dumps({"samples_per_second": 5.0, "first_batch_seconds": 1.0, "version": "9", "outputs": OUTPUTS}))
"""


@pytest.mark.parametrize("dims", [3, 2])
def test_a_peer_counts_only_with_equal_outputs(spec: Path, dims: int) -> None:
    outputs = [["UINT8", 3, ""], ["INT32", dims, "HWC"], ["INT32", 1, ""]]
    fake = spec.parent / "python"
    fake.write_text(f"#!{sys.executable}\n{FAKE_DALI.replace('OUTPUTS', repr(outputs))}")
    fake.chmod(0o755)
    ours, peer = run_bench(Bench({"a": measurement(spec)}, repeats=1, peers={"dali": str(fake)}))["results"]
    assert median_of(ours)
    assert median_of(peer) == (5.0 if dims == 3 else None)
    assert ("outputs differ" in peer.get("refused", "")) == (dims == 2)


@pytest.mark.skipif("DALI_PYTHON" not in os.environ, reason="DALI_PYTHON names no interpreter with NVIDIA DALI")
def test_dali_itself_runs_the_script(spec: Path) -> None:
    bench = Bench({"a": measurement(spec)}, repeats=1, peers={"dali": os.environ["DALI_PYTHON"]})
    peer = run_bench(bench)["results"][1]
    assert median_of(peer), peer
    spec.write_text(spec.read_text().replace("random_shuffle: true", "shuffle: full"))
    assert run_bench(bench)["results"][1]["refused"] == "DALI's readers.file has no argument shuffle"


@pytest.mark.skipif("DALI_PYTHON" not in os.environ, reason="DALI_PYTHON names no interpreter with NVIDIA DALI")
def test_dali_itself_reads_records(spec: Path) -> None:
    bench = Bench(
        {"a": measurement(records(spec, "{x: string, label: int64}"))},
        repeats=1,
        peers={"dali": os.environ["DALI_PYTHON"]},
    )
    peer = run_bench(bench)["results"][1]
    assert median_of(peer), peer


# -- the machine ------------------------------------------------------------------------------------------------------


def test_limits_read_every_byte_with_any_number_of_threads(spec: Path) -> None:
    files = [str(f) for f in sorted((spec.parent / "in" / "a").iterdir())]
    found = limits(files, 3)
    assert all(v >= 0 for v in found.values())
    assert set(found) == {"page_cache_to_memory", "memory_copy"}
    assert set(limits([], 1)) == {"memory_copy"}


def test_facts_are_plain_data() -> None:
    found = facts()
    assert json.loads(json.dumps(found)) == found
    assert found["cpu"]
    assert found["usable_cores"] >= 1


# -- tuning -----------------------------------------------------------------------------------------------------------


def test_climb_finds_the_top_of_a_hill() -> None:
    asked: list[dict[str, int]] = []

    def speed(p: dict[str, int]) -> float:
        asked.append(p)
        return 1000 / (1 + abs(np.log2(p["batch_size"] / 128)) + abs(np.log2(p["prefetch_queue_depth"] / 1)))

    best = climb({"batch_size": 16, "prefetch_queue_depth": 4}, ["batch_size", "prefetch_queue_depth"], speed)
    assert best == {"batch_size": 128, "prefetch_queue_depth": 1}
    assert all(p["prefetch_queue_depth"] >= 1 for p in asked)


def test_climb_takes_no_noise_for_a_gain_and_leaves_other_keys_alone() -> None:
    start = {"batch_size": 16, "prefetch_queue_depth": 4}
    assert climb(start, ["batch_size"], lambda p: 100 + p["batch_size"] / 100) == start
    assert climb(start, [], lambda p: 1 / p["batch_size"]) == start


def test_settings_go_into_a_file_and_back(tmp_path: Path) -> None:
    found = {"settings": {"batch_size": 128, "num_threads": 2}, "samples_per_second": 1234.5,
             "before": {"settings": {"batch_size": 64, "num_threads": 2}, "samples_per_second": 1000.0}}  # fmt: skip
    file = tmp_path / "tuned.yaml"
    file.write_text(settings_text(found))
    assert read_settings(file) == {"pipeline.batch_size": 128, "pipeline.num_threads": 2}


@pytest.mark.parametrize("text", ["- 1\n", "batch_size: 64\n", "pipeline: {a: 1, a: 2}\n"])
def test_wrong_settings_are_refused(text: str, tmp_path: Path) -> None:
    (tmp_path / "s.yaml").write_text(text)
    with pytest.raises(SpecError, match=r"s\.yaml"):
        read_settings(tmp_path / "s.yaml")
