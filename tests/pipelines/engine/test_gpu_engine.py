"""The engine's whole GPU path without a GPU: lanes, uploads, fused decoding, second decoders, several devices.

CuPy is a stand-in whose kernels run on the CPU; see tests/kit/fake_cupy.py.
"""

from __future__ import annotations

import io
import json
import struct
import threading
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from dali_run.ops.batch import Batch, Samples
from dali_run.ops.codecs import gpu_decode
from dali_run.ops.codecs.jpeg import cuda as jpeg_gpu
from dali_run.ops.context import Context
from dali_run.ops.fused.decode_resize import DecodeResize
from dali_run.ops.gpu import device_memory
from dali_run.ops.gpu.lane import Lane
from dali_run.pipelines.compile.place import Target, resolve_target
from dali_run.pipelines.compile.plan import Plan, compile_graph
from dali_run.pipelines.engine.device.executor import DeviceExecutor
from dali_run.pipelines.engine.engine import Engine, Options
from dali_run.pipelines.engine.in_flight import InFlightBatch
from dali_run.pipelines.engine.inputs import JobFeed, Sources
from dali_run.pipelines.job.run import REJECTS, run_job
from tests.kit.engine.joined import CASES, STD, graph
from tests.kit.engine.rings import left_in_rings
from tests.kit.fake_cupy import faked

CHOSEN = ("val", "train")


def outputs(plan: Plan, batch: int = 8, lanes: int = 2, **how: Any) -> tuple[dict[str, np.ndarray], list[str]]:
    """Results by key, and what was rejected."""
    found, rejected = {}, []
    options = Options(lanes=lanes, **how)
    with Sources(plan, batch) as sources:
        feed = JobFeed(sources)
        with Engine(plan, feed, feed.requests(batch), options) as engine:
            engine.credits.join, engine.credits.consumer_takes = 8, lambda *_: None  # type: ignore[method-assign]
            for it in engine:
                rejected += [f"{it.origin_of(d).key}: {d.code}" for d in it.dropped]
                whole = it.outputs(plan)["x"]
                for i in range(len(whole)):
                    found[it.samples.origin(i).key] = np.array(whole.sample(i))
    return found, sorted(rejected)


PART = {"roi_start": [0.9, 0.2], "roi_end": [0.15, 0.7], "roi_relative": True}
RESIZES = {
    "nearest": ("decoders.image", {"size": [50, 60], "interp_type": "NN"}),
    "nearest of a part": ("decoders.image_random_crop", {"size": [33, 64], "interp_type": "NN"} | PART),
    "gaussian": ("decoders.image", {"size": [50, 60], "interp_type": "GAUSSIAN", "antialias": False}),
    "two filters": ("decoders.image", {"size": [150, 160], "mag_filter": "LANCZOS3", "min_filter": "GAUSSIAN"}),
    "a part": ("decoders.image", {"size": [50, 60], "interp_type": "TRIANGULAR"} | PART),
}


def test_a_trace_has_a_track_for_every_thread_and_lane(pictures: Path, tmp_path: Path) -> None:
    spec = tmp_path / "spec.yaml"
    text = SPEC.replace("IN", str(pictures)).replace("OUT", str(tmp_path / "out"))
    spec.write_text(text.replace("{encode: raw}", "{encode: jpeg}"))
    with faked(2, memory=True):
        result = run_job(spec, {}, trace=tmp_path / "trace.json")
    kernels = result.report["cuda_kernels"]
    assert kernels["images"] == 0  # of a checkout
    assert {"image.cu", "jpeg_encode.cu"} <= kernels["nvrtc"].keys()
    events = json.loads((tmp_path / "trace.json").read_text())["traceEvents"]
    tracks = {e["tid"]: e["args"]["name"] for e in events if e["name"] == "thread_name"}
    assert len(set(tracks.values())) == len(tracks)
    spans = [e for e in events if e["ph"] == "X"]
    assert all(e["ts"] >= 0 and e["dur"] >= 0 and e["tid"] in tracks for e in spans)
    of_track: dict[str, set[str]] = {}
    for span in spans:
        of_track.setdefault(tracks[span["tid"]], set()).add(span["name"])
    for gpu in range(2):
        (lane,) = {frozenset(names) for track, names in of_track.items() if track.startswith(f"GPU {gpu}, lane ")}
        assert lane == {"decoders.image_random_crop+resize", "encode x"}
    assert {"readers.file", "launch", "write"} <= set().union(*of_track.values())
    for batch in {e["args"]["batch"] for e in spans}:  # a kernel runs once it was launched, by the same clock
        begins = {e["name"]: e["ts"] for e in spans if e["args"]["batch"] == batch}
        if "encode x" in begins:
            assert begins["launch"] < begins["encode x"]


