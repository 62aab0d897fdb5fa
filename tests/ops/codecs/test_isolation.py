"""Decoders in processes of their own: the same pixels and errors, and crashes that cost one file."""

from __future__ import annotations

import contextlib
import io
import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import simplejpeg
from PIL import Image, ImageOps

from dali_run.ops.codecs import pillow as pillow_decode
from dali_run.ops.codecs.formats import probe
from dali_run.ops.codecs.isolation import processes as isolation_module
from dali_run.ops.codecs.isolation.processes import Isolation, isolated
from dali_run.ops.codecs.jpeg import header as jpeg_header
from dali_run.ops.codecs.jpeg import turbo as jpeg_cpu
from dali_run.ops.errors import JobError, SampleError
from dali_run.ops.types import DALIImageType
from tests.kit import faulty_decoder
from tests.kit.faulty_decoder import alive, descendants, faulty, files_in_shared_memory

LIMIT = 10**8


def picture(format: str = "PNG", size: tuple[int, int] = (40, 30), mode: str = "RGB", seed: int = 0) -> bytes:
    channels = {"RGB": 3, "L": 1, "RGBA": 4}[mode]
    pixels = np.random.default_rng(seed).integers(0, 256, (size[1], size[0], channels)).astype(np.uint8)
    out = io.BytesIO()
    Image.fromarray(pixels[:, :, 0] if mode == "L" else pixels).save(out, format)
    return out.getvalue()


def decode(isolation: Isolation, data: bytes) -> Any:
    return isolation.decode(memoryview(data), probe(memoryview(data)), True, LIMIT)


def wait_for(condition: Any) -> None:
    end = time.monotonic() + 120
    while not condition():
        assert time.monotonic() < end, "it did not happen"
        time.sleep(0.01)


@pytest.fixture(scope="module")
def shared() -> Iterator[Isolation]:
    """Workers as they are, for tests that break none."""
    with Isolation(jpeg=True) as made:
        yield made


@pytest.fixture
def reasons() -> list[str]:
    """Why workers of `obedient` were replaced."""
    return []


@pytest.fixture
def obedient(monkeypatch: pytest.MonkeyPatch, reasons: list[str]) -> Iterator[Isolation]:
    """Workers whose decoders fail on command."""
    faulty_decoder.install(monkeypatch)
    with Isolation(jpeg=True, report=reasons.append) as made:
        yield made


def impatient(reasons: list[str], seconds: float) -> Isolation:
    """Like `obedient`, for decoders that do not end: ``seconds`` of CPU time, ten times that by the clock."""
    return Isolation(jpeg=True, timeout=seconds, report=reasons.append)


# -- results ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("format", ["PNG", "BMP", "TIFF", "PPM", "WEBP", "JPEG2000", "GIF"])
@pytest.mark.parametrize("mode", ["RGB", "L", "RGBA"])
def test_the_same_pixels(shared: Isolation, format: str, mode: str) -> None:
    if (format, mode) in (("PPM", "RGBA"), ("GIF", "RGBA")):
        pytest.skip("no such files")
    data = picture(format, mode=mode)
    wanted = pillow_decode.decode(memoryview(data), probe(memoryview(data)), True, LIMIT)
    got = decode(shared, data)
    assert got.dtype == wanted.dtype
    np.testing.assert_array_equal(got, wanted)


@pytest.mark.parametrize("size", [(40, 30), (40, 1), (1, 30)])
def test_what_is_decoded_into_the_shared_memory_may_be_turned(shared: Isolation, size: tuple[int, int]) -> None:
    """A turned picture is a view, which may begin where the pixels were decoded to, and overlap what it becomes."""
    channels = np.random.default_rng(2).integers(0, 256, (size[1], size[0], 3)).astype(np.uint8)
    for orientation in range(1, 9):
        exif, out = Image.Exif(), io.BytesIO()
        exif[0x0112] = orientation
        Image.fromarray(channels).save(out, "WEBP", lossless=True, exif=exif)
        right = ImageOps.exif_transpose(Image.open(io.BytesIO(out.getvalue())))
        np.testing.assert_array_equal(decode(shared, out.getvalue()), np.asarray(right), err_msg=str(orientation))


