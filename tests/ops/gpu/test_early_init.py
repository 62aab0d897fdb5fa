"""GPUs are started ahead, by a thread, without CuPy."""

from __future__ import annotations

import ctypes
import sys
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from dali_run.ops.errors import DeviceError
from dali_run.ops.gpu import early_init
from dali_run.pipelines.compile.place import Target
from dali_run.pipelines.compile.plan import compile_graph
from dali_run.pipelines.engine import engine as engines
from dali_run.pipelines.engine.device.null_lane import NullLane
from dali_run.pipelines.engine.engine import Engine, Options
from dali_run.pipelines.engine.inputs import JobFeed, Sources
from dali_run.pipelines.job import run as runs
from dali_run.pipelines.spec.build import load_spec


class Driver:
    """The calls that are made of libcuda, each with the device that it is about."""

    def __init__(self, refuses: str = "") -> None:
        self.called: list[tuple[str, int]] = []
        self.refuses = refuses

    def _call(self, name: str, device: int = -1) -> int:
        self.called.append((name, device))
        return 100 * (name == self.refuses)

    def cuInit(self, flags: int) -> int:  # noqa: N802
        return self._call("cuInit")

    def cuDeviceGet(self, device: Any, index: int) -> int:  # noqa: N802
        device._obj.value = 10 + index
        return self._call("cuDeviceGet", index)

    def cuDevicePrimaryCtxRetain(self, context: Any, device: ctypes.c_int) -> int:  # noqa: N802
        return self._call("cuDevicePrimaryCtxRetain", device.value)


def started(monkeypatch: pytest.MonkeyPatch, driver: Driver, *asked: tuple[int, ...]) -> list[tuple[str, int]]:
    """The calls of the driver for GPUs that were asked for, list by list."""
    early_init._started.cache_clear()
    monkeypatch.setattr(early_init, "library", lambda: driver)
    for indices in asked:
        early_init.start_ahead(indices)
        for index in indices:
            early_init._started(index).join()
    early_init._started.cache_clear()
    return driver.called


def test_each_gpu_is_started_once(monkeypatch: pytest.MonkeyPatch) -> None:
    called = started(monkeypatch, Driver(), (0,), (0, 2), (2,))
    one = ["cuInit", "cuDeviceGet", "cuDevicePrimaryCtxRetain"]
    assert [name for name, _ in called] == one * 2
    assert [device for _, device in called] == [-1, 0, 10, -1, 2, 12]


@pytest.mark.parametrize("refuses", ["cuInit", "cuDeviceGet", "cuDevicePrimaryCtxRetain"])
def test_a_driver_that_refuses_is_left_to_others_to_report(monkeypatch: pytest.MonkeyPatch, refuses: str) -> None:
    assert started(monkeypatch, Driver(refuses), (0,))[-1][0] == refuses


def test_no_driver(monkeypatch: pytest.MonkeyPatch) -> None:
    def library() -> Any:
        raise OSError("libcuda.so.1: cannot open shared object file")

    driver = Driver()
    monkeypatch.setattr(early_init, "library", library)
    early_init._start(0)
    assert driver.called == []


@pytest.mark.parametrize("cupy", [True, False])
@pytest.mark.parametrize(
    ("device", "gpus"),
    [
        ("gpu", [0]), ("gpu:3", [3]), ("gpu:0,1", []), ("gpu:all", []), ("gpu:x", []), ("cpu", []), ("null", []),
        ("auto", None),
    ],
)  # fmt: skip
def test_the_gpu_that_a_setting_names(
    monkeypatch: pytest.MonkeyPatch, device: str, gpus: list[int] | None, cupy: bool
) -> None:
    asked: list[int] = []
    monkeypatch.setattr(early_init, "start_ahead", asked.extend)
    monkeypatch.delitem(sys.modules, "cupy", raising=False)
    monkeypatch.setattr(early_init, "find_spec", lambda name: object() if cupy else None)
    early_init.start_named(device)
    assert asked == ([0] * cupy if gpus is None else gpus)


