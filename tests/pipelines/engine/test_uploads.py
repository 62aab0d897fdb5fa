"""Containers on the way to a GPU: gathered out of registered files, they give what copies give, byte for byte; and what
happens where files cannot be registered. With CuPy's stand-in, and with a real GPU where there is one."""

from __future__ import annotations

import io
import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image
from rich.console import Console

from dali_run.ops.errors import SpecError
from dali_run.ops.gpu import device_memory
from dali_run.pipelines.compile.place import Target
from dali_run.pipelines.compile.plan import Plan, compile_graph
from dali_run.pipelines.engine.engine import Engine, Options
from dali_run.pipelines.engine.inputs import JobFeed, Sources
from dali_run.pipelines.graph.builder import GraphBuilder
from dali_run.pipelines.job.run import run_job
from dali_run.pipelines.limits import Memory
from dali_run.pipelines.plugins import load_operators
from dali_run.pipelines.python.pipeline import Pipeline
from dali_run.pipelines.show.terminal import plan_view, report_view
from dali_run.pipelines.tools.preview import describe_job
from dali_run.readers.fetch import bus_errors
from dali_run.readers.fetch import gpu_reads as lenders
from tests.kit.engine.small_pieces import shrink
from tests.kit.fake_cupy import Fake, faked

from ...kit.files.packers import PACKERS

READERS = {
    "tfrecord": "{op: readers.tfrecord, path: IN/images.tfrecord, features: {image: string}, out: x}",
    "tar": "{op: readers.webdataset, paths: IN/images.tar, ext: [jpg, cls], out: [x, y]}",
    "lmdb": "{op: readers.lmdb, path: IN/images.lmdb, out: x}",
    "recordio": "{op: readers.mxnet, path: IN/images.rec, out: [x, y]}",
}
SPEC = """
version: 1
name: job
pipeline: {batch_size: 8, num_threads: 2, device: "gpu:all", seed: 3, upload: UPLOAD}
graph:
  - READER
  - {op: decoders.image, in: x, out: x}
  - {op: resize, in: x, size: [24, 24], out: x}
outputs: {x: x}
write: {writer: tfrecord, path: OUT, shard: {samples: 10}, fields: {x: {encode: raw}}}
on_error: {policy: skip, max_errors: 50%}
"""