def test_16_bits_and_large_and_small_in_turns(shared: Isolation) -> None:
    """A worker's memory holds one image after the other; what a larger one left must not be seen."""
    deep = np.random.default_rng(1).integers(0, 65536, (50, 60)).astype(np.uint16)
    out = io.BytesIO()
    Image.fromarray(deep).save(out, "PNG")
    np.testing.assert_array_equal(decode(shared, out.getvalue())[:, :, 0], deep)
    large = io.BytesIO()
    Image.new("RGB", (3600, 3200), (1, 2, 3)).save(large, "PNG", compress_level=1)  # over what is kept
    for data in (picture(size=(1, 1)), large.getvalue(), picture(size=(2, 3)), picture(size=(90, 80))):
        np.testing.assert_array_equal(decode(shared, data), np.asarray(Image.open(io.BytesIO(data))))


@pytest.mark.parametrize("cut", [10, 60, 200])
def test_the_same_errors(shared: Isolation, cut: int) -> None:
    for format in ("PNG", "WEBP", "JPEG2000", "TIFF", "BMP"):
        whole = picture(format, (200, 100))
        header, data = probe(memoryview(whole)), memoryview(whole)[: len(whole) - len(whole) * cut // 256]
        outcomes = []
        for decoder in (shared.decode, pillow_decode.decode):
            try:
                outcomes.append(decoder(data, header, True, LIMIT).tobytes())
            except SampleError as e:
                outcomes.append((e.code, str(e)))
        assert outcomes[0] == outcomes[1], format


@pytest.mark.parametrize("output_type", [DALIImageType.RGB, DALIImageType.GRAY, DALIImageType.ANY_DATA])
@pytest.mark.parametrize("colour", ["RGB", "GRAY"])
def test_jpegs(shared: Isolation, output_type: DALIImageType, colour: str) -> None:
    pixels = np.random.default_rng(2).integers(0, 256, (33, 47, 3 if colour == "RGB" else 1)).astype(np.uint8)
    data = simplejpeg.encode_jpeg(pixels, 90, colour)
    (row,) = jpeg_header.read_headers(np.frombuffer(data, np.uint8), np.zeros(1, np.int64), np.array([len(data)]))
    outcomes = []
    for decoder in (shared.decode_into, jpeg_cpu.decode_into):
        out = np.full(33 * 47 * 3 + 8, 7, np.uint8)
        decoder(memoryview(data), row, output_type, False, out.data)
        outcomes.append(out)
        with pytest.raises(SampleError) as problem:
            decoder(memoryview(data)[:700], row, output_type, False, np.empty_like(out).data)
        outcomes.append(np.array(str(problem.value)))
    np.testing.assert_array_equal(outcomes[0], outcomes[2])
    assert outcomes[1] == outcomes[3]
    assert (outcomes[0][-8:] == 7).all(), "written behind the image"


def test_many_threads(shared: Isolation) -> None:
    files = [picture(size=(20 + k % 7, 30 + k % 11), seed=k) for k in range(40)]
    with ThreadPoolExecutor(6) as pool:
        for data, pixels in zip(files, pool.map(lambda d: decode(shared, d), files), strict=True):
            np.testing.assert_array_equal(pixels, np.asarray(Image.open(io.BytesIO(data))))


def several(isolation: Isolation, files: list[bytes]) -> list[Any]:
    """Pixels, or errors as code and words, as `lend_several` gives them."""
    asked = [(memoryview(f), probe(memoryview(f))) for f in files]
    found = isolation.lend_several(asked, True, LIMIT, lambda k, pixels: (k, pixels.copy()))
    assert [r[0] for r in found if not isinstance(r, SampleError)] == [
        k for k, r in enumerate(found) if not isinstance(r, SampleError)
    ]
    return [(r.code, str(r)) if isinstance(r, SampleError) else r[1] for r in found]


@pytest.mark.parametrize("count", [0, 1, 2, 2 * isolation_module.MAX_IMAGES_PER_REQUEST + 1])
def test_several_at_a_time_are_as_one_by_one(shared: Isolation, count: int) -> None:
    """Good and damaged ones, small ones, and one that has a request for itself."""
    kinds = ("TIFF", "GIF", "WEBP", "JPEG2000")
    files = [picture(kinds[k % 4], (30 + k, 20 + k), seed=k) for k in range(count)]
    if count > 2:
        large = io.BytesIO()
        Image.new("RGB", (1700, 1600), (1, 2, 3)).save(large, "TIFF", compression="tiff_lzw")
        files[4], files[7] = large.getvalue(), files[7][: len(files[7]) // 2]
    alone = [several(shared, [file])[0] for file in files]
    for got, wanted in zip(several(shared, files), alone, strict=True):
        if isinstance(wanted, tuple):
            assert got == wanted
        else:
            np.testing.assert_array_equal(got, wanted)
    assert count < 3 or isinstance(alone[7], tuple)


# -- faults -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("what", "code", "words"),
    [
        ("SIGSEGV", "decoder_crashed", "the png decoder crashed (SIGSEGV) on it, again in a process of its own"),
        ("SIGFPE", "decoder_crashed", "crashed (SIGFPE)"),
        ("SIGABRT", "decoder_crashed", "crashed (SIGABRT)"),
        ("SIGKILL", "decoder_crashed", "crashed (SIGKILL)"),
        ("exit", "decoder_crashed", "crashed (exit code 3)"),
        ("spin", "decoder_timeout", "took more than 0.5 s of CPU time"),
        ("sleep", "decoder_timeout", "did not end within 3 s"),
    ],
)
def test_a_culprit_is_named(
    monkeypatch: pytest.MonkeyPatch, reasons: list[str], what: str, code: str, words: str
) -> None:
    good = picture(seed=3)
    faulty_decoder.install(monkeypatch)
    with impatient(reasons, {"spin": 0.5, "sleep": 0.3}.get(what, 30)) as isolation:
        with pytest.raises(SampleError) as problem:
            decode(isolation, faulty(good, what))
        assert problem.value.code == code
        assert words in str(problem.value)
        assert len(reasons) == 2
        np.testing.assert_array_equal(decode(isolation, good), np.asarray(Image.open(io.BytesIO(good))))


@pytest.mark.parametrize("what", ["SIGSEGV", "spin"])
def test_one_of_several_costs_itself_alone(obedient: Isolation, reasons: list[str], what: str) -> None:
    """The one that was held when the worker died is tried once more, as ever; its neighbours lose nothing."""
    obedient.timeout = 1.0  # ten by the clock: a busy machine must not make a culprit of a neighbour
    files = [picture("TIFF", seed=k) for k in range(6)]
    wanted = [decode(obedient, f) for f in files]
    bad = [*files[:3], faulty(files[3], what), *files[4:]]
    found = several(obedient, bad)
    assert len(reasons) == 2
    assert found[3][0] == ("decoder_crashed" if what == "SIGSEGV" else "decoder_timeout")
    assert "again in a process of its own" in found[3][1]
    for k in (0, 1, 2, 4, 5):
        np.testing.assert_array_equal(found[k], wanted[k])


def test_what_hits_a_worker_with_several_costs_nothing(
    obedient: Isolation, reasons: list[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    obedient.timeout = 10.0  # nothing spins here
    files = [picture("TIFF", seed=k) for k in range(5)]
    faulty_decoder.at_calls(monkeypatch, tmp_path / "calls", {2: "SIGKILL", 5: "SIGSEGV"})
    for got, file in zip(several(obedient, files), files, strict=True):
        np.testing.assert_array_equal(got, np.asarray(Image.open(io.BytesIO(file))))
    assert len(reasons) == 2


def test_memory_that_no_image_needs_is_not_given(obedient: Isolation, reasons: list[str]) -> None:
    with pytest.raises(SampleError, match="needs more memory") as problem:
        decode(obedient, faulty(picture(), "memory"))
    assert problem.value.code == "too_large"
    assert not reasons, "the worker is as good as before"


def test_a_jpeg_that_crashes(obedient: Isolation) -> None:
    data = faulty(simplejpeg.encode_jpeg(np.zeros((16, 16, 3), np.uint8)), "SIGSEGV")
    (row,) = jpeg_header.read_headers(np.frombuffer(data, np.uint8), np.zeros(1, np.int64), np.array([len(data)]))
    with pytest.raises(SampleError, match=r"the jpeg decoder crashed \(SIGSEGV\)"):
        obedient.decode_into(memoryview(data), row, DALIImageType.RGB, False, np.empty(768, np.uint8).data)


def test_what_hits_a_worker_from_outside_costs_nothing(
    reasons: list[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """The first try fails, the second, in a fresh process, does not: the file was not the cause."""
    faulty_decoder.at_calls(monkeypatch, tmp_path / "calls", {1: "SIGKILL", 3: "SIGSEGV", 6: "spin", 8: "SIGBUS"})
    faulty_decoder.install(monkeypatch)
    with impatient(reasons, 0.5) as isolation:
        for k in range(6):
            data = picture(seed=k)
            np.testing.assert_array_equal(decode(isolation, data), np.asarray(Image.open(io.BytesIO(data))))
    assert faulty_decoder.calls(tmp_path / "calls") == 10
    assert [r.rpartition(": ")[2].partition(" (")[0] for r in reasons] == [
        "crashed",
        "crashed",
        "took more than 0.5 s of CPU time",
        "crashed",
    ]


def test_idle_workers_and_the_keeper_may_be_killed(obedient: Isolation) -> None:
    data = picture()
    wanted = decode(obedient, data)
    (server,) = obedient.pids
    (worker,) = descendants(server)
    os.kill(worker, signal.SIGKILL)
    np.testing.assert_array_equal(decode(obedient, data), wanted)
    (worker,) = descendants(server)
    os.kill(server, signal.SIGKILL)
    wait_for(lambda: not alive(worker))
    np.testing.assert_array_equal(decode(obedient, data), wanted)
    assert obedient.pids != [server]


def test_an_oom_killer_that_comes_back_costs_no_image(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Keepers are killed again and again, at work and while they start: no image is blamed, and the job goes on."""
    counter = tmp_path / "starts"
    killing = (
        f"import os, signal\nwith open({str(counter)!r}, 'a') as f:\n    f.write('x')\n    f.flush()\n"
        f"    if f.tell() in (2, 3, 4): os.kill(os.getpid(), signal.SIGKILL)\n"
    )
    monkeypatch.setattr(isolation_module, "_PROGRAM", killing + isolation_module._PROGRAM)
    data = picture()
    with Isolation() as isolation:
        wanted = decode(isolation, data)
        for _ in range(3):
            (server,) = isolation.pids
            (worker,) = descendants(server)
            os.kill(server, signal.SIGKILL)
            wait_for(lambda worker=worker: not alive(worker))  # type: ignore[misc]
            np.testing.assert_array_equal(decode(isolation, data), wanted)
    assert len(counter.read_text()) == 7
    monkeypatch.setattr(isolation_module, "_MAX_SERVERS", 3)
    counter.write_text("x")
    with Isolation() as isolation, pytest.raises(JobError, match="3 of them in a row were killed"):
        decode(isolation, data)


def test_workers_are_renewed_before_what_decoders_lose_adds_up(
    obedient: Isolation, reasons: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(isolation_module, "_MAX_IMAGES", 3)
    data, seen = picture(), []
    for k in range(4):
        np.testing.assert_array_equal(decode(obedient, data), np.asarray(Image.open(io.BytesIO(data))))
        if k == 2:
            wait_for(lambda: not descendants(obedient.pids[0]))
        seen.append(descendants(obedient.pids[0]))
    assert len(seen[0]) == len(seen[3]) == 1
    assert seen[1] == seen[0]
    assert seen[3] != seen[0]
    assert not reasons, "nothing was wrong with it"


def test_closing_does_not_wait_for_a_decoder(monkeypatch: pytest.MonkeyPatch) -> None:
    faulty_decoder.install(monkeypatch)
    isolation = Isolation(timeout=1000)
    found: list[BaseException] = []

    def work() -> None:
        try:
            decode(isolation, faulty(picture(), "sleep"))
        except JobError as e:
            found.append(e)

    thread = threading.Thread(target=work)
    thread.start()
    wait_for(lambda: isolation.pids and descendants(isolation.pids[0]))
    processes = [*isolation.pids, *descendants(isolation.pids[0])]
    isolation.close()
    thread.join(200)
    assert [str(e) for e in found] == ["the run was stopped"]
    assert not any(map(alive, processes))
    with pytest.raises(JobError, match="stopped"):
        decode(isolation, picture())


def test_ends_that_others_have_inherited_keep_nothing_alive() -> None:
    """A process that was forked from this one holds copies of the sockets; here they stand for it."""
    with Isolation() as isolation:
        decode(isolation, picture())
        worker, server = isolation._idle.pop(), isolation._server
        assert server is not None
        inherited = [os.dup(worker._channel.fileno()), os.dup(server._control.fileno())]
        worker.close()
        wait_for(lambda: not any(map(alive, descendants(server.process.pid))))
    assert server.process.returncode == 0, "it had to be killed"
    for end in inherited:
        os.close(end)


def memory_files() -> int:
    """Of workers, open in this process."""
    found = 0
    for link in Path("/proc/self/fd").iterdir():
        with contextlib.suppress(OSError):  # that of the listing itself
            found += "dali-run decoder" in os.readlink(link)
    return found


def test_a_worker_that_answers_while_all_is_closed_is_closed_too(monkeypatch: pytest.MonkeyPatch) -> None:
    before = memory_files()
    isolation = Isolation()
    view = isolation_module._Worker.view

    def view_late(self: Any, answer: Any) -> Any:
        pixels = view(self, answer)
        isolation.close()
        return pixels

    monkeypatch.setattr(isolation_module._Worker, "view", view_late)
    assert decode(isolation, picture()).shape == (30, 40, 3)
    assert memory_files() == before


def test_a_worker_that_cannot_be_asked_is_closed(monkeypatch: pytest.MonkeyPatch) -> None:
    before = memory_files()

    def no_memory(file: int, data: memoryview, start: int) -> None:
        raise MemoryError

    with Isolation() as isolation:
        with monkeypatch.context() as m:
            m.setattr(isolation_module, "_write", no_memory)
            with pytest.raises(MemoryError):
                decode(isolation, picture())
        assert memory_files() == before
        assert decode(isolation, picture()).shape == (30, 40, 3)


def test_none_is_none_and_nothing_starts_before_it_is_needed() -> None:
    assert isolated("none", 30) is None
    with Isolation() as isolation:
        assert isolation.pids == []


def test_a_keeper_that_cannot_start_says_why(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(isolation_module, "_PROGRAM", "raise RuntimeError('no such luck')")
    with Isolation() as isolation, pytest.raises(JobError, match="no such luck; `isolation: none`"):
        decode(isolation, picture())
    monkeypatch.setattr(sys, "executable", "/no/such/python")
    with Isolation() as isolation, pytest.raises(JobError, match="/no/such/python"):
        decode(isolation, picture())


# -- nothing is left --------------------------------------------------------------------------------------------------

PARENT = """
import io, os, sys, time
sys.path.insert(0, {tests!r})
from PIL import Image
from dali_run.ops.codecs.formats import probe
from dali_run.ops.codecs.isolation.processes import Isolation
import faulty_decoder, threading
class Patch:
    setattr = staticmethod(setattr)
faulty_decoder.install(Patch)
isolation = Isolation(timeout=1000)
out = io.BytesIO()
Image.new("RGB", (8, 8)).save(out, "PNG")
good = out.getvalue()
isolation.decode(memoryview(good), probe(memoryview(good)), True, 100)
bad = memoryview(faulty_decoder.faulty(good, "sleep"))
def work():
    try:
        isolation.decode(bad, probe(bad), True, 100)
    except Exception:
        pass
threading.Thread(target=work, daemon=True).start()
while isolation._idle:  # until it is at work
    time.sleep(0.01)
if os.fork() == 0:  # holds copies of all sockets, and outlives the parent
    sys.stdout.close()
    time.sleep(600)
print(isolation.pids[0], flush=True)
time.sleep(600)
"""


@pytest.mark.parametrize("kind", [signal.SIGKILL, signal.SIGINT, signal.SIGTERM])
def test_workers_end_with_the_parent(kind: signal.Signals) -> None:
    """However it ends, although a decoder sleeps, and although another process holds the sockets open."""
    program = PARENT.format(tests=str(Path(faulty_decoder.__file__).parent))
    with subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL) as parent:
        assert parent.stdout is not None
        server = int(parent.stdout.readline())
        workers = descendants(server)
        others = [p for p in descendants(parent.pid) if p not in (server, *workers)]
        assert workers
        assert all(map(alive, [server, *workers, *others]))
        assert not [f for p in (parent.pid, server, *workers) for f in files_in_shared_memory(p)]
        parent.send_signal(kind)
        parent.wait()
    wait_for(lambda: not any(map(alive, [server, *workers])))
    for pid in others:
        os.kill(pid, signal.SIGKILL)


def test_the_report_of_a_pipeline_names_the_signal(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import dali_run.fn as fn
    from dali_run import pipeline_def

    faulty_decoder.install(monkeypatch)
    (tmp_path / "a.png").write_bytes(picture())
    (tmp_path / "b.png").write_bytes(faulty(picture(seed=1), "SIGFPE"))
    (tmp_path / "c.png").write_bytes(picture(seed=2))

    @pipeline_def(batch_size=3, num_threads=2, device_id=None)
    def images() -> Any:
        files, _ = fn.readers.file(files=[str(tmp_path / f"{c}.png") for c in "abc"])
        return fn.decoders.image(files, device="cpu")

    pipe = images(on_error="skip", isolation="auto", decode_timeout=5)
    (out,) = pipe.run()
    assert len(out) == 2
    assert pipe._session.stats.fallbacks["decoder process replaced: crashed (SIGFPE)"] >= 2
    pipe.close()
    pipe = images(isolation="auto")
    with pytest.raises(JobError, match=r"b.png.*decoder_crashed.*SIGFPE"):
        pipe.run()
    pipe.close()
    with pytest.raises(ValueError, match="isolation must be one of auto, all, none, got 'off'"):
        images(isolation="off")
    assert json.loads(images(isolation="none", decode_timeout=2).serialize())