@pytest.mark.parametrize("case", RESIZES)
def test_joined_with_the_decoder_is_within_a_level(pictures: Path, case: str) -> None:
    """Also where a place is half-way between two pixels, of turned pictures and of regions that run backwards."""
    built = graph(pictures, *RESIZES[case], None, False)
    apart, rejects = outputs(compile_graph(built, Target(), 7, fusing=False))
    with faked(memory=True):
        plan = compile_graph(built, Target("gpu"), 7)
        assert plan.fused
        joined, same = outputs(plan)
    assert rejects == same
    assert apart.keys() == joined.keys()
    for key, value in apart.items():
        np.testing.assert_allclose(
            joined[key].astype(int), value.astype(int), atol=0 if "NN" in str(RESIZES[case]) else 1
        )


@pytest.mark.parametrize("case", CHOSEN)
def test_the_emulated_gpu_equals_the_cpu(pictures: Path, case: str) -> None:
    built = graph(pictures, *CASES[case])
    on_cpu, rejects = outputs(compile_graph(built, Target(), 7))
    with faked(memory=True) as fake:
        plan = compile_graph(built, Target("gpu"), 7)
        assert any("decoders" in name for name in plan.fused)
        on_gpu, same = outputs(plan)
    assert rejects == same
    assert on_cpu.keys() == on_gpu.keys()
    assert {"jpeg_coefficients", "jpeg_strips", "scatter"} <= {name for name, _ in fake.launched}
    normalize = CASES[case][2] or {}
    level = normalize.get("scale", 1.0) / min(normalize.get("std", [1.0]))
    for key, value in on_cpu.items():
        assert value.dtype == on_gpu[key].dtype
        difference = np.abs(value.astype(np.float64) - on_gpu[key].astype(np.float64))
        assert difference.max() <= level * 1.01 + 2e-3, key