def pictures() -> list[bytes]:
    """Files of all sizes and kinds, some of them damaged or empty."""
    rng = np.random.default_rng(2)
    found = []
    for i in range(26):
        height, width = rng.integers(20, 160, 2).tolist()
        stream = io.BytesIO()
        image = Image.fromarray(rng.integers(0, 256, (height // 4 + 1, width // 4 + 1, 3), np.uint8))
        image.resize((width, height)).save(stream, "PNG" if i == 9 else "JPEG", quality=90, progressive=i == 4)
        found.append(stream.getvalue())
    return [*found, found[3][:200], b"", b"no picture", found[5][:-300], found[0]]


@pytest.fixture(scope="module")
def packed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The same pictures in each container; the TFRecord file has a damaged record."""
    root = tmp_path_factory.mktemp("packed")
    for name, pack in PACKERS.items():
        (root / name).mkdir()
        pack(pictures(), root / name)
    record = root / "tfrecord" / "images.tfrecord"
    content = bytearray(record.read_bytes())
    content[len(content) // 2] ^= 0x55
    record.write_bytes(content)
    return root


@pytest.fixture(autouse=True)
def small_windows(monkeypatch: pytest.MonkeyPatch) -> None:
    """Records lie across borders of windows, batches in several; so it is with pieces."""
    monkeypatch.setattr(lenders, "WINDOW", 16 << 10)
    monkeypatch.setattr(lenders, "_MAX_WINDOWS", 64)
    shrink(monkeypatch, 16 << 10)


def job(packed: Path, source: str, upload: str, out: Path) -> tuple[dict[str, bytes], dict[str, Any]]:
    """The files that a job wrote, and its report."""
    spec = out.with_suffix(".yaml")
    text = SPEC.replace("READER", READERS[source]).replace("IN", str(packed / source))
    spec.write_text(text.replace("OUT", str(out)).replace("UPLOAD", upload))
    run_job(spec, {})
    kept = [p for p in sorted(out.iterdir()) if p.suffix in (".tfrecord", ".idx") or p.name == "rejects.jsonl"]
    return {p.name: p.read_bytes() for p in kept}, json.loads((out / "report.json").read_text())


@pytest.mark.parametrize("source", list(READERS))
def test_a_job_writes_the_same_bytes(packed: Path, tmp_path: Path, source: str) -> None:
    with faked(memory=True) as fake:
        copied, before = job(packed, source, "copy", tmp_path / "copy")
        assert not fake.registrations
        assert before["uploads"] == {}
        registered, after = job(packed, source, "registered", tmp_path / "registered")
    assert "gather" in {name for name, _ in fake.launched}
    assert fake.registrations > 2
    assert fake.registered == {}  # given back
    assert len(copied) > 4
    assert registered == copied
    assert copied["rejects.jsonl"].count(b"\n") >= 4
    assert set(after["uploads"]) == {"registered"}
    assert after["uploads"]["registered"] > 50_000
    assert before["rejected"] == after["rejected"]


@pytest.mark.parametrize("late", [False, True])
@pytest.mark.parametrize("source", list(READERS))
def test_a_job_in_pieces_writes_the_same_bytes(packed: Path, tmp_path: Path, source: str, late: bool) -> None:
    with faked(memory=True, late=late) as fake:
        copied, before = job(packed, source, "copy", tmp_path / "copy")
        pieces, after = job(packed, source, "pieces", tmp_path / "pieces")
    assert not fake.registrations
    assert pieces == copied
    assert copied["rejects.jsonl"].count(b"\n") >= 4
    assert set(after["uploads"]) == {"in pieces"}
    assert after["uploads"]["in pieces"] > 50_000
    assert before["rejected"] == after["rejected"]


def test_the_report_names_gpu_memory_by_kind(packed: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(device_memory, "SMALL", 256)
    with faked(memory=True) as fake:
        _, report = job(packed, "tar", "copy", tmp_path / "copy")
        assert fake.blocks == {}
    memory = report["memory"]
    kinds = [memory[f"gpu_{k}_bytes"] for k in ("arrays", "workspaces", "files")]
    assert min(kinds) > 0
    assert sum(kinds) <= memory["gpu_pool_bytes"]
    shown = io.StringIO()
    Console(file=shown, width=300).print(report_view(report))
    assert "GPU memory: at most " in shown.getvalue()
    assert "for the pipeline, the pipeline " in shown.getvalue()


def test_two_gpus_write_what_one_writes(packed: Path, tmp_path: Path) -> None:
    with faked(1, memory=True):
        one, _ = job(packed, "tar", "copy", tmp_path / "one")
    with faked(2, memory=True) as fake:
        two, _ = job(packed, "tar", "registered", tmp_path / "two")
        three, report = job(packed, "tar", "pieces", tmp_path / "three")
    assert {device for name, device in fake.launched if name == "gather"} == {0, 1}
    assert one == two == three
    assert set(report["uploads"]) == {"in pieces"}


@pytest.mark.gpu
@pytest.mark.parametrize("source", list(READERS))
def test_a_real_gpu_writes_the_same_bytes(packed: Path, tmp_path: Path, source: str) -> None:
    copied, _ = job(packed, source, "copy", tmp_path / "copy")
    for upload, way in (("registered", "registered"), ("pieces", "in pieces")):
        found, report = job(packed, source, upload, tmp_path / upload)
        assert found == copied
        assert set(report["uploads"]) == {way}


# -- what keeps files from being registered ---------------------------------------------------------------------------


def plan_of(packed: Path, source: str = "lmdb", **arguments: Any) -> Plan:
    load_operators()
    b = GraphBuilder()
    if source == "lmdb":
        (x,) = b.add("readers.lmdb", (), {"path": str(packed / "lmdb" / "images.lmdb"), **arguments})
    else:
        (x,) = b.add("readers.webdataset", (), {"paths": str(packed), "ext": ["jpg"], **arguments})
    (x,) = b.add("decoders.image", [x], device="mixed")
    (x,) = b.add("resize", [x], {"size": (16, 16)})
    return compile_graph(b.build({"x": x}), Target("gpu"), 7)


class Run:
    """One pass over a plan: results by position, the bytes of each way, and the engine's accounts."""

    def __init__(
        self, plan: Plan, batch: int = 4, look: Callable[[Engine], None] | None = None, **options: Any
    ) -> None:
        self.found: dict[int, np.ndarray] = {}
        with Sources(plan, batch) as sources:
            feed = JobFeed(sources)
            with Engine(plan, feed, feed.requests(batch), Options(lanes=2, **options)) as engine:
                for it in engine:
                    whole = it.outputs(plan)["x"]
                    self.found |= {p: np.array(whole.sample(i)) for i, p in enumerate(it.samples.position.tolist())}
                    if look is not None:
                        look(engine)
        self.uploads = dict(engine.stats.uploads)
        self.engine = engine

    def same(self, other: Run) -> None:
        assert self.found.keys() == other.found.keys()
        for i, value in self.found.items():
            np.testing.assert_array_equal(value, other.found[i])


@contextmanager
def refusing(which: Callable[[int], bool]) -> Iterator[Fake]:
    """CuPy's stand-in; ``which`` of its registrations, by number, fail."""
    with faked(memory=True) as fake:
        import cupy

        tried = [0]

        def register(address: int, nbytes: int, flags: int) -> None:
            tried[0] += 1
            if which(tried[0]):
                raise RuntimeError("cudaErrorNotSupported: operation not supported")
            fake.register(address, nbytes, flags)

        cupy.cuda.runtime.hostRegister = register
        yield fake


def test_what_cuda_refuses_is_copied_and_said(packed: Path) -> None:
    with faked(memory=True):
        plan = plan_of(packed)
        want = Run(plan, upload="copy")
    with refusing(lambda number: True) as fake:
        run = Run(plan)
        run.same(want)
        assert fake.registrations == 0
    assert list(run.uploads) == ["in pieces: cudaHostRegister: cudaErrorNotSupported: operation not supported"]
    with refusing(lambda number: number == 2) as fake:
        run = Run(plan)
        run.same(want)
        lenders.wait_until_released()
        assert fake.registered == {}
    assert {way.split(":")[0] for way in run.uploads} == {"registered", "in pieces"}


def test_a_gpu_that_cannot_is_asked_for_nothing(packed: Path) -> None:
    for attribute, why in ((113, "GPU 0 cannot register read-only memory"), (91, "has other addresses")):
        with faked(memory=True) as fake:
            plan = plan_of(packed)
            fake.attributes[attribute] = 0
            run = Run(plan)
            assert fake.registrations == 0
            assert len(run.found) == 27
        (way,) = run.uploads
        assert why in way


def test_registered_bytes_are_on_the_account(packed: Path) -> None:
    """Up to half of the budget for the host; a data set in order rolls through it."""
    most = [0]

    def look(engine: Engine) -> None:
        registered = sum(fake.registered.values())
        assert registered <= engine.budget.host.limit // 2
        assert engine.budget.host.used >= registered
        most.append(registered)

    with faked(memory=True) as fake:
        plan = plan_of(packed)
        want = Run(plan, upload="copy")
        run = Run(plan, look=look, memory=Memory(host=192 << 10))
        run.same(want)
        assert max(most) > 0
        lenders.wait_until_released()
        assert fake.registered == {}
        assert run.engine.budget.host.used <= run.engine.budget.host.limit
        few = Run(plan, look=look, memory=Memory(host=20 << 10))
        few.same(want)
    assert any("pipeline.memory.host leaves 0 MiB" in way for way in few.uploads)


def test_only_what_is_in_the_page_cache_is_registered(packed: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    looked: list[int] = []

    def resident(self: Any, start: int, size: int) -> float:
        looked.append(start)
        return 0.5 if looked.count(start) < 2 else 1.0

    monkeypatch.setattr("dali_run.readers.fetch.extents.Shared.resident", resident)
    monkeypatch.setattr(lenders, "_IDLE_BATCHES", 2)
    with faked(memory=True):
        plan = plan_of(packed, limit=8, pad_last_batch=False)
        want = Run(plan, 1, upload="copy")
        run = Run(plan, 1)
        run.same(want)
    assert set(run.uploads) == {"registered", "in pieces: not in the page cache"}


def test_a_scattered_order_registers_a_little_at_a_time(packed: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The first batches go up in pieces, until all is registered that there is room for; nothing is given back."""
    monkeypatch.setattr(lenders, "WINDOW", 4 << 10)
    monkeypatch.setattr(lenders, "_MAX_WINDOWS", 2)
    with faked(memory=True) as fake:
        plan = plan_of(packed, shuffle="full")
        want = Run(plan, upload="copy")
        run = Run(plan, 4)
        run.same(want)
    assert run.uploads["in pieces: being registered"] > 0
    assert fake.registered == {}


def test_a_packed_archive_is_copied(packed: Path, tmp_path: Path) -> None:
    """Its bytes lie in a temporary file that has no name."""
    import gzip

    path = tmp_path / "images.tar"
    path.write_bytes(gzip.compress((packed / "tar" / "images.tar").read_bytes()))
    with faked(memory=True) as fake:
        plan = plan_of(path, "tar")
        run = Run(plan)
        assert fake.registrations == 0
        Run(plan, upload="copy").same(run)
    assert list(run.uploads) == ["in pieces: a file was unpacked, or replaced while the job ran"]


def test_a_file_that_is_cut_short_costs_its_samples(
    packed: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Registered files stay in memory, but samples of a file that has changed since are rejected, as ever."""
    monkeypatch.setattr(bus_errors._watched, "lost", set())  # and not for other tests
    path = tmp_path / "images.tar"
    path.write_bytes((packed / "tar" / "images.tar").read_bytes())
    rejected: dict[str, int] = {}

    def cut(engine: Engine) -> None:
        if path.stat().st_size > 5000:
            with path.open("r+b") as file:
                file.truncate(5000)

    with faked(memory=True):
        run = Run(plan_of(path, "tar"), 2, look=cut, cpu_queue=1, gpu_queue=1)
        rejected = run.engine.stats.rejected
    assert run.found
    assert rejected["read_failed"] >= 5


# -- what is said before a run ----------------------------------------------------------------------------------------


def test_the_plan_says_how(packed: Path, tmp_path: Path) -> None:
    spec = tmp_path / "spec.yaml"
    text = (
        SPEC.replace("READER", READERS["tar"]).replace("IN", str(packed / "tar")).replace("OUT", str(tmp_path / "out"))
    )
    spec.write_text(text.replace("UPLOAD", "auto"))
    gathered = "gathered by the GPU out of registered files"
    assert describe_job(spec, device="cpu")["upload"] is None
    few = {"pipeline.num_threads": "3"}
    by_gpu = f"{gathered} (fewer than 4 threads, each record read once)"
    assert describe_job(spec, few, device="null")["upload"] == by_gpu
    with faked() as fake:
        assert describe_job(spec, few)["upload"] == by_gpu
        once = describe_job(spec, {"pipeline.num_threads": 4})
        assert once["upload"] == "copied by the host (at least 4 threads, each record read once)"
        registered = describe_job(spec, {"pipeline.upload": "registered"})["upload"]
        assert registered == f"{gathered} (upload: registered)"
        assert describe_job(spec, {"pipeline.upload": "copy"})["upload"] == "copied by the host (upload: copy)"
        fake.attributes[113] = 0
        plan = describe_job(spec, few)
    assert plan["upload"] == "copied by the host: GPU 0 cannot register read-only memory"
    shown = io.StringIO()
    Console(file=shown, width=200).print(plan_view(plan))
    assert f"Records of containers are {plan['upload']}" in shown.getvalue()
    with pytest.raises(SpecError, match="upload must be auto, copy, registered or pieces, got 'kvikio'"):
        describe_job(spec, {"pipeline.upload": "kvikio"})


def test_the_python_api_takes_it() -> None:
    assert Pipeline(2, 1, upload="copy").settings.upload == "copy"
    with pytest.raises(ValueError, match="upload must be one of auto, copy, registered, pieces, got 'dma'"):
        Pipeline(2, 1, upload="dma")


@pytest.mark.parametrize("threads", [3, 4])
def test_jobs_copy_with_threads_enough(packed: Path, tmp_path: Path, threads: int) -> None:
    spec = tmp_path / "spec.yaml"
    text = SPEC.replace("READER", READERS["tar"]).replace("IN", str(packed / "tar")).replace("UPLOAD", "auto")
    spec.write_text(text.replace("OUT", str(tmp_path / "out")))
    with faked(memory=True) as fake:
        report = run_job(spec, {"pipeline.num_threads": threads}).report
    assert (fake.registrations > 0) == (threads < 4)
    copied = "copied: at least 4 threads, each record read once"
    assert set(report["uploads"]) == {"registered" if threads < 4 else copied}


@pytest.mark.parametrize(("encode", "depth", "lanes"), [("jpeg", 2, 4), ("jpeg", 4, 6), ("raw", 4, 4)])
def test_outputs_that_come_late_have_more_lanes(
    packed: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, encode: str, depth: int, lanes: int
) -> None:
    found: list[int] = []
    begin = Engine.start

    def start(self: Engine) -> None:
        found.append(self.options.lanes)
        begin(self)

    monkeypatch.setattr(Engine, "start", start)
    spec = tmp_path / "spec.yaml"
    text = SPEC.replace("READER", READERS["tar"]).replace("IN", str(packed / "tar")).replace("UPLOAD", "copy")
    text = text.replace("OUT", str(tmp_path / "out")).replace("{encode: raw}", f"{{encode: {encode}}}")
    spec.write_text(text)
    with faked(memory=True):
        result = run_job(spec, {"pipeline.prefetch_queue_depth": depth})
    assert result.report["samples"]["written"] > 20, result.message
    assert set(found) == {lanes}
