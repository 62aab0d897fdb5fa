"""Reading ahead: several batches at once, handed on in order, whoever is done first."""

from __future__ import annotations

import gc
import random
import threading
import time
from collections.abc import Callable
from typing import Any, ClassVar

import numpy as np
import pytest

from dali_run.ops.base import Spec
from dali_run.ops.batch import Batch, Origin
from dali_run.ops.context import Context
from dali_run.ops.errors import JobError
from dali_run.ops.gpu.readable_by_gpu import RegisteredLease
from dali_run.ops.storage.inventory import InventoryEntries
from dali_run.ops.types import DALIDataType
from dali_run.pipelines.compile.place import Target
from dali_run.pipelines.compile.plan import Plan, compile_graph
from dali_run.pipelines.engine import credits
from dali_run.pipelines.engine.credits import Credits
from dali_run.pipelines.engine.engine import Engine, Options
from dali_run.pipelines.engine.inputs import JobFeed, Sources
from dali_run.pipelines.engine.options import read_ahead_depth
from dali_run.pipelines.graph.builder import GraphBuilder
from dali_run.pipelines.limits import Memory
from dali_run.pipelines.plugins import load_operators
from dali_run.readers.base import Reader
from tests.kit.fake_cupy import faked

_RECORDS = 400


class _Records:
    """Record i holds i % 251 as often as i % 7 says. ``during`` is called while a batch is read; ``lent`` makes the
    array that is handed out."""

    groups = None
    during: ClassVar[Callable[[Context], None]] = lambda ctx: None
    lent: ClassVar[Callable[[Any], Any]] = lambda data: data
    size: ClassVar[int] = 1

    def __len__(self) -> int:
        return _RECORDS

    def origin(self, index: int) -> Origin:
        return Origin(str(index), "memory")

    def fetch(self, ctx: Context) -> tuple[Batch, ...]:
        index = ctx.samples.index
        sizes = (1 + index % 7) * type(self).size
        at = np.cumsum(sizes) - sizes
        out = ctx.staging(int(sizes.sum()))
        type(self).during(ctx)
        out[:] = np.repeat(index % 251, sizes)
        for k in np.flatnonzero(index % 29 == 3).tolist():
            ctx.reject(k, "read_failed", f"{int(index[k])} is bad")
        return (Batch(type(self).lent(out), at, sizes.astype(np.int32).reshape(-1, 1), "", ctx.samples),)

    def fingerprint(self) -> str:
        return "records"

    def inventory(self) -> InventoryEntries:
        return InventoryEntries(b"records", {}, np.array([_RECORDS]))

    def close(self) -> None:
        pass


class Memorised(Reader, name="testing.memorised"):
    """Reads `_Records`."""

    def infer(self, *specs: Spec) -> Spec:
        return Spec((None,), DALIDataType.UINT8)

    def open(self) -> Any:
        return _Records()


@pytest.fixture(autouse=True)
def _quiet(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_Records, "during", staticmethod(lambda ctx: None))


def compiled(device: str = "cpu", **arguments: Any) -> Plan:
    load_operators()
    b = GraphBuilder()
    (x,) = b.add("testing.memorised", [], arguments)
    if device != "cpu":
        (x,) = b.add("cast", [x], {"dtype": "INT32"}, device="gpu")
    return compile_graph(b.build({"x": x}), Target(device))  # type: ignore[arg-type]


def compiled_with_work() -> Plan:
    """The reader, and a step for the workers."""
    load_operators()
    b = GraphBuilder()
    (x,) = b.add("testing.memorised")
    (x,) = b.add("cast", [x], {"dtype": "INT32"})
    return compile_graph(b.build({"x": x}), Target("cpu"))


def collect(engine: Engine) -> tuple[list[int], list[list[int]], list[tuple[int, str]]]:
    """Indices in the order in which they came, their values, and what was dropped."""
    came, values, dropped = [], [], []
    for it in engine:
        came += it.samples.index.tolist()
        values += [v.tolist() for v in it.env[next(iter(engine.plan.graph.outputs.values()))]]
        dropped += [(it.position_of(d), d.message) for d in it.dropped]
    return came, values, dropped


def expected(order: list[int]) -> tuple[list[int], list[list[int]], list[tuple[int, str]]]:
    good = [i for i in order if i % 29 != 3]
    return good, [[i % 251] * (1 + i % 7) for i in good], [
        (at, f"{i} is bad") for at, i in enumerate(order) if i % 29 == 3
    ]  # fmt: skip


