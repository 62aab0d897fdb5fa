"""Files that go up piece by piece while they are read: they give what files read as a whole give, byte for byte,
whatever is odd about one of them and whatever fails. With CuPy's stand-in, and with a real GPU where there is one."""

from __future__ import annotations

import gc
import io
import json
import struct
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from dali_run.ops.batch import Batch, Samples
from dali_run.ops.codecs import costs, gpu_decode
from dali_run.ops.codecs.headers import Rules
from dali_run.ops.context import Context
from dali_run.ops.gpu import driver_calls, uploads
from dali_run.ops.gpu.lane import Lane
from dali_run.ops.gpu.readable_by_gpu import in_device_memory, in_host_memory, show
from dali_run.pipelines.compile.place import Target
from dali_run.pipelines.compile.plan import Plan, compile_graph
from dali_run.pipelines.engine.engine import Engine, Options
from dali_run.pipelines.engine.host_executor import needs_headers_only
from dali_run.pipelines.engine.inputs import JobFeed, Sources
from dali_run.pipelines.graph.builder import GraphBuilder
from dali_run.pipelines.job.run import run_job
from dali_run.pipelines.plugins import load_operators
from dali_run.readers.file import File, FileSet
from tests.kit.engine.small_pieces import shrink
from tests.kit.fake_cupy import faked

SPEC = """
version: 1
name: job
pipeline: {batch_size: 8, num_threads: 2, device: GPU, seed: 3, upload: UPLOAD}
graph:
  - {op: readers.file, file_root: IN, file_filters: ["*"], out: [x, label]}
  - DECODE
  - {op: resize, in: x, size: [24, 24], out: x}
outputs: {x: x}
write: {writer: tfrecord, path: OUT, shard: {samples: 10}, fields: {x: {encode: raw}}}
on_error: {policy: skip, max_errors: 50%}
"""
DECODERS = {
    "image": "{op: decoders.image, in: x, out: x}",
    "crop": "{op: decoders.image_random_crop, in: x, seed: 5, out: x}",
    "gray": "{op: decoders.image, in: x, output_type: GRAY, out: x}",
    "slice": "{op: decoders.image_slice, in: x, rel_start: [0.1, 0.2], rel_shape: [0.5, 0.6], out: x}",
}


def exif_of(turned: int) -> Image.Exif:
    """That a picture is to be turned."""
    exif = Image.Exif()
    exif[0x0112] = turned
    return exif


