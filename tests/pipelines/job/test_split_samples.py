"""Jobs that make several samples of one: keys, order, rejects of single parts, retries, resumption, shards."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dali_run.ops.batch import Batch, Samples
from dali_run.ops.errors import SpecError
from dali_run.ops.sequences.split_samples import SplitSamples
from dali_run.pipelines.job.retry import retry_failed
from dali_run.pipelines.job.run import prepare, run_job
from dali_run.pipelines.tools.preview import check_spec, describe_job
from dali_run.writers.shards.verify import verify
from tests.kit.writers import HAS_PYARROW, digest

ROOT = Path(__file__).parents[3]
COUNTS = (5, 1, 0, 7, 3, 4)
"""Frames of the files; file 4 is broken, and frame 2 of file 3 is black, which costs it."""
REFUSING = """\
import numpy as np
from dali_run.ops.base import Operator
class Refuse(Operator, name="refuse_black"):
    def infer(self, *specs): return specs[0]
    def cpu(self, ctx, data):
        for i in range(len(data)):
            if data.sample(i).max() == 0:
                ctx.reject(i, "bad_argument", "it is black")
        return data
"""
SPEC = """\
version: 1
name: split
plugins: [refuse.py]
pipeline: {{batch_size: {batch}, num_threads: 2, device: {device}, seed: 1}}
graph:
  - {{op: readers.numpy, name: Reader, file_root: "{data}", file_filter: "*.npy", out: frames}}
  - {{op: reinterpret, in: frames, layout: FHWC, out: frames}}
  - {{op: get_property, in: frames, key: source_info, out: place}}
  - {{op: random.uniform, range: [0.0, 1.0], out: of_file}}
  - {{op: split_samples, in: frames, numbered: true, out: [frame, number]}}
  - {{op: refuse_black, in: frame, out: frame}}
  - {{op: random.coin_flip, out: coin}}
  - {{op: flip, in: frame, horizontal: $coin, out: frame}}
outputs: {{image: frame, number: number, place: place, drawn: of_file, coin: coin}}
write:
  writer: {writer}
  path: "{out}"
  shard: {{{shard}}}
  fields: {{image: {{encode: png}}, number: {{}}, place: {{}}, drawn: {{}}, coin: {{}}}}