@pytest.mark.parametrize("case", CHOSEN)
def test_batches_are_planned_where_they_are_read(
    pictures: Path,
    case: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The thread that launches has nothing left to plan, unless a batch changed since: then results are the same."""
    planners: list[str] = []
    plan_decode, make_room = jpeg_gpu.plan_decode, DeviceExecutor._make_room

    def planned(*args: Any, **more: Any) -> Any:
        planners.append(threading.current_thread().name)
        return plan_decode(*args, **more)

    def cut(self: DeviceExecutor, it: InFlightBatch, *args: Any, **more: Any) -> None:
        make_room(self, it, *args, **more)
        n = len(it.samples)
        it.cuts = [(0, n // 2), (n // 2, n)]

    def fails(self: DecodeResize, *args: Any) -> Any:
        raise ValueError("the batch is too large for one plan: split it")

    built = graph(pictures, *CASES[case])
    changes = ((), (DeviceExecutor, "_make_room", cut), (DecodeResize, "_begun", fails))
    found, where = [], []
    for change in changes:
        planners.clear()
        with faked(memory=True), monkeypatch.context() as patch:
            patch.setattr(jpeg_gpu, "plan_decode", planned)
            if change:
                patch.setattr(*change)
            found.append(outputs(compile_graph(built, Target("gpu"), 7)))
        where.append(set(planners))
    assert [{t.startswith("worker") for t in names} for names in where] == [{True}, {True, False}, {False}]
    (first, rejected), *others = found
    for other, same in others:
        assert same == rejected
        assert list(other) == list(first)
        for key, value in first.items():
            np.testing.assert_array_equal(value, other[key])


def test_what_was_begun_ahead_is_on_the_account_until_the_batch_is_complete(
    pictures: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Plans, and pictures that threads of the host decode, are in memory as long as the device works with them."""
    missing, begun = [], 0
    make_room, finish = DeviceExecutor._make_room, DeviceExecutor.finish

    def on_account(part: DeviceExecutor, it: InFlightBatch) -> int:
        account = part._budget.host._account
        return account.reserved[(part._budget.host._run, *it.order)]

    def launched(self: DeviceExecutor, it: InFlightBatch, ahead: Any, **how: Any) -> None:
        nonlocal begun
        host = sum(b.nbytes for b in it.env.values())
        needed[it.number] = host + sum(b.nbytes for b in it.started.values()) + ahead.kept_total
        begun += len(it.started)
        make_room(self, it, ahead, **how)

    def completed(self: DeviceExecutor, it: InFlightBatch, step: Any) -> None:
        missing.append(needed[it.number] - on_account(self, it))
        finish(self, it, step)

    needed: dict[int, int] = {}
    monkeypatch.setattr(DeviceExecutor, "_make_room", launched)
    monkeypatch.setattr(DeviceExecutor, "finish", completed)
    with faked(memory=True):
        outputs(compile_graph(graph(pictures, *CASES["val"]), Target("gpu"), 7))
    assert begun == len(missing) > 1
    assert max(missing) <= 0


def test_what_is_raised_ahead_is_met_again_by_the_launch(pictures: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """There the samples that raise it are found; here it would cost the whole batch."""
    built, prepare, raised = graph(pictures, *CASES["val"]), gpu_decode.prepare, list[str]()

    def prepared(*args: Any, **more: Any) -> Any:
        if threading.current_thread().name.startswith("worker"):
            raised.append("ahead")
            raise ValueError("ahead")
        return prepare(*args, **more)

    found = []
    for change in (prepare, prepared):
        with faked(memory=True), monkeypatch.context() as patch:
            patch.setattr(gpu_decode, "prepare", change)
            found.append(outputs(compile_graph(built, Target("gpu"), 7, fusing=False)))
    (first, rejected), (other, same) = found
    assert raised
    assert same == rejected
    assert list(other) == list(first)
    for key, value in first.items():
        np.testing.assert_array_equal(value, other[key])


@pytest.mark.parametrize("whole", [True, False])
def test_batches_that_are_launched_together_give_the_same_bytes(
    pictures: Path,
    whole: bool,
) -> None:
    built = graph(pictures, *CASES["train"])
    found, launches = [], []
    for together in (False, True):
        with faked(memory=True) as fake:
            plan = compile_graph(built, Target("gpu"), 7)
            found.append(outputs(plan, 2, merge_requests=together, whole_batches=whole))
        launches.append([name for name, _ in fake.launched].count("jpeg_coefficients"))
    (alone, rejected), (together_, same) = found
    assert rejected == same
    assert list(alone) == list(together_)
    assert all(np.array_equal(value, together_[key]) for key, value in alone.items())
    assert launches[1] < launches[0]


def test_several_gpus_give_the_bytes_of_one(pictures: Path) -> None:
    built = graph(pictures, *CASES["train"])
    found = []
    for devices, batch, lanes in ((1, 8, 2), (2, 5, 1), (3, 3, 2)):
        with faked(devices, memory=True) as fake:
            plan = compile_graph(built, Target("gpu", tuple(range(devices))), 7)
            found.append(outputs(plan, batch, lanes))
        assert {device for name, device in fake.launched if name == "jpeg_coefficients"} == set(range(devices))
    first, rejected = found[0]
    for other, same in found[1:]:
        assert same == rejected
        assert list(other) == list(first)
        for key, value in first.items():
            np.testing.assert_array_equal(value, other[key])


@pytest.mark.parametrize("case", [*CHOSEN, "apart"])
def test_no_memory_is_used_again_before_the_gpu_is_done_with_it(
    pictures: Path, case: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A stream that does nothing before somebody waits for it gives the same, with lanes that share all blocks."""
    monkeypatch.setattr(device_memory, "SMALL", 256)
    monkeypatch.setattr(device_memory, "MAX_SLACK", 1e9)
    built = graph(pictures, *CASES["val" if case == "apart" else case])
    found = []
    for late in (False, True):
        with faked(memory=True, late=late):
            plan = compile_graph(built, Target("gpu"), 7, fusing=case != "apart")
            found.append(outputs(plan, 3, 2))
            pool = device_memory.pool_of(0)
            assert 0 < pool.made < 60
    (prompt, rejected), (late_, same) = found
    assert same == rejected
    assert list(late_) == list(prompt)
    for key, value in prompt.items():
        np.testing.assert_array_equal(value, late_[key])


def several_scans(picture: np.ndarray) -> bytes:
    """A baseline JPEG with a scan for each component, each with Huffman tables of its own under the same names."""
    parts = []
    for component in np.moveaxis(np.asarray(Image.fromarray(picture).convert("YCbCr")), 2, 0):
        stream = io.BytesIO()
        Image.fromarray(component).save(stream, "JPEG", quality=90, optimize=True)
        parts.append(segments(stream.getvalue()))
    height, width = picture.shape[:2]
    frame = b"\xff\xc0" + struct.pack(">HBHHB", 17, 8, height, width, 3)
    frame += b"".join(bytes([k, 0x11, 0]) for k in (1, 2, 3))
    file = b"\xff\xd8" + b"".join(parts[0][0xDB]) + frame
    for k, part in enumerate(parts, 1):
        file += b"".join(part[0xC4]) + b"\xff\xda" + struct.pack(">HBBBBBB", 8, 1, k, 0, 0, 63, 0) + part[0][0]
    return file + b"\xff\xd9"


def segments(file: bytes) -> dict[int, list[bytes]]:
    """Marker segments of a JPEG of one scan by marker; the entropy-coded data under 0."""
    found: dict[int, list[bytes]] = {}
    at = 2
    while file[at + 1] != 0xDA:
        (size,) = struct.unpack_from(">H", file, at + 2)
        found.setdefault(file[at + 1], []).append(file[at : at + 2 + size])
        at += 2 + size
    (size,) = struct.unpack_from(">H", file, at + 2)
    return found | {0: [file[at + 2 + size : -2]]}


def test_what_the_decoder_leaves_to_others_is_decoded_and_said(tmp_path: Path) -> None:
    folder = tmp_path / "a"
    folder.mkdir()
    y, x = np.mgrid[:75, :101]
    picture = np.stack([x * 2, y * 3, (x + y) % 256], -1).astype(np.uint8)
    (folder / "scans.jpg").write_bytes(several_scans(picture))
    (folder / "scans2.jpg").write_bytes(several_scans(picture[::-1]))
    image = Image.fromarray(picture)
    image.save(folder / "plain.jpg", quality=90)
    image.save(folder / "progressive.jpg", quality=90, progressive=True)
    image.convert("CMYK").save(folder / "cmyk.jpg", quality=90)
    image.convert("CMYK").save(folder / "cmyk2.jpg", quality=90, progressive=True)
    assert np.asarray(Image.open(folder / "scans.jpg").convert("RGB")).shape == (75, 101, 3)
    built = graph(tmp_path, *CASES["val"])
    on_cpu, rejects = outputs(compile_graph(built, Target(), 7))
    assert not rejects
    assert len(on_cpu) == 6
    with faked(memory=True):
        plan = compile_graph(built, Target("gpu"), 7)
        with Sources(plan, 8) as sources:
            feed = JobFeed(sources)
            with Engine(plan, feed, feed.requests(8), Options()) as engine:
                (it,) = engine
                on_gpu = {it.samples.origin(i).key: v for i, v in enumerate(it.outputs(plan)["x"])}
                told, decoded = dict(engine.stats.fallbacks), dict(engine.stats.decoders)
    assert decoded["cuda"] == 5  # neither a scan for each component, nor many scans, nor four components are a reason
    assert told == {"not for the CUDA JPEG decoder: unusual progressive": 1}
    for key, value in on_cpu.items():
        np.testing.assert_allclose(on_gpu[key], value, atol=1.01 / min(STD))


@pytest.mark.gpu
@pytest.mark.parametrize("case", CHOSEN)
def test_all_gpus_of_this_machine_give_the_bytes_of_one(pictures: Path, case: str) -> None:
    from dali_run.ops.gpu.lane import gpu_count

    if gpu_count() < 2:
        pytest.skip("needs two GPUs")
    built = graph(pictures, *CASES[case])
    one, rejected = outputs(compile_graph(built, Target("gpu"), 7))
    for batch, lanes in ((1, 1), (3, 2), (8, 3)):
        several, same = outputs(compile_graph(built, resolve_target("gpu:all"), 7), batch, lanes)
        assert same == rejected
        assert list(several) == list(one)
        for key, value in one.items():
            np.testing.assert_array_equal(value, several[key])


def test_a_batch_is_two_uploads_and_eight_launches(pictures: Path) -> None:
    """The files' bytes, and one block of all that is planned; whatever the batch's size."""
    plan = compile_graph(graph(pictures, *CASES["train"]), Target("gpu"), 7)
    node = next(n for n in plan.graph.nodes if n.op.name == "_fused.decode_resize")
    stream = io.BytesIO()
    Image.fromarray(np.zeros((90, 80, 3), np.uint8)).save(stream, "JPEG")
    file = np.frombuffer(stream.getvalue(), np.uint8)
    counted = []
    with faked() as fake:
        lane = Lane()
        for n in (1, 4, 24):
            samples = Samples.numbered(n)
            mirror = Batch.from_dense(np.zeros(n, np.int32), "", samples)
            with lane:
                for _ in range(2):  # the first makes the decoder
                    uploads, launches = fake.uploads, len(fake.launched)
                    encoded = Batch.from_list([file] * n, "", samples)
                    ctx = Context(node.op, "mixed", samples, dict.fromkeys(node.args, mirror), device=lane)
                    node.op.kernel("mixed")(ctx, encoded)
                    lane.synchronize()
            counted.append((fake.uploads - uploads, [name for name, _ in fake.launched[launches:]]))
    # For pictures as they are, for those in many scans, of four components, and for those that become smaller.
    others = {"jpeg_pixels", "jpeg_scans", "jpeg_dense", "jpeg_strips", "jpeg_four",
              "jpeg_known_coefficients", "jpeg_joints"}  # fmt: skip
    assert counted == [(2, [name for name in jpeg_gpu.KERNELS if name not in others])] * 3


SPEC = """
version: 1
name: job
pipeline: {batch_size: 8, num_threads: 2, device: "gpu:all", seed: 3}
graph:
  - {op: readers.file, file_root: IN, random_shuffle: true, out: [x, label]}
  - {op: decoders.image_random_crop, in: x, out: x}
  - {op: resize, in: x, size: [24, 24], out: x}
outputs: {x: x, label: label}
write: {writer: tfrecord, path: OUT, shard: {samples: 10}, fields: {x: {encode: raw}, label: {}}}
on_error: {policy: skip, max_errors: 50%}
"""


def test_a_job_on_all_gpus_writes_what_one_writes(pictures: Path, tmp_path: Path) -> None:
    """Shards, index and rejects; the report names all of the work."""
    written = []
    for devices in (1, 3):
        out = tmp_path / str(devices)
        spec = tmp_path / f"{devices}.yaml"
        spec.write_text(SPEC.replace("IN", str(pictures)).replace("OUT", str(out)))
        with faked(devices, memory=True) as fake:
            result = run_job(spec, {})
        assert result.exit_code == REJECTS
        assert {device for name, device in fake.launched if name == "jpeg_coefficients"} == set(range(devices))
        kept = [p for p in sorted(out.iterdir()) if p.suffix in (".tfrecord", ".idx") or p.name == "rejects.jsonl"]
        assert len(kept) > 3
        written.append({p.name: p.read_bytes() for p in kept})
    assert written[0] == written[1]


def test_a_job_on_a_gpu_leaves_nothing_to_the_collector(pictures: Path, tmp_path: Path) -> None:
    """Contexts and the checks that kernels leave were in a ring: batches on the GPU stayed until the collector came."""
    spec = tmp_path / "spec.yaml"
    text = SPEC.replace("IN", str(pictures)).replace("OUT", str(tmp_path / "out"))
    spec.write_text(text.replace("{encode: raw}", "{encode: jpeg}"))

    def job() -> None:
        run_job(spec, {})

    with faked(1, memory=True):
        assert left_in_rings(job) == {}


@pytest.mark.parametrize("how", ["files", "encoded", "python"])
def test_a_run_on_another_gpu_leaves_the_first_alone(pictures: Path, tmp_path: Path, how: str) -> None:
    """A context there would take half a gigabyte, in each process."""
    with faked(2, memory=True) as fake:
        if how == "files":
            for case in CHOSEN:
                outputs(compile_graph(graph(pictures, *CASES[case]), Target("gpu", (1,)), 7))
        elif how == "encoded":
            spec = tmp_path / "spec.yaml"
            text = SPEC.replace("IN", str(pictures)).replace("OUT", str(tmp_path / "out"))
            spec.write_text(text.replace("{encode: raw}", "{encode: jpeg}").replace("gpu:all", "gpu:1"))
            run_job(spec, {}, trace=tmp_path / "trace.json")
        else:
            python_batches(pictures)
        assert fake.launched
        assert fake.contexts == {1}


def python_batches(folder: Path) -> None:
    """A program's batches, on the host, on the GPU and copied from there."""
    import dali_run.fn as fn
    import dali_run.types as types
    from dali_run import pipeline_def

    @pipeline_def(batch_size=4, num_threads=2, device_id=1)
    def program() -> Any:
        files, labels = fn.readers.file(file_root=str(folder))
        images = fn.resize(fn.decoders.image(files, device="mixed"), size=[24, 24])
        return images, labels.gpu(), fn.flip(images)

    @pipeline_def(batch_size=4, num_threads=2, device_id=1)
    def drawn() -> Any:
        return fn.cast(fn.random.uniform(device="gpu", shape=[3]) * 255, dtype=types.UINT8)

    with closing(drawn()) as pipe:  # by the calling thread
        assert [pipe.run()[0].as_cpu().as_array().shape for _ in range(6)] == [(4, 3)] * 6
    with closing(program()) as pipe:
        for _ in range(3):
            images, labels, flipped = pipe.run()
            assert images.as_cpu().as_array().shape == (4, 24, 24, 3)
            assert labels.as_cpu()[0].shape() == [1]
            assert flipped.as_cpu()[0].shape() == [24, 24, 3]