def test_a_job_starts_its_gpu_before_it_is_compiled(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever only looks at a spec starts none."""
    events: list[str] = []
    monkeypatch.setattr(runs, "start_named", lambda device: events.append(f"start {device}"))
    monkeypatch.setattr(runs, "resolve_target", lambda device: events.append(f"resolve {device}") or Target())  # type: ignore[func-returns-value]
    (tmp_path / "spec.yaml").write_text(SPEC.replace("IN", str(tmp_path)))
    runs.prepare(tmp_path / "spec.yaml")
    runs.prepare(tmp_path / "spec.yaml", ahead=True)
    runs.prepare(tmp_path / "spec.yaml", device="gpu", ahead=True)
    assert events == ["resolve auto", "start auto", "resolve auto", "start gpu", "resolve gpu"]


# -- the engine meanwhile ---------------------------------------------------------------------------------------------

SPEC = """
version: 1
name: x
pipeline: {batch_size: 4, num_threads: 2, seed: 1}
graph:
  - {op: readers.file, file_root: IN, out: [jpegs, labels]}
  - {op: decoders.image, in: jpegs, output_type: RGB, out: images}
  - {op: resize, in: images, size: [20, 30], out: images}
outputs: {x: images}
"""


def engine_of(folder: Path, **how: Any) -> tuple[Any, JobFeed, Options]:
    (folder / "data" / "a").mkdir(parents=True)
    for k in range(24):
        Image.new("RGB", (40 + k, 30), (k, 2 * k, 255 - k)).save(folder / "data" / "a" / f"{k}.jpg")
    (folder / "spec.yaml").write_text(SPEC.replace("IN", str(folder / "data")))
    plan = compile_graph(load_spec(folder / "spec.yaml").graph, Target("null"), 1)
    return plan, JobFeed(Sources(plan, 4)), Options(lanes=2, **how)


def test_batches_are_read_while_a_device_starts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The first lane is there only when a batch has been read: an engine that opened lanes first would wait for ever.
    Nothing is page-locked before."""
    read = threading.Event()
    opened: list[int] = []

    def open_lane(target: Target, index: int) -> Any:
        assert read.wait(60)
        opened.append(index)
        return NullLane(index)

    monkeypatch.setattr(Engine, "open_lane", staticmethod(open_lane))
    whole = engines.HostExecutor.run_whole

    def watched(part: Any, *args: Any) -> None:
        whole(part, *args)
        read.set()

    monkeypatch.setattr(engines.HostExecutor, "run_whole", watched)
    plan, feed, options = engine_of(tmp_path)
    with Engine(plan, feed, feed.requests(4), options) as engine:
        counts = [len(it.outputs(plan)["x"]) for it in engine]
    assert sum(counts) == len(feed.positions)
    assert opened == [0, 0]


def test_memory_is_page_locked_when_the_device_is_open(tmp_path: Path) -> None:
    plan, feed, options = engine_of(tmp_path)
    with Engine(plan, feed, feed.requests(4), options) as engine:
        asked: list[int] = []
        engine.page_locked = lambda nbytes: asked.append(nbytes) or np.empty(nbytes, np.uint8)  # type: ignore[func-returns-value,assignment]
        assert len(engine._staging(100)) == 100
        assert asked == []
        engine.lanes.for_step()
        engine.lanes.open()
        assert len(engine._staging(101)) == 101
        assert asked == [101]


def test_a_device_that_does_not_start_ends_the_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def open_lane(target: Target, index: int) -> Any:
        raise DeviceError("GPU 0 cannot be used: it fell off the bus")

    monkeypatch.setattr(Engine, "open_lane", staticmethod(open_lane))
    plan, feed, options = engine_of(tmp_path)
    with Engine(plan, feed, feed.requests(4), options) as engine, pytest.raises(DeviceError, match="off the bus"):
        next(engine)


def test_a_run_that_ends_while_a_device_starts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever waits for the device is woken, and lanes that were opened are closed."""
    begun, ended = threading.Event(), threading.Event()
    closed: list[int] = []

    class Lane(NullLane):
        def close(self) -> None:
            closed.append(self.index)

    def open_lane(target: Target, index: int) -> Any:
        begun.set()
        assert ended.wait(60)
        return Lane(index)

    monkeypatch.setattr(Engine, "open_lane", staticmethod(open_lane))
    plan, feed, options = engine_of(tmp_path)
    engine = Engine(plan, feed, feed.requests(4), options)
    engine.start()
    assert begun.wait(60)
    engine._stop_channels()
    ended.set()
    engine.stop()
    assert closed == [0, 0]
    assert not any(thread.is_alive() for thread in engine._threads)