on_error: {{policy: skip}}
"""


def frames(i: int) -> np.ndarray:
    made = np.random.default_rng(i).integers(1, 255, (COUNTS[i], 6, 5, 3), np.uint8)
    if i == 3:
        made[2] = 0
    return made


@pytest.fixture
def place(tmp_path: Path) -> Path:
    (tmp_path / "in").mkdir()
    (tmp_path / "refuse.py").write_text(REFUSING)
    for i in range(len(COUNTS)):
        np.save(tmp_path / f"in/{i}.npy", frames(i))
    (tmp_path / "in/4.npy").write_bytes(b"no array")
    return tmp_path


def spec(place: Path, out: str = "out", **given: Any) -> Path:
    path = place / f"{out}.yaml"
    given = {"batch": 3, "device": "cpu", "writer": "files", "shard": "samples: 4", **given}
    path.write_text(SPEC.format(data=place / "in", out=place / out, **given))
    return path


def listed(out: Path) -> list[dict[str, Any]]:
    lines = (line for path in sorted(out.glob("split-*.jsonl")) for line in path.read_text().splitlines())
    return [json.loads(line) for line in lines]


def rejects(out: Path) -> list[tuple[str, str]]:
    rows = map(json.loads, (out / "rejects.jsonl").read_text().splitlines())
    return [(r["key"], r["operator"]) for r in rows]


def same(out: Path) -> dict[str, str]:
    return {k: v for k, v in digest(out).items() if k not in ("journal.jsonl", "manifest.json", "report.json")}


def test_each_part_is_a_sample_with_a_key_and_draws_of_its_own(place: Path) -> None:
    result = run_job(spec(place))
    assert result.exit_code == 3, result.message
    rows = listed(place / "out")
    assert [r["key"] for r in rows] == [
        f"{i}-{k:06d}.npy" for i in (0, 1, 3, 5) for k in range(COUNTS[i]) if (i, k) != (3, 2)
    ]
    assert [(r["position"], r["part"]) for r in rows] == [
        (i, k) for i in (0, 1, 3, 5) for k in range(COUNTS[i]) if (i, k) != (3, 2)
    ]
    assert [r["field:number"] for r in rows] == [r["part"] for r in rows]
    sources = [next(f for f in r["files"] if not f.endswith(".png")) for r in rows]
    assert [Path((place / "out" / f).read_text()).name for f in sources] == [f"{r['position']}.npy" for r in rows]
    assert len({r["field:drawn"] for r in rows}) == 4, "once for each file, before the split"
    coins = [{r["field:coin"] for r in rows if r["position"] == p} for p in (0, 3, 5)]
    assert {0, 1} in coins, "for each part"
    assert rejects(place / "out") == [("2.npy", "split_samples"), ("3-000002.npy", "refuse_black"), ("4.npy", "Reader")]
    assert result.report["samples"] == {"read": 6, "written": 16, "rejected": 3}
    verdict = verify(place / "out")
    assert verdict.sound, verdict.problems
    assert (verdict.samples, verdict.rejects) == (16, 3)
    stages = [o["stage"] for o in result.report["operators"]]
    assert {s["id"] for s in result.report["stages"]} >= set(stages)


WRITERS = ("files", "webdataset", "tfrecord", "lmdb", *["parquet"] * HAS_PYARROW)


@pytest.mark.parametrize("writer", WRITERS)
@pytest.mark.parametrize("shard", ["samples: 4", "bytes: 1000", ""])
def test_nothing_depends_on_batches(place: Path, writer: str, shard: str) -> None:
    made = []
    for batch, device in ((1, "cpu"), (4, "null"), (64, "cpu")):
        out = f"out{batch}{device}"
        result = run_job(spec(place, out, batch=batch, device=device, writer=writer, shard=shard))
        assert result.exit_code == 3, result.message
        verdict = verify(place / out)
        assert verdict.sound, verdict.problems
        made.append(same(place / out))
    assert made[0] == made[1] == made[2]


@pytest.mark.parametrize("key", ["sample", "position"])
@pytest.mark.parametrize("writer", ["files", "webdataset", "lmdb"])
def test_names_by_position_are_the_parts_own(place: Path, writer: str, key: str) -> None:
    result = run_job(spec(place, writer=f"{writer}, key: {key}".replace(", ", "\n  ")))
    assert result.exit_code == 3, result.message
    assert verify(place / "out").sound
    if writer == "files":
        first = listed(place / "out")[6]["name"]
        assert first == ("0000000003000000" if key == "position" else "3-000000")


def test_parts_of_a_job_write_the_files_of_one(place: Path) -> None:
    assert run_job(spec(place)).exit_code == 3
    path = spec(place, "several")
    for k in (1, 0):
        assert run_job(path, part=(k, 2)).exit_code in (0, 3)
    verdict = verify(place / "several")
    assert verdict.sound, verdict.problems
    one, several = same(place / "out"), same(place / "several")
    assert {k: v for k, v in several.items() if k in one and "rejects" not in k} == {
        k: v for k, v in one.items() if "rejects" not in k
    }


def test_rejected_parts_are_tried_again_alone(place: Path) -> None:
    path = spec(place)
    assert run_job(path).exit_code == 3
    before = {r["key"] for r in listed(place / "out")}
    fixed = frames(3)
    fixed[2] = 9
    np.save(place / "in/3.npy", fixed)
    np.save(place / "in/4.npy", frames(4))
    result = retry_failed(place / "out")
    assert result.exit_code == 3, result.message  # the empty one is as it was
    assert rejects(place / "out") == [("2.npy", "split_samples")]
    after = [r["key"] for r in listed(place / "out")]
    assert sorted(set(after) - before) == ["3-000002.npy", "4-000000.npy", "4-000001.npy", "4-000002.npy"]
    assert len(set(after)) == len(after) == 20
    verdict = verify(place / "out")
    assert verdict.sound, verdict.problems


def test_a_part_that_is_gone_stays_a_reject(place: Path) -> None:
    assert run_job(spec(place)).exit_code == 3
    np.save(place / "in/3.npy", frames(3)[:2])
    result = retry_failed(place / "out")
    assert result.exit_code == 3
    last = [json.loads(line) for line in (place / "out/rejects.jsonl").read_text().splitlines()]
    assert {r["key"]: r["message"] for r in last}["3.npy"] == "the parts that were rejected no longer exist"
    assert verify(place / "out").sound


KILLED = """
import os, sys
from dali_run.writers.bytes import files_io
from dali_run.pipelines.job.run import run_job
left = [int(sys.argv[2])]
def before(operation, path):
    left[0] -= 1
    if left[0] < 0:
        os._exit(9)
