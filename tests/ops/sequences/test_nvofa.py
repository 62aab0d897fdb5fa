"""The GPU's flow engine: its binding beside a stand-in for the driver's library, and itself where there is one."""

from __future__ import annotations

import ctypes
import sys
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from dali_run.ops.context import KernelServices
from dali_run.ops.errors import SpecError
from dali_run.ops.gpu.lane import Lane
from dali_run.ops.sequences import nvofa

from ...kit.emulated_lane import EmulatedLane
from ...kit.fake_cupy import Stream
from ...kit.fake_nvofa import Engine, built, faked_engine
from ...kit.operators import apply, batch_of, operator


def moving(frames: int, dx: int, dy: int, seed: int, height: int = 48, width: int = 70) -> np.ndarray:
    """A picture of blots that moves by (dx, dy) pixels a frame, its parts beyond the edges too."""
    margin = 12 + frames * max(abs(dx), abs(dy))
    noise = np.random.default_rng(seed).integers(0, 256, (height + 2 * margin, width + 2 * margin, 3)).astype(float)
    for axis in (0, 1):
        noise = sum(np.roll(noise, k, axis) for k in range(-2, 3)) / 5
    noise = np.clip((noise - noise.mean()) * 4 + 128, 0, 255).astype(np.uint8)
    return np.stack([noise[margin - k * dy :, margin - k * dx :][:height, :width] for k in range(frames)])


def found_by(lane: Lane, op: Any, videos: list[np.ndarray], *hints: list[np.ndarray]) -> tuple[list[Any], list[Any]]:
    """The vectors of each video, and the reasons for which samples went to the host."""
    why: list[Any] = []
    with lane:
        given = [lane.to_device(batch_of(arrays, "FHWC")) for arrays in (videos, *hints)]
        out, rejects = apply(
            op, *given, lane=lane, services=KernelServices(count=lambda reason, n: why.append((reason, n)))
        )
        host = lane.to_host(out)
        lane.synchronize()
    assert not rejects
    assert host.layout == "FHWC"
    return [np.array(host.sample(i)) for i in range(len(videos))], why


@pytest.fixture
def engine() -> Iterator[Engine]:
    with faked_engine() as found:
        yield found


# -- beside the headers -----------------------------------------------------------------------------------------------


def test_structures_are_those_of_the_headers() -> None:
    """Sizes and places on 64 bits, in the headers and as a C++ compiler lays out what they say."""
    places = [dtype.fields[name][1] for dtype, name in (  # type: ignore[index]
        (nvofa.INIT, "private"), (nvofa.INIT, "regions"), (nvofa.INPUT, "anew"), (nvofa.INPUT, "regions"),
        (nvofa.INPUT, "where"), (nvofa.OUTPUT, "private"))]  # fmt: skip
    sizes = [t.itemsize for t in (nvofa.INIT, nvofa.DESCRIPTOR, nvofa.STRIDES, nvofa.INPUT, nvofa.OUTPUT)]
    assert sizes == [48, 16, 28, 56, 24]
    assert places == [32, 44, 24, 44, 48, 16]
    library = ctypes.CDLL(str(built()))
    assert [library.fake_sizes(k) for k in range(11)] == sizes + places