def in_chunks(data: bytes, count: int) -> bytes:
    """A PNG of one IDAT in ``count`` of them, and a text after them."""
    at = data.index(b"IDAT") - 4
    (length,) = struct.unpack_from(">I", data, at)
    body, parts = data[at + 8 : at + 8 + length], b""
    for tag, part in [*((b"IDAT", body[k::1][: -(-length // count)]) for k in range(0, length, -(-length // count))),
                      (b"tEXt", b"Title\0of it")]:  # fmt: skip
        parts += struct.pack(">I", len(part)) + tag + part + struct.pack(">I", zlib.crc32(tag + part))
    return data[:at] + parts + data[at + 12 + length :]


def idats(data: bytes) -> Iterator[tuple[int, int, int]]:
    """Of each IDAT of a PNG: where it begins, the bytes of its body, its CRC."""
    at = 8
    while at < len(data):
        (n,) = struct.unpack_from(">I", data, at)
        if data[at + 4 : at + 8] == b"IDAT":
            yield at, n, struct.unpack_from(">I", data, at + 8 + n)[0]
        at += 12 + n


def encoded(kind: str, i: int) -> bytes:
    """A picture of some size."""
    rng = np.random.default_rng(i)
    height, width = rng.integers(20, 120, 2).tolist()
    image = Image.fromarray(rng.integers(0, 256, (height // 4 + 1, width // 4 + 1, 3), np.uint8))
    image = image.resize((width, height))
    file, how = io.BytesIO(), {}
    if kind == "progressive":
        kind, how = "JPEG", {"progressive": True}
    elif kind == "CMYK":
        image, kind = image.convert("CMYK"), "JPEG"
    elif kind == "palette":
        image, kind = image.convert("P"), "BMP"
    elif kind == "PGM":
        image, kind = image.convert("L"), "PPM"
    elif kind in ("LZW", "deflate"):
        how = {"compression": "tiff_lzw" if kind == "LZW" else "tiff_adobe_deflate"}
        image, kind = image.convert("RGBA") if kind == "LZW" else image, "TIFF"
    elif kind == "PNG palette":
        image, kind = image.convert("P"), "PNG"
    elif kind == "turned":
        how, kind = {"exif": exif_of(6)}, "PNG"
    elif kind == "Exif":
        kind, how = "JPEG", {"exif": exif_of(1 + i % 8)}
    image.save(file, kind, **how)
    return file.getvalue()


def files() -> list[bytes]:
    """Pictures of all kinds that a GPU takes, whole or in part, and of those that it leaves; some of them damaged."""
    kinds = (
        "JPEG", "JPEG", "progressive", "PNG", "BMP", "PPM", "CMYK", "palette", "PGM", "Exif", "WEBP", "GIF", "TIFF",
        "LZW", "deflate", "PNG palette", "turned",
    )  # fmt: skip
    found = [encoded(kind, i) for i, kind in enumerate(kinds * 2)]
    large = io.BytesIO()
    Image.fromarray(np.random.default_rng(1).integers(0, 256, (200, 300, 3), np.uint8)).save(large, "JPEG", quality=97)
    damaged = bytearray(found[0])
    damaged[len(damaged) // 2 : len(damaged) // 2 + 40] = bytes(range(200, 240))
    png = found[3]
    wrong_sum = bytearray(png)  # which only who unpacks it sees
    at = png.index(b"IEND") - 12
    wrong_sum[at] ^= 1
    begin = png.index(b"IDAT")
    wrong_sum[at + 4 : at + 8] = struct.pack(">I", zlib.crc32(wrong_sum[begin : at + 4]))
    wrong_crc, tiff = bytearray(png), bytearray(found[13])
    wrong_crc[len(png) // 2] ^= 1
    tiff[40] ^= 255  # in a strip
    ppm = found[5].replace(b"\n", b" # a comment\n", 1)
    return [
        *found, large.getvalue(), bytes(damaged), ppm, found[0][:200], found[1][:-300], found[4][:-90], found[5][:-90],
        b"", b"no picture", b"\xff", b"BM", b"P6", found[3][:-40], bytes(wrong_sum), bytes(wrong_crc), bytes(tiff),
        in_chunks(png, 5), png + b"more", found[13][:-9], found[13][:300],
    ]  # fmt: skip


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("files")
    (root / "a").mkdir()
    for i, data in enumerate(files()):
        (root / "a" / f"{i:03d}").write_bytes(data)
    return root


@pytest.fixture(autouse=True)
def small_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    """Batches go in many pieces, and some files are larger than one. Bytes that the host was not given are noise."""
    shrink(monkeypatch, 64 << 10)
    empty = Context.empty

    def noise(self: Context, n: int, dtype: Any) -> Any:
        made = empty(self, n, dtype)
        if self.uploads:
            made.view(np.uint8)[:] = 0xD8
        return made

    monkeypatch.setattr(Context, "empty", noise)


def job(folder: Path, out: Path, upload: str, decode: str = "image", gpu: str = "gpu") -> tuple[dict[str, bytes], Any]:
    """The files that a job wrote, and its report."""
    spec = out.with_suffix(".yaml")
    text = SPEC.replace("DECODE", DECODERS[decode]).replace("IN", str(folder)).replace("GPU", f'"{gpu}"')
    spec.write_text(text.replace("OUT", str(out)).replace("UPLOAD", upload))
    run_job(spec, {})
    kept = [p for p in sorted(out.iterdir()) if p.suffix in (".tfrecord", ".idx") or p.name == "rejects.jsonl"]
    return {p.name: p.read_bytes() for p in kept}, json.loads((out / "report.json").read_text())


@pytest.mark.parametrize("late", [False, True])
@pytest.mark.parametrize("decode", list(DECODERS))
def test_a_job_writes_the_same_bytes(
    folder: Path, tmp_path: Path, decode: str, late: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    if late:
        # small batches, too, are unpacked by the GPU
        monkeypatch.setattr(costs, "stragglers", lambda gpu, *_: np.zeros(len(gpu), np.bool_))
    with faked(memory=True, late=late):
        whole, before = job(folder, tmp_path / "whole", "copy", decode)
        pieces, after = job(folder, tmp_path / "pieces", "pieces", decode)
    assert len(whole) > 4
    assert pieces == whole
    assert whole["rejects.jsonl"].count(b"\n") >= 9
    assert before["uploads"] == {}
    assert "in pieces" in after["uploads"]
    assert before["rejected"] == after["rejected"]
    assert before["decoders"] == after["decoders"]
    assert {"cuda png", "cuda tiff"} <= after["decoders"].keys() or not late or decode == "gray"


def test_two_gpus_write_what_one_writes(folder: Path, tmp_path: Path) -> None:
    with faked(1, memory=True):
        one, _ = job(folder, tmp_path / "one", "copy")
    with faked(2, memory=True):
        two, report = job(folder, tmp_path / "two", "pieces", gpu="gpu:all")
    assert "in pieces" in report["uploads"]
    assert one == two


@pytest.mark.gpu
@pytest.mark.parametrize("decode", list(DECODERS))
def test_a_real_gpu_writes_the_same_bytes(folder: Path, tmp_path: Path, decode: str) -> None:
    whole, _ = job(folder, tmp_path / "whole", "copy", decode)
    pieces, report = job(folder, tmp_path / "pieces", "pieces", decode)
    assert "in pieces" in report["uploads"]
    assert pieces == whole


# -- what fails -------------------------------------------------------------------------------------------------------


def plan_of(folder: Path, decode: Any = None) -> Plan:
    load_operators()
    b = GraphBuilder()
    read, _ = b.add("readers.file", (), {"file_root": str(folder), "file_filters": ["*"]})
    (x,) = b.add("decoders.image", [read], decode or {}, device="mixed")
    (x,) = b.add("resize", [x], {"size": (16, 16)})
    return compile_graph(b.build({"x": x}), Target("gpu"), 7)


class Run:
    """One pass over a plan: results by position, rejects, and the bytes of each way."""

    def __init__(
        self, plan: Plan, upload: str, batch: int = 4, look: Callable[[Engine], None] | None = None, **options: Any
    ) -> None:
        self.found: dict[int, np.ndarray] = {}
        self.dropped: list[tuple[int, str]] = []
        with Sources(plan, batch) as sources:
            feed = JobFeed(sources)
            with Engine(plan, feed, feed.requests(batch), Options(lanes=2, upload=upload, **options)) as engine:  # type: ignore[arg-type]
                for it in engine:
                    out = it.outputs(plan)["x"]
                    self.found |= {p: np.array(out.sample(i)) for i, p in enumerate(it.samples.position.tolist())}
                    self.dropped += [(d.slot, d.message) for d in it.dropped]
                    if look is not None:
                        look(engine)
                assert (engine.host_executor.uploads is None) == (upload == "copy")
        self.uploads = dict(engine.stats.uploads)
        assert engine.budget.host.used == 0 or engine.options.resources is not None

    def same(self, other: Run) -> None:
        assert self.found.keys() == other.found.keys()
        assert self.dropped == other.dropped
        for i, value in self.found.items():
            np.testing.assert_array_equal(value, other.found[i])


@pytest.fixture
def driver(monkeypatch: pytest.MonkeyPatch) -> Iterator[dict[str, list[int]]]:
    """The calls of the driver that are to fail, by name and number (1: the first), and how often each was made."""
    import ctypes

    asked: dict[str, list[int]] = {}
    with faked(memory=True, late=True):
        known = driver_calls.load()
        made, made_at = [], {}
        for name, address in known.items():
            real = ctypes.CFUNCTYPE(ctypes.c_int, *(ctypes.c_int64,) * 4)(address)

            def call(a: int, b: int, c: int, d: int, name: str = name, real: Any = real) -> int:
                count, *failing = asked.setdefault(name, [0])
                asked[name][0] = count + 1
                return 700 if count + 1 in failing else int(real(a, b, c, d))

            made.append(ctypes.CFUNCTYPE(ctypes.c_int, *(ctypes.c_int64,) * 4)(call))
            made_at[name] = ctypes.cast(made[-1], ctypes.c_void_p).value or 0
        monkeypatch.setattr(driver_calls, "load", lambda: made_at)
        import cupy

        monkeypatch.setattr(cupy.cuda.driver, "CUDADriverError", RuntimeError, raising=False)
        yield asked


@pytest.mark.parametrize("name", [driver_calls.COPY_IN, driver_calls.RECORD, driver_calls.ASK])
def test_what_the_driver_refuses_is_read_as_a_whole(folder: Path, driver: dict[str, list[int]], name: str) -> None:
    plan = plan_of(folder)
    want = Run(plan, "copy")
    for number in (1, 2, 5):
        driver.clear()
        driver[name] = [0, number]
        run = Run(plan, "pieces")
        run.same(want)
        assert driver[name][0] >= number
        assert run.uploads["copied: 700"] > 0
        assert run.uploads["in pieces"] > 0


def test_after_three_failures_nothing_more_is_tried(folder: Path, driver: dict[str, list[int]]) -> None:
    plan = plan_of(folder)
    want = Run(plan, "copy")
    driver[driver_calls.COPY_IN] = [0, *range(1, 1000)]
    run = Run(plan, "pieces", num_threads=1)
    run.same(want)
    assert {"copied: 700", "copied: it failed before"} <= set(run.uploads)
    assert "in pieces" not in run.uploads
    assert driver[driver_calls.COPY_IN][0] == 3


def test_memory_that_cannot_be_had(folder: Path) -> None:
    """On the device, or to be page-locked, for one batch or for all."""
    with faked(memory=True):
        plan = plan_of(folder)
        want = Run(plan, "copy")
        empty, pinned = uploads.Upload._empty, uploads.pinned_empty
        for failing in ({1}, {2, 3}, set(range(1000))):
            for place in ("device", "host"):
                asked = [0]

                def refuse(*arguments: Any, real: Any = empty if place == "device" else pinned,
                           asked: list[int] = asked, failing: set[int] = failing) -> Any:  # fmt: skip
                    asked[0] += 1
                    if asked[0] - 1 in failing:
                        raise MemoryError("cudaErrorMemoryAllocation")
                    return real(*arguments)

                with pytest.MonkeyPatch.context() as patch:
                    whose, name = (uploads.Upload, "_empty") if place == "device" else (uploads, "pinned_empty")
                    patch.setattr(whose, name, refuse)
                    run = Run(plan, "pieces")
                run.same(want)
                if failing & set(range(asked[0])):
                    assert any("cudaErrorMemoryAllocation" in way for way in run.uploads)


def test_files_that_vanish_or_change_cost_themselves(folder: Path, tmp_path: Path) -> None:
    def broken(upload: str) -> Run:
        root = tmp_path / upload
        (root / "a").mkdir(parents=True)
        for path in sorted((folder / "a").iterdir()):
            (root / "a" / path.name).write_bytes(path.read_bytes())
        plan = plan_of(root)
        opened = FileSet.__init__

        def then(self: FileSet, *arguments: Any, **more: Any) -> None:
            opened(self, *arguments, **more)
            (root / "a" / "000").unlink()
            (root / "a" / "001").write_bytes(b"short")
            with (root / "a" / "005").open("ab") as file:
                file.write(b"longer")
            with (root / "a" / "026").open("r+b") as file:  # larger than a piece
                file.truncate(70_000)
            (root / "a" / "003").unlink()
            (root / "a" / "003").mkdir()

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(FileSet, "__init__", then)
            return Run(plan, upload)

    with faked(memory=True):
        want, run = broken("copy"), broken("pieces")
    run.dropped = [(slot, message.replace("/pieces/", "/copy/")) for slot, message in run.dropped]
    run.same(want)
    assert sum("changed while the job ran" in message for _, message in run.dropped) == 3
    assert "in pieces" in run.uploads


# -- what is held -----------------------------------------------------------------------------------------------------


def test_files_that_wait_on_the_device_are_bounded_and_on_the_accounts(folder: Path) -> None:
    seen: list[int] = []

    def look(engine: Engine) -> None:
        of = engine.host_executor.uploads
        assert of is not None
        for each in of._of.values():
            assert each._waiting_bytes <= each._max_bytes
            seen.append(each._waiting_bytes)

    with faked(memory=True, late=True):
        plan = plan_of(folder)
        want = Run(plan, "copy")
        Run(plan, "pieces", look=look).same(want)
        assert max(seen) > 0
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(uploads, "_MAX_WAITING_SHARE", 1e-6)
            run = Run(plan, "pieces", look=look)
        run.same(want)
        assert set(run.uploads) >= {"copied: no more files may wait on the GPU"}
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(uploads, "_MAX_PIECES_SHARE", 1e-9)
            few = Run(plan, "pieces")
        few.same(want)
        (way,) = few.uploads
        assert way == "copied: pipeline.memory.host leaves less than the 0 MiB that pieces take"


def test_what_is_left_behind(folder: Path) -> None:
    """Nothing: streams are there for the next run, pieces wait to be used again, and nothing is held of batches."""
    with faked(memory=True, late=True) as fake:
        plan = plan_of(folder)
        closed: list[uploads.Uploader] = []
        for _ in range(3):
            Run(plan, "pieces", look=lambda engine: closed.extend(engine.host_executor.uploads._of.values()))  # type: ignore[union-attr]
        gc.collect()
        assert all(each._closed and not each._cached for each in closed)
        assert not any(each._finished for each in closed)
        assert fake.pinned_in_use() == 0
        import cupy

        from dali_run.ops.gpu import lane

        streams = lane._idle_streams[0]
        assert len({stream.ptr for stream in streams}) == len(streams)
        assert all(not stream._calls for stream in streams)
        assert cupy.cuda.Stream.late


def test_streams_are_given_back_while_others_still_ask(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A run that ends waits for no thread where a destructor ends it."""
    with faked(memory=True, late=True):
        up = uploads.Uploader(0, 1 << 30, lambda way, nbytes: None)
        streams, given_back = {up.stream().ptr for _ in range(uploads.STREAMS)}, list[int]()
        assert len(streams) == uploads.STREAMS

        def return_stream(_: int, stream: Any) -> None:
            given_back.append(stream.ptr)
            up.stream()  # as a thread may that reads

        monkeypatch.setattr(uploads, "return_stream", return_stream)
        up.close()
        assert sorted(given_back) == sorted(streams)


def test_an_interrupted_run_leaves_nothing(folder: Path) -> None:
    with faked(memory=True, late=True) as fake:
        plan = plan_of(folder)

        def interrupt(engine: Engine) -> None:
            raise KeyboardInterrupt

        for _ in range(2):
            with pytest.raises(KeyboardInterrupt):
                Run(plan, "pieces", look=interrupt)
        gc.collect()
        assert fake.pinned_in_use() == 0


@pytest.fixture
def sent(folder: Path) -> Iterator[tuple[uploads.Uploader, Batch]]:
    """All files as a batch, on its way; nothing has been waited for but what had to be."""
    load_operators()
    names = sorted(path.name.encode() for path in (folder / "a").iterdir())
    with faked(memory=True, late=True):
        up = uploads.Uploader(0, 1 << 30, lambda way, nbytes: None)
        ctx = Context(File(files=("a",)), "cpu", Samples.numbered(len(names)), uploads={0: up})
        batch = FileSet(str(folder / "a"), names).read(ctx, np.arange(len(names)))
        assert not ctx.rejects
        yield up, batch
        up.close()


def test_a_lane_waits_until_all_is_there(sent: tuple[uploads.Uploader, Batch]) -> None:
    _, batch = sent
    known, lane = files(), Lane()
    for part in (np.array([30, 38, 26]), np.arange(len(batch))):
        back = lane.to_host(lane.to_device(batch.take(part)))
        lane.synchronize()
        for k, i in enumerate(part.tolist()):
            assert back.sample(k).tobytes() == known[i]


def test_a_batch_is_in_both_memories_and_shows_what_is_asked_for(sent: tuple[uploads.Uploader, Batch]) -> None:
    """Of plain files the host sees the beginnings; the rest comes back from the device."""
    up, batch = sent
    known, lane = files(), Lane()
    assert in_device_memory(batch.data)
    assert in_host_memory(batch.data)
    hidden = [i for i in range(len(batch)) if batch.sample(i).tobytes() != known[i]]
    assert {known[i][:2] for i in hidden} == {b"\xff\xd8", b"BM", b"P6", b"P5", b"\x89P", b"II"}
    for i in hidden:
        if known[i][:2] == b"\x89P":  # all but bodies of IDATs, which are in order
            without = np.frombuffer(known[i], np.uint8) == batch.sample(i)
            assert not any(zlib.crc32(known[i][at + 4 : at + 8 + n]) != crc for at, n, crc in idats(known[i]))
            for at, n, _ in idats(known[i]):
                without[at + 8 : at + 8 + n] = True
            assert without.all()
    part = batch.take(np.array([hidden[2], 3, hidden[0]]))
    show(part, np.array([2]))
    assert part.sample(2).tobytes() == known[hidden[0]]
    assert part.sample(0).tobytes() != known[hidden[2]]
    assert lane.to_host(batch) is batch
    for i in range(len(batch)):
        assert batch.sample(i).tobytes() == known[i]
    up.close()
    up.close()
    assert up.begin(100, np.array([100])) is None


def test_what_a_device_could_not_decode_is_decoded_by_the_host(sent: tuple[uploads.Uploader, Batch]) -> None:
    _, batch = sent
    known = Batch.from_list([np.frombuffer(data, np.uint8) for data in files()], "", batch.samples)
    which = np.array([i for i in range(len(batch)) if files()[i][:2] in (b"BM", b"P6", b"P5", b"\xff\xd8")])
    found = []
    for given in (known.take(which), batch.take(which)):
        with Lane() as lane:
            ctx = Context(File(files=("a",)), "mixed", given.samples, device=lane, attempt=1)
            made = lane.to_host(gpu_decode.decode(ctx, given, Rules()))
            lane.synchronize()
            slots = [(r.slot, r.message) for r in ctx.rejects]
            found.append((slots, [made.sample(i).tobytes() for i in range(len(given))]))
    assert found[0] == found[1]
    assert len(found[0][0]) < len(which)


# -- who gets files so ------------------------------------------------------------------------------------------------


def heads(plan: Plan) -> bool:
    return any(needs_headers_only(plan, step) for step in plan.steps)


def test_only_files_that_nobody_else_looks_at(folder: Path) -> None:
    assert heads(plan_of(folder))
    assert heads(plan_of(folder, {"output_type": "GRAY"}))
    for other in ({"jpeg_decoder": "nvjpeg"}, {"on_damage": "keep"}, {"dtype": "FLOAT"}, {"output_type": "YCbCr"}):
        assert not heads(plan_of(folder, other)), other

    def and_files(b: GraphBuilder, found: Any) -> Any:
        return b.build({"x": found[1], "files": found[0]})

    def and_shapes(b: GraphBuilder, found: Any) -> Any:
        (shapes,) = b.add("peek_image_shape", [found[0]], {})
        return b.build({"x": found[1], "shapes": shapes})

    def and_sizes(b: GraphBuilder, found: Any) -> Any:
        (copied,) = b.add("copy", [found[0]], {}, device="gpu")
        return b.build({"x": found[1], "copied": copied})

    def build(outputs: Callable[[GraphBuilder, Any], Any]) -> Plan:
        b = GraphBuilder()
        read, _ = b.add("readers.file", (), {"file_root": str(folder), "file_filters": ["*"]})
        (x,) = b.add("decoders.image", [read], {}, device="mixed")
        return compile_graph(outputs(b, (read, x)), Target("gpu"), 7)

    for outputs in (and_files, and_shapes, and_sizes):
        assert not heads(build(outputs)), outputs