files_io.before = before
sys.exit(run_job(sys.argv[1]).exit_code)
"""


def test_killed_jobs_go_on_to_the_same_bytes(place: Path) -> None:
    assert run_job(spec(place, "whole")).exit_code == 3
    path = spec(place)
    codes = []
    for allowed in (20, 35, 55, 10_000):
        done = subprocess.run([sys.executable, "-c", KILLED, str(path), str(allowed)], cwd=ROOT, check=False,
                              capture_output=True, text=True, timeout=300)  # fmt: skip
        codes.append(done.returncode)
        assert done.returncode in (3, 9), done.stderr
    assert codes[0] == 9
    assert codes[-1] == 3
    assert same(place / "out") == same(place / "whole")
    assert run_job(path).ran is False


def test_what_cannot_be_split_says_why(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    text = spec(place).read_text()

    def refused(changed: str, match: str) -> None:
        (place / "other.yaml").write_text(changed)
        with pytest.raises(SpecError, match=match):
            prepare(place / "other.yaml")

    refused(text.replace("seed: 1", "seed: 1, rng: dali"), "rng: dali")
    refused(text.replace("policy: skip", "policy: replace"), "on_error")
    twice = text.replace("  - {op: refuse_black", "  - {op: split_samples, in: frame, out: row}\n  - {op: refuse_black")
    refused(twice, "one split_samples|cuts along the first axis")
    refused(text.replace("layout: FHWC", "layout: HWCF"), "which is H of an image")
    unused = text.replace("image: frame,", "image: frames,").replace("number: number", "number: of_file")
    refused(unused.replace("coin: coin", "coin: of_file").replace("encode: png", "encode: npy"), "no output depends")


def test_the_python_api_says_that_it_is_for_jobs() -> None:
    import dali_run.fn as fn
    from dali_run import pipeline_def

    @pipeline_def(batch_size=1, num_threads=1, device_id=None)
    def program() -> Any:
        data = fn.external_source(source=lambda: [np.zeros((3, 2), np.uint8)])
        return fn.split_samples(data)

    with pytest.raises(RuntimeError, match="only jobs support"):
        program().run()


def test_validate_and_plan_take_it(place: Path) -> None:
    path = spec(place)
    assert check_spec(path, plugins=True)["problems"] == []
    told = describe_job(path, plugins=True)
    names = [o["name"] for o in told["operators"]]
    assert names.index("reinterpret") < names.index("split_samples") < names.index("refuse_black")
    assert {o["stage"] for o in told["operators"]} == set(range(len(told["stages"])))
    path.write_text(path.read_text().replace("policy: skip", "policy: replace"))
    assert "on_error" in check_spec(path, plugins=True)["problems"][0]["text"]


@given(
    st.lists(st.integers(0, 12), min_size=1, max_size=6), st.integers(1, 5), st.integers(1, 6),
    st.sampled_from(["drop", "keep"]),
)  # fmt: skip
def test_parts_are_windows_of_the_first_axis(lengths: list[int], size: int, step: int, partial: str) -> None:
    samples = Samples.numbered(len(lengths))
    arrays = [np.arange(2 * n, dtype=np.int16).reshape(n, 2) + 100 * i for i, n in enumerate(lengths)]
    data = Batch.from_list(arrays, "", samples)
    op = SplitSamples(size=size, step=step, partial=partial)
    counts = op.counts(data)
    owner = np.repeat(np.arange(len(lengths)), counts)
    part = np.concatenate([np.arange(n) for n in counts]).astype(np.int32)
    (made,) = op.parts([data], owner, part, Samples.numbered(len(owner)))
    expected = []
    for a in arrays:
        windows = [a[at : at + size] for at in range(0, len(a), step)]
        whole = [w for w in windows if len(w) == size]
        if partial == "keep" and len(a):
            reached = (len(whole) - 1) * step + size if whole else 0
            rest = windows[len(whole) :]
            whole += rest[:1] if reached < len(a) else []
        expected += whole
    assert len(made) == len(expected)
    for k, want in enumerate(expected):
        np.testing.assert_array_equal(made.sample(k), want)


TILES = """\
version: 1
name: tiled
pipeline: {{batch_size: {batch}, num_threads: 2, device: {device}}}
graph:
  - {{op: readers.file, name: Reader, file_root: "{data}", out: [files, label]}}
  - {{op: decoders.image, in: files, out: image}}
  - {{op: tiles, in: image, size: [16, 20], stride: [12, 20], edges: shift, places: true, out: [tiles, places]}}
  - {{op: split_samples, in: [tiles, places], numbered: true, out: [tile, place, number]}}