def test_the_driver_has_no_library(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(nvofa, "_PATHS", ("libno-such-library.so.1", "libc.so.6"))
    with pytest.raises(nvofa.NoEngineError, match=r"libno-such-library\.so\.1"):
        nvofa.library()


def test_an_older_driver_is_told_of(engine: Engine) -> None:
    engine.library.fake_version(0x10)
    with pytest.raises(nvofa.NoEngineError, match=r"does not know version 2\.0 of the API: invalid version"):
        nvofa.library()


def test_the_engine_says_what_it_takes(engine: Engine) -> None:
    known = nvofa.engine(0, 1)
    assert known == nvofa.FlowEngine((1, 2, 4), (1, 2, 4, 8), (16, 32), (8192, 8192))
    assert engine.alive == 0
    for kind, words in (
        (nvofa.Kind(15, 64, False, 4, nvofa.BEST), "16 x 32 to 8192 x 8192 pixels"),
        (nvofa.Kind(64, 8193, False, 4, nvofa.BEST), "16 x 32 to 8192 x 8192 pixels"),
        (nvofa.Kind(64, 64, False, 3, nvofa.BEST), "support an output_grid of 3"),
        (nvofa.Kind(64, 64, False, 4, nvofa.BEST, 2), "support a hint_grid of 2 with an output_grid of 4"),
    ):
        with pytest.raises(nvofa.NoEngineError, match=words):
            known.check(kind)
    with pytest.raises(nvofa.NoEngineError, match="no GPU"):
        nvofa.engine(0, 0)


# -- what is found ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("grid", [1, 2, 4])
@pytest.mark.parametrize("image_type", ["RGB", "BGR", "GRAY"])
def test_vectors_point_to_the_frame_before(engine: Engine, grid: int, image_type: str) -> None:
    videos, motions = [moving(4, 3, -2, 1), moving(2, -1, 4, 2), moving(3, 0, 1, 3)], [(3, -2), (-1, 4), (0, 1)]
    given = {"RGB": videos, "BGR": [v[..., ::-1] for v in videos], "GRAY": [v[..., :1] for v in videos]}[image_type]
    found, why = found_by(Lane(), operator("optical_flow", output_grid=grid, image_type=image_type), given)
    assert not why
    for vectors, video, (dx, dy) in zip(found, videos, motions, strict=True):
        assert vectors.shape == (len(video) - 1, -(-48 // grid), -(-70 // grid), 2)
        inner = vectors[:, 16 // grid : -16 // grid, 16 // grid : -16 // grid]
        assert (inner == (-dx, -dy)).all()


def test_colours_are_told_apart(engine: Engine) -> None:
    """The stand-in weighs red the most: pictures that move in red alone, in another direction in blue."""
    a, b = moving(3, 3, -2, 1), moving(3, -4, 0, 2)
    video = np.stack([a[..., 0], a[..., 1] // 9, b[..., 2] // 9], axis=-1)
    for image_type, given in (("RGB", video), ("BGR", video[..., ::-1])):
        (vectors,), _ = found_by(Lane(), operator("optical_flow", image_type=image_type), [given])
        assert (np.median(vectors, axis=(0, 1, 2)) == (-3, 2)).all(), image_type


def test_parts_of_a_batch_give_what_the_whole_gives(engine: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    """However many pairs a session is given at once, and whatever else is in the batch."""
    random = np.random.default_rng(7)
    videos = [moving(int(n), int(x), int(y), k, *size) for k, (n, x, y) in enumerate(random.integers(2, 5, (9, 3)))
              for size in [((36, 40), (33, 41))[k % 2]]]  # fmt: skip
    videos[4] = moving(12, 1, 1, 4)
    for temporal in (False, True):
        op = operator("optical_flow", enable_temporal_hints=temporal)
        alone = [found_by(Lane(), op, [video])[0][0] for video in videos]
        for most in (1, 2, 5, 64):
            nvofa.forget()
            monkeypatch.setattr(nvofa, "_MAX_PAIRS", most)
            before = engine.calls("execute")
            found, why = found_by(Lane(), op, videos)
            assert not why
            assert engine.calls("execute") - before == sum(len(v) - 1 for v in videos)
            for one, same in zip(found, alone, strict=True):
                np.testing.assert_array_equal(one, same)


def test_pictures_are_copied_once_and_surfaces_when_they_are_free(
    engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The stand-ins do everything at once: the order in which a GPU would is that of waits, copies and events."""
    monkeypatch.setattr(nvofa, "_MAX_PAIRS", 4)
    did: list[Any] = []
    copy, wait, record = nvofa.Session._copy, Stream.wait_event, Stream.record

    def copied(self: Any, lane: Any, which: int, kernel: str, table: int, low: int, high: int, *more: Any) -> None:
        did.append((kernel, high - low, self._half))
        copy(self, lane, which, kernel, table, low, high, *more)

    def recorded(self: Any) -> Any:
        event = record(self)
        event.which = len([x for x in did if x[0] == "event"])
        did.append(("event", event.which, self.ptr))
        return event

    def waited(self: Any, event: Any) -> None:
        did.append(("wait", event.which, self.ptr))
        wait(self, event)

    monkeypatch.setattr(nvofa.Session, "_copy", copied)
    monkeypatch.setattr(Stream, "record", recorded)
    monkeypatch.setattr(Stream, "wait_event", waited)
    op, lane = operator("optical_flow"), Lane()
    for _ in range(2):
        found_by(lane, op, [moving(7, 1, 0, 1), moving(5, 0, 1, 1)])
    (session,) = nvofa._kept[0]._sessions.values()
    ours, (before, after) = lane.stream.ptr, (s.ptr for s in session._streams)
    assert did == [
        ("event", 0, ours), ("wait", 0, before),
        ("flow_colors", 5, 0), ("flow_vectors", 4, 0), ("event", 1, after),
        ("flow_colors", 6, 1), ("flow_vectors", 4, 1), ("event", 2, after),  # of two videos
        ("wait", 1, before), ("flow_colors", 3, 0), ("flow_vectors", 2, 0), ("event", 3, after),
        ("event", 4, before), ("wait", 4, ours), ("event", 5, after), ("wait", 5, ours),
        ("event", 6, ours), ("wait", 6, before),
        ("wait", 2, before), ("flow_colors", 5, 1), ("flow_vectors", 4, 1), ("event", 7, after),
        ("wait", 3, before), ("flow_colors", 6, 0), ("flow_vectors", 4, 0), ("event", 8, after),
        ("wait", 7, before), ("flow_colors", 3, 1), ("flow_vectors", 2, 1), ("event", 9, after),
        ("event", 10, before), ("wait", 10, ours), ("event", 11, after), ("wait", 11, ours),
    ]  # fmt: skip


def test_hints_begin_the_search(engine: Engine) -> None:
    """The stand-in sees four pixels far."""
    video = moving(3, 20, -15, 3, 80, 100)
    for grid, hint_grid in ((4, 8), (4, 4), (2, 4), (1, 1)):
        op = operator("optical_flow", output_grid=grid, enable_external_hints=True, hint_grid=hint_grid)
        size = 2, -(-80 // hint_grid), -(-100 // hint_grid)
        for hint, right in (((-20.03, 14.0), True), ((20, -15), False)):
            (vectors,), why = found_by(Lane(), op, [video], [np.full((*size, 2), hint, np.float32)])
            assert not why
            inner = vectors[:, 24 // grid : -24 // grid, 24 // grid : -24 // grid]
            assert (inner == (-20, 15)).all() == right


def test_hints_that_no_vector_can_say(engine: Engine) -> None:
    """They are taken for the farthest."""
    lane = Lane()
    with lane:
        hints = np.array([[1e9, -1e9], [3.3, -2.49], [0.016, -np.inf]], np.float32).reshape(1, 3, 1, 2)
        out = np.zeros((3, 64), np.int16)
        tables = np.array([[hints.ctypes.data, out.ctypes.data]], np.int64)
        work = nvofa.driver_calls.Work(lane.stream.ptr)
        work.launch(lane.handle("flow.cu", "flow_hints"), 1, 256, tables.ctypes.data, 3, 1, 128)
        work.submit()
    assert out[:, :2].tolist() == [[32767, -32768], [106, -80], [1, -32768]]


def test_temporal_hints_stay_within_a_sequence(engine: Engine) -> None:
    """A picture that moves faster and faster is followed; the next one in the batch begins anew."""
    steps = np.cumsum([0, 3, 6, 9, 12])
    long = moving(2, 40, 0, 5, 48, 120)[1]
    video = np.stack([np.roll(long, int(s), axis=1) for s in steps])
    followed, alone = (
        found_by(Lane(), operator("optical_flow", enable_temporal_hints=temporal), [video, video])[0]
        for temporal in (True, False)
    )
    for vectors in followed:
        assert np.median(vectors[..., 0], axis=(1, 2)).tolist() == [-3, -6, -9, -12]
    assert np.median(alone[0][..., 0], axis=(1, 2)).tolist()[:1] == [-3]
    assert np.median(alone[0][..., 0], axis=(1, 2))[3] != -12


# -- sessions ---------------------------------------------------------------------------------------------------------


def test_sessions_are_used_again(engine: Engine) -> None:
    op, lane = operator("optical_flow"), Lane()
    videos = [moving(6, 1, 1, k) for k in range(4)]
    found_by(lane, op, videos)
    assert engine.calls("create") == 2, "that which only asks, and the session"
    found_by(Lane(), op, videos)
    assert engine.calls("create") == 2
    lane.release_memory(launching=True)
    assert engine.alive == 0
    found_by(lane, op, videos)
    assert engine.calls("create") == 3


def test_sessions_of_few_sizes_are_kept(engine: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(nvofa, "_MAX_SESSIONS", 2)
    op, videos = operator("optical_flow"), [moving(2, 1, 1, k, 40 + 2 * k, 64) for k in range(5)]
    found_by(Lane(), op, videos)
    found_by(Lane(), op, videos[3:4])
    assert [kind.height for kind in nvofa._kept[0]._sessions] == [48, 46]
    assert engine.alive == 2 * (1 + 6 * nvofa._MAX_PAIRS)


def test_a_session_is_asked_for_no_more_than_its_memory() -> None:
    assert nvofa.Kind(180, 320, False, 4, nvofa.BEST).pairs == nvofa._MAX_PAIRS
    assert nvofa.Kind(1080, 1920, False, 4, nvofa.BEST).pairs == 1
    assert nvofa.Kind(1080, 1920, True, 4, nvofa.BEST).pairs == 4
    assert nvofa.Kind(4320, 7680, False, 4, nvofa.BEST).pairs == 1


# -- the host's turn --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("function", ["create", "set_streams", "init", "create_buffer", "strides_of", "execute"])
def test_the_host_computes_what_the_engine_refuses(engine: Engine, function: str) -> None:
    pytest.importorskip("cv2")
    lane, op, video = Lane(), operator("optical_flow"), moving(4, 2, -1, 1)
    nvofa.engine(0, 1)
    engine.fail(function, 5, after=1 if function in ("execute", "create_buffer") else 0)
    (vectors,), ((reason, count),) = found_by(lane, op, [video])
    assert "invalid parameter" in reason
    assert reason.startswith("not for the GPU's flow engine: ")
    assert count == 1
    wanted, _ = apply(op, batch_of([video], "FHWC"))
    np.testing.assert_array_equal(vectors, wanted.sample(0))
    assert engine.alive == 0
    (vectors,), why = found_by(lane, op, [video])
    assert not why, "the next batch may be taken"
    assert (np.median(vectors, axis=(0, 1, 2)) == (-2, 1)).all()


def test_small_pictures_beside_others(engine: Engine) -> None:
    pytest.importorskip("cv2")
    op = operator("optical_flow")
    videos = [moving(3, 2, -1, 1), moving(3, 1, 1, 2, 14, 20), moving(2, 0, 2, 3, 15, 64)]
    found, why = found_by(Lane(), op, videos)
    assert why == [("not for the GPU's flow engine: it supports images of 16 x 32 to 8192 x 8192 pixels", 1)] * 2
    wanted, _ = apply(op, batch_of(videos, "FHWC"))
    for k in (1, 2):
        np.testing.assert_array_equal(found[k], wanted.sample(k))
    assert (np.median(found[0], axis=(0, 1, 2)) == (-2, 1)).all()


def test_neither_engine_nor_opencv(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "cv2", None)
    with pytest.raises(SpecError, match=r"needs the GPU's flow engine \(there is no GPU\) or OpenCV"):
        apply(operator("optical_flow"), batch_of([moving(2, 1, 1, 1)], "FHWC"), lane=EmulatedLane())


# -- on a GPU ---------------------------------------------------------------------------------------------------------


@pytest.mark.gpu
@pytest.mark.parametrize("preset", [0, 0.5, 1])
@pytest.mark.parametrize("grid", [1, 2, 4])
def test_motion_is_found_on_a_gpu(preset: float, grid: int) -> None:
    """By the engine where there is one, else by the host; each sample as it is alone."""
    op = operator("optical_flow", preset=preset, output_grid=grid)
    videos = [moving(4, 3, -2, 1, 96, 128), moving(2, -1, 4, 2, 96, 128), moving(3, 2, 2, 3, 101, 75)]
    found, _ = found_by(Lane(), op, videos)
    for video, vectors, motion in zip(videos, found, ((3, -2), (-1, 4), (2, 2)), strict=True):
        inner = vectors[:, 24 // grid : -24 // grid, 24 // grid : -24 // grid]
        np.testing.assert_allclose(np.median(inner, axis=(0, 1, 2)), np.negative(motion), atol=0.25)
        np.testing.assert_array_equal(found_by(Lane(), op, [video])[0][0], vectors)


@pytest.mark.gpu(emulated=False)
@pytest.mark.parametrize("arguments", [{}, {"image_type": "GRAY"}, {"image_type": "BGR"}, {"output_grid": 2}])
def test_the_engine_itself(arguments: dict[str, Any]) -> None:
    lane = Lane()
    try:
        nvofa.engine(0, lane.context)
    except nvofa.NoEngineError as e:
        pytest.skip(str(e))
    channels = 1 if "GRAY" in arguments.values() else 3
    videos = [moving(5, 3, -2, k, 180, 320)[..., :channels] for k in range(6)]
    found, why = found_by(lane, operator("optical_flow", **arguments), videos)
    assert not why
    for vectors in found:
        inner = vectors[:, 4:-4, 4:-4]
        assert np.mean(np.abs(inner - (-3, 2)).max(axis=-1) < 0.5) > 0.9
    temporal, _ = found_by(lane, operator("optical_flow", enable_temporal_hints=True, **arguments), videos)
    alone, _ = found_by(lane, operator("optical_flow", enable_temporal_hints=True, **arguments), videos[3:4])
    np.testing.assert_array_equal(temporal[3], alone[0])