def shuffled(ctx: Context) -> None:
    """Batches are done in another order than they were begun."""
    threading.Event().wait(random.Random(int(ctx.samples.position[0])).choice((0, 0.001, 0.004)))


@pytest.mark.parametrize("device", ["cpu", "null"])
@pytest.mark.parametrize("threads", [1, 2, 5, 12])
def test_order_rejects_and_bytes_do_not_depend_on_who_reads(
    device: str, threads: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(_Records, "during", staticmethod(shuffled))
    plan = compiled(device, random_shuffle=True, initial_fill=50)
    with Sources(plan, 1) as sources:
        order = sources.readers[0][4].job().index.tolist()
        assert order != sorted(order)
        for batch, queue in ((7, 1), (7, 5), (64, 2), (400, 2)):
            feed = JobFeed(sources)
            options = Options(num_threads=threads, cpu_queue=queue, lanes=2)
            with Engine(plan, feed, feed.requests(batch), options) as engine:
                assert collect(engine) == expected(order)


def test_a_job_goes_on_from_any_position() -> None:
    plan = compiled("null")
    with Sources(plan, 1) as sources:
        feed = JobFeed(sources)
        with Engine(plan, feed, feed.requests(16, 133), Options(num_threads=4)) as engine:
            came, _, _ = collect(engine)
    assert came == [i for i in range(133, _RECORDS) if i % 29 != 3]


def test_several_batches_are_read_at_once_and_the_first_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    meeting = threading.Barrier(3, timeout=60)  # passes only where three batches are being read
    inside: list[int] = []
    beside_the_first: list[int] = []

    def during(ctx: Context) -> None:
        number = int(ctx.samples.position[0]) // 40
        inside.append(number)
        if number == 0:
            threading.Event().wait(0.05)
            beside_the_first.extend(inside[1:])
        elif number <= 3:
            meeting.wait()

    monkeypatch.setattr(_Records, "during", staticmethod(during))
    plan = compiled()
    with Sources(plan, 1) as sources:
        feed = JobFeed(sources)
        with Engine(plan, feed, feed.requests(40), Options(num_threads=3, cpu_queue=2)) as engine:
            assert len(list(engine)) == 10
    assert beside_the_first == []
    assert sorted(inside) == list(range(10))


def test_no_more_batches_are_read_than_the_queue_has_room_for(monkeypatch: pytest.MonkeyPatch) -> None:
    begun = []
    monkeypatch.setattr(_Records, "during", staticmethod(lambda ctx: begun.append(int(ctx.samples.position[0]))))
    plan = compiled()
    with Sources(plan, 1) as sources:
        feed = JobFeed(sources)
        with Engine(plan, feed, feed.requests(10), Options(num_threads=8, cpu_queue=2)) as engine:
            for taken in range(1, 41):
                next(engine)
                assert len(begun) <= taken + 3  # two in the queue, and one that waits for room
    assert sorted(begun) == list(range(0, _RECORDS, 10))


@pytest.mark.parametrize(
    ("threads", "asked", "waiting", "at_once"),
    [
        (1, 2, 2, 1),
        (4, 2, 2, 4),
        (8, 2, 2, 4),
        (10, 2, 3, 5),
        (12, 2, 4, 6),
        (16, 2, 6, 8),
        (64, 2, 6, 8),
        (64, 7, 7, 9),
        (4, 7, 7, 4),
    ],
)
def test_a_job_reads_ahead_as_it_has_threads(threads: int, asked: int, waiting: int, at_once: int) -> None:
    assert read_ahead_depth(asked, threads) == waiting
    assert read_ahead_depth(asked, threads, asked=True) == asked
    plan = compiled("null")
    with Sources(plan, 1) as sources:
        feed = JobFeed(sources)
        options = Options(num_threads=threads, cpu_queue=read_ahead_depth(asked, threads))
        with Engine(plan, feed, feed.requests(10), options) as engine:
            assert engine.host_executor.concurrent_reads == at_once


@pytest.mark.parametrize("device", ["cpu", "null"])
def test_errors_are_raised_in_the_order_of_batches(device: str, monkeypatch: pytest.MonkeyPatch) -> None:
    later_failed = threading.Event()

    def during(ctx: Context) -> None:
        number = int(ctx.samples.position[0]) // 10
        if number == 5:
            later_failed.set()
            raise JobError("batch 5 is gone")
        if number == 4:
            later_failed.wait(60)
            raise JobError("batch 4 is gone")

    monkeypatch.setattr(_Records, "during", staticmethod(during))
    plan = compiled(device)
    with Sources(plan, 1) as sources:
        feed = JobFeed(sources)
        with Engine(plan, feed, feed.requests(10), Options(num_threads=8, cpu_queue=6)) as engine:
            assert [next(engine).request.start for _ in range(4)] == [0, 10, 20, 30]
            for number in (4, 5):
                with pytest.raises(JobError, match=f"batch {number} is gone"):
                    next(engine)
            assert next(engine).request.start == 60


def test_batches_before_one_that_cannot_be_read_are_handed_out(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where one thread reads, and cuts batches for the workers, too."""

    def during(ctx: Context) -> None:
        if int(ctx.samples.position[0]) == 40:
            raise JobError("batch 4 is gone")

    monkeypatch.setattr(_Records, "during", staticmethod(during))
    plan = compiled_with_work()
    with Sources(plan, 1) as sources:
        feed = JobFeed(sources)
        with Engine(plan, feed, feed.requests(10), Options(cpu_queue=6)) as engine:
            assert engine.host_executor.concurrent_reads == 1
            engine.start()
            until = time.monotonic() + 60
            while engine.delivery.passed < 5:  # the failure is known before anybody asks for the first batch
                assert time.monotonic() < until
                time.sleep(0.001)
            assert [next(engine).request.start for _ in range(4)] == [0, 10, 20, 30]
            with pytest.raises(JobError, match="batch 4 is gone"):
                next(engine)


def test_slow_readers_read_batches_at_once_whatever_follows(monkeypatch: pytest.MonkeyPatch) -> None:
    """A reader that decodes is not ahead of the workers: one thread of it was all that worked."""
    inside, two = threading.Semaphore(2), threading.Event()

    def during(ctx: Context) -> None:
        if not int(ctx.samples.position[0]):
            return  # alone: it tells how much memory others will take
        inside.acquire()
        if not inside._value:
            two.set()
        assert two.wait(60)
        inside.release()

    monkeypatch.setattr(_Records, "during", staticmethod(during))
    monkeypatch.setattr(Memorised, "reads_slowly", True)
    plan = compiled_with_work()
    with Sources(plan, 1) as sources:
        feed = JobFeed(sources)
        with Engine(plan, feed, feed.requests(10), Options(num_threads=2, cpu_queue=2)) as engine:
            assert collect(engine) == expected(list(range(_RECORDS)))


def test_the_memory_budget_bounds_how_much_is_read_ahead(monkeypatch: pytest.MonkeyPatch) -> None:
    held = []
    monkeypatch.setattr(_Records, "size", 10_000)
    plan = compiled()
    with Sources(plan, 1) as sources:
        feed = JobFeed(sources)
        whole = sum((1 + i % 7) * 10_000 for i in range(_RECORDS))
        budget = whole // 5  # of ten batches; a quarter of it is kept for other work
        options = Options(num_threads=8, cpu_queue=8, memory=Memory(host=budget))
        with Engine(plan, feed, feed.requests(40), options) as engine:
            monkeypatch.setattr(_Records, "during", staticmethod(lambda ctx: held.append(engine.budget.host.used)))
            assert len(list(engine)) == 10
        assert engine.budget.host.peak <= budget
    assert len(held) == 10
    assert max(held) > 0


def test_nothing_stays_page_locked_after_an_early_stop(monkeypatch: pytest.MonkeyPatch) -> None:
    reading, go_on = threading.Semaphore(0), threading.Event()

    def during(ctx: Context) -> None:
        if int(ctx.samples.position[0]) >= 80:
            reading.release()
            go_on.wait(60)

    monkeypatch.setattr(_Records, "during", staticmethod(during))
    with faked() as fake:
        plan = compiled("gpu")
        with Sources(plan, 1) as sources:
            feed = JobFeed(sources)
            options = Options(num_threads=4, cpu_queue=3, to_host=False)
            with Engine(plan, feed, feed.requests(8), options) as engine:
                for _ in range(3):
                    next(engine)
                for _ in range(2):
                    assert reading.acquire(timeout=60)
                assert fake.pinned_in_use() > 0
                stopper = threading.Thread(target=engine.stop)
                stopper.start()
                go_on.set()  # those that are being read end, no others begin
                stopper.join(60)
                assert not stopper.is_alive()
            del engine, stopper
        gc.collect()
        assert fake.pinned_in_use() == 0


def _launches(batch: int, join: int, **options: Any) -> int:
    """Launches of a run in batches of ``batch``, whose consumer waits as long as it takes to ``join`` so many."""
    plan = compiled("null", random_shuffle=True)
    with Sources(plan, 1) as sources:
        order = sources.readers[0][4].job().index.tolist()
        feed = JobFeed(sources)
        options = {"num_threads": 3, "lanes": 2, "merge_requests": True, **options}
        with Engine(plan, feed, feed.requests(batch), Options(**options)) as engine:
            engine.credits.join = join
            assert collect(engine) == expected(order)
        return engine.delivery.passed


@pytest.fixture
def waiting(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whether the consumer waits is not left to how busy the machine is."""
    monkeypatch.setattr(Credits, "consumer_takes", lambda *_: None)


@pytest.mark.usefixtures("waiting")
@pytest.mark.parametrize("whole", [False, True])
def test_small_batches_for_a_device_are_launched_together_where_they_may(whole: bool) -> None:
    assert _launches(4, 64, whole_batches=whole, merge_requests=False) == _RECORDS // 4
    assert _launches(4, 1, whole_batches=whole) == _RECORDS // 4  # nobody waits
    few = _launches(4, 64, whole_batches=whole)  # the first ones come alone, until it is known what they take
    assert few < _RECORDS // 8
    if not whole:
        assert few < _launches(4, 64, whole_batches=whole, memory=Memory(host=2000)) < _RECORDS // 4


@pytest.mark.usefixtures("waiting")
def test_large_samples_go_in_smaller_launches(monkeypatch: pytest.MonkeyPatch) -> None:
    """Their buffers would take long to make: those into which samples are copied, not mapped files and such."""
    monkeypatch.setattr(credits, "COPIED_BYTES", 1)
    assert _launches(2, 64) == _RECORDS // 2
    with monkeypatch.context() as m:
        m.setattr(_Records, "lent", lambda data: RegisteredLease(data, 0).array())
        assert _launches(2, 64) < _RECORDS // 4
        m.setattr(credits, "LAUNCH_BYTES", 1)
        assert _launches(2, 64) == _RECORDS // 2
    monkeypatch.setattr(credits, "COPIED_BYTES", 1 << 20)
    assert _launches(2, 64) < _RECORDS // 4


def test_nothing_runs_ahead_of_a_consumer_that_takes_its_time() -> None:
    """Finished batches and those on lanes are at most as many as there are lanes and places in the queue, however
    large launches had become."""
    plan, lanes, queue = compiled("null", random_shuffle=True), 3, 2
    with Sources(plan, 1) as sources:
        feed = JobFeed(sources)
        options = Options(num_threads=1, lanes=lanes, gpu_queue=queue, merge_requests=False)
        with Engine(plan, feed, feed.requests(2), options) as engine:
            for taken in range(1, 40):
                next(engine)
                launched = next(c for c in engine.channels if c.name.endswith("in flight"))
                while launched.passed < min(taken + lanes + queue, _RECORDS // 2):
                    time.sleep(0.001)
                for _ in range(20):
                    assert launched.passed <= taken + lanes + queue
                    time.sleep(0)


@pytest.mark.usefixtures("waiting")
def test_batches_that_went_together_are_handed_out_as_they_were_asked_for() -> None:
    """One by one, with their own samples, rejects and replacements; memory is given back behind the last of them."""
    plan = compiled("null")
    with Sources(plan, 1) as sources:
        for policy in ("skip", "replace"):
            feed = JobFeed(sources)
            options = Options(num_threads=2, merge_requests=True, policy=policy)
            with Engine(plan, feed, feed.requests(7), options) as engine:
                engine.credits.join = 8
                for k in range(-(-_RECORDS // 7)):
                    it = next(engine)
                    whole = list(range(7 * k, min(7 * k + 7, _RECORDS)))
                    good = [i for i in whole if i % 29 != 3]
                    assert (it.request.start, it.request.n) == (7 * k, len(whole))
                    assert it.all_samples.index.tolist() == whole
                    values = [v.tolist() for v in it.outputs(plan)["x"]]
                    if policy == "skip":
                        assert it.samples.index.tolist() == good
                        assert values == [[i % 251] * (1 + i % 7) for i in good]
                    else:
                        assert len(values) == len(whole)
                    assert [it.position_of(d) for d in it.dropped] == [i for i in whole if i % 29 == 3]
                with pytest.raises(StopIteration):
                    next(engine)
            assert engine.delivery.passed < -(-_RECORDS // 7)
            assert engine.budget.host.used == 0