outputs: {{image: tile, place: place, number: number, label: label}}
write:
  writer: files
  path: "{out}"
  shard: {{samples: 2}}
  fields: {{image: {{encode: png}}, place: {{}}, number: {{}}, label: {{}}}}
"""


@pytest.mark.parametrize("device", ["cpu", "null"])
def test_tiles_of_images_are_samples_with_their_places(tmp_path: Path, device: str) -> None:
    from PIL import Image

    pictures = {}
    for i, (height, width) in enumerate(((40, 50), (16, 20), (9, 61))):
        pixels = np.random.default_rng(i).integers(0, 255, (height, width, 3), np.uint8)
        pictures[f"{i}"] = pixels
        (tmp_path / "in" / str(i % 2)).mkdir(parents=True, exist_ok=True)
        Image.fromarray(pixels).save(tmp_path / "in" / str(i % 2) / f"{i}.png")
    results = []
    for batch in (1, 8):
        out = tmp_path / f"out{batch}"
        path = tmp_path / f"{batch}.yaml"
        path.write_text(TILES.format(data=tmp_path / "in", out=out, batch=batch, device=device))
        result = run_job(path)
        assert result.exit_code == 0, result.message
        results.append([json.loads(x) for p in sorted(out.glob("*.jsonl")) if p.name.startswith("tiled-")
                        for x in p.read_text().splitlines()])  # fmt: skip
        for row in results[-1]:
            pixels = pictures[row["key"].split("/")[1].split("-")[0]]
            row_, column = np.load(out / row["files"][1]).tolist()
            shown = np.zeros((16, 20, 3), np.uint8)
            part = pixels[row_ : row_ + 16, column : column + 20]
            shown[: part.shape[0], : part.shape[1]] = part
            np.testing.assert_array_equal(np.asarray(Image.open(out / row["files"][0])), shown)
            assert row["field:label"] == int(row["key"].split("/")[0])
            assert row["key"].split("-")[1][:6] == f"{row['field:number']:06d}"
    assert [r["key"] for r in results[0]] == [r["key"] for r in results[1]]
    assert [len([r for r in results[0] if f"/{i}-" in r["key"]]) for i in range(3)] == [9, 1, 4]
    assert not verify(tmp_path / "out8").problems


def test_inputs_of_different_lengths_cost_their_sample(place: Path) -> None:
    text = spec(place, writer="files").read_text()
    text = text.replace(
        "in: frames, numbered: true, out: [frame, number]",
        "in: [frames, short], numbered: true, out: [frame, other, number]",
    )
    text = text.replace("  - {op: get_property", "  - {op: slice, in: frames, start: [0], shape: [4], axes: [0], "
                        "out_of_bounds_policy: trim_to_shape, out: short}\n  - {op: get_property", 1)  # fmt: skip
    text = text.replace("drawn: of_file,", "drawn: of_file, other: other,").replace(
        "drawn: {},", "drawn: {}, other: {encode: png},"
    )
    path = place / "short.yaml"
    path.write_text(text)
    result = run_job(path)
    assert result.exit_code == 3, result.message
    told = {r["key"]: r["message"] for r in map(json.loads, (place / "out/rejects.jsonl").read_text().splitlines())}
    assert told["0.npy"] == "its inputs have 5 and 4 items to split"
    assert told["3.npy"] == "its inputs have 7 and 4 items to split"
    assert [r["key"] for r in listed(place / "out")] == ["1-000000.npy", *(f"5-{k:06d}.npy" for k in range(4))]
