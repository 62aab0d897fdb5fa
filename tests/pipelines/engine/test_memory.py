"""Memory: budgets, what is known before decoding, batches that are cut, and runs whose allocations fail."""

from __future__ import annotations

import io
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from dali_run import fn, pipeline_def
from dali_run.ops.base import operators
from dali_run.ops.batch import Batch, Samples
from dali_run.ops.context import Context
from dali_run.ops.errors import DeviceError, JobError, SpecError
from dali_run.pipelines.compile.place import Target
from dali_run.pipelines.compile.plan import Plan, compile_graph
from dali_run.pipelines.engine import errors
from dali_run.pipelines.engine.device import out_of_memory as on_device
from dali_run.pipelines.engine.engine import FEWER, IN_PARTS, Engine, NullLane, Options
from dali_run.pipelines.engine.host_executor import HostExecutor
from dali_run.pipelines.engine.inputs import Sources
from dali_run.pipelines.engine.memory.budget import MemoryBudget, OverBudgetError, Reservation, SharedBudgets
from dali_run.pipelines.engine.memory.buffer_pool import BufferPool
from dali_run.pipelines.engine.threads.channel import Closed
from dali_run.pipelines.graph.builder import GraphBuilder
from dali_run.pipelines.graph.nodes import Edge
from dali_run.pipelines.job.part import OpenJob
from dali_run.pipelines.job.run import CLEAN, FAILED, REJECTS, identity, prepare
from dali_run.pipelines.limits import Memory, host_memory, memory_of, parse_limit
from dali_run.pipelines.plugins import load_operators
from dali_run.pipelines.python.pipeline import Pipeline
from dali_run.pipelines.show.terminal import plan_view, report_view
from dali_run.pipelines.spec.build import load_spec
from dali_run.pipelines.tools.preview import describe_job
from dali_run.writers.shards.output import Output
from tests.kit.engine.short_of_memory import (
    SPEC,
    Failing,
    OutOfMemoryError,
    lanes_that,
    opened,
    picture,
    points,
    run,
    shards,
)
from tests.kit.engine.testing_operators import CountingFeed, branching, compiled, requests

load_operators()


@pytest.fixture
def spec(tmp_path: Path) -> Path:
    rng = np.random.default_rng(1)
    (tmp_path / "in" / "a").mkdir(parents=True)
    for i in range(22):
        height, width = rng.integers(30, 60, 2).tolist()
        (tmp_path / "in" / "a" / f"{i:02d}.jpg").write_bytes(picture(rng, height, width))
    file = tmp_path / "spec.yaml"
    file.write_text(SPEC.replace("IN", str(tmp_path / "in")).replace("OUT", str(tmp_path / "out")))
    return file


# -- limits -----------------------------------------------------------------------------------------------------------


def test_limits_are_sizes_or_shares() -> None:
    assert [parse_limit(v) for v in (None, "auto", 4096, "4GiB", "1.5 KB", "50%")] == [
        None,
        None,
        4096,
        4 << 30,
        1500,
        0.5,
    ]
    for wrong in (0, -1, "0%", "101%", "4 apples", True, 1.5, [], "1e9", 1 << 63):
        with pytest.raises(ValueError, match="auto, a number of bytes"):
            parse_limit(wrong)
    assert Memory().host_bytes() == host_memory() // 2
    assert Memory(0.25, 0.5).gpu_bytes(1000) == 500
    assert Memory(7, 9).gpu_bytes(1000) == 9


def test_the_limit_of_the_process_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    whole = host_memory()
    monkeypatch.setattr("resource.getrlimit", lambda _: (whole // 3, whole))
    assert host_memory() == whole // 3


def test_the_control_groups_limit_counts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    root = tmp_path / "sys/fs/cgroup"
    for folder, limit in (("a/b", "max"), ("a", "5000000"), ("", "9000000"), ("memory/c", "4000000")):
        (root / folder).mkdir(parents=True, exist_ok=True)
        (root / folder / ("memory.limit_in_bytes" if "memory" in folder else "memory.max")).write_text(limit + "\n")
    listed = tmp_path / "proc"
    real = Path
    places = {"/proc/self/cgroup": listed, "/sys/fs/cgroup": root}
    monkeypatch.setattr("dali_run.pipelines.cores.Path", lambda p: places.get(p, real(p)))
    listed.write_text("0::/a/b\n")
    assert host_memory() == 5_000_000
    listed.write_text("4:cpu,cpuacct:/x\n3:memory:/c\n")
    assert host_memory() == 4_000_000


def test_specs_set_budgets(spec: Path) -> None:
    text = spec.read_text().replace("seed: 3", "seed: 3, memory: {host: 1GiB, gpu: 30%}")
    spec.write_text(text)
    assert load_spec(spec).spec.pipeline.memory == Memory(1 << 30, 0.3)
    changed = load_spec(spec, {"pipeline.memory.host": "2GiB"}).spec.pipeline.memory
    assert changed == Memory(2 << 30, 0.3)
    plan = describe_job(spec, device="null")
    assert plan["memory"] == {"host": 1 << 30, "gpu": "30% of what is free"}
    assert describe_job(spec, {"pipeline.memory.gpu": "8GiB"}, "null")["memory"]["gpu"] == 8 << 30
    assert describe_job(spec)["memory"] == {"host": 1 << 30}
    assert "Memory limits: host: 1.0 GiB, gpu: 30% of what is free" in shown(plan_view(plan))
    spec.write_text(text.replace("1GiB", "lots").replace("gpu: 30%", "tpu: 1"))
    with pytest.raises(SpecError) as e:
        load_spec(spec)
    assert "4:80: pipeline.memory: host must be auto, a number of bytes such as 512MiB or 4GiB" in str(e.value)
    assert "there is no key 'tpu'" in str(e.value)


def shown(view: Any) -> str:
    from rich.console import Console

    console = Console(width=300, record=True, file=io.StringIO())
    console.print(view)
    return console.export_text()


def test_pipelines_take_budgets() -> None:
    assert memory_of({"host": "1MiB"}) == Memory(1 << 20, None)
    pipe = Pipeline(2, 1, memory={"host": "1MiB", "gpu": "10%"})
    assert pipe._settings.arguments()["memory"] == {"host": 1 << 20, "gpu": "10%"}
    with pytest.raises(ValueError, match=r"memory\['gpu'\] must be auto"):
        Pipeline(2, 1, memory={"gpu": "much"})
    with pytest.raises(ValueError, match="keys host and gpu, got 'hots'"):
        Pipeline(2, 1, memory={"hots": 1})


# -- accounts ---------------------------------------------------------------------------------------------------------


def started(target: Callable[[], None]) -> threading.Thread:
    thread = threading.Thread(target=target, daemon=True)
    thread.start()
    return thread


def until_it_waits(budget: MemoryBudget) -> None:
    while not budget._account.waiting:
        time.sleep(0.001)


def test_batches_wait_for_room_but_the_oldest_goes_on() -> None:
    budget = MemoryBudget(100)
    budget.reserve((0,), 150)  # alone: let in
    entered = threading.Event()

    def second() -> None:
        budget.reserve((1,), 10)
        entered.set()

    thread = started(second)
    until_it_waits(budget)
    assert not entered.wait(0.05)
    budget.reserve((0,), 80)  # smaller than foreseen
    thread.join(60)
    assert entered.is_set()
    budget.reserve((0,), 500)  # the oldest may grow
    budget.release((0,))
    budget.reserve((1,), 300)
    budget.release((1,))
    assert (budget.used, budget.peak) == (0, 510)
    assert budget.waited > 0


def test_parts_of_a_batch_come_in_its_place() -> None:
    budget = MemoryBudget(10)
    budget.reserve((3,), 5)
    budget.reserve((2, 1), 50, wait=False)
    budget.reserve((2, 0), 50)  # the oldest
    budget.stop()
    with pytest.raises(Closed):
        budget.reserve((2, 1), 60)


def test_work_waits_for_room_but_never_for_ever() -> None:
    budget = MemoryBudget(100)
    budget.reserve((0,), 90)
    entered: list[str] = []

    def other() -> None:
        with budget.task(50):
            entered.append("other")

    with budget.task(60):  # nothing else runs
        thread = started(other)
        until_it_waits(budget)
        thread.join(0.05)
        assert not entered
    thread.join(60)
    assert entered == ["other"]
    assert budget.used == 90


def test_alone_waits_until_nothing_else_runs() -> None:
    budget = MemoryBudget(100)
    order: list[str] = []
    inside, leave = threading.Event(), threading.Event()

    def other() -> None:
        with budget.task(1):
            inside.set()
            leave.wait(60)
            order.append("other")

    thread = started(other)
    inside.wait(60)
    with budget.task(1):
        threading.Timer(0.05, leave.set).start()
        with budget.exclusive():
            order.append("alone")
    thread.join(60)
    assert order == ["other", "alone"]


def test_two_that_want_to_be_alone_take_turns() -> None:
    budget = MemoryBudget(100)
    both = threading.Barrier(2)
    inside = []

    def one() -> None:
        with budget.task(1):
            both.wait(60)
            with budget.exclusive():
                inside.append(len(inside))

    threads = [started(one) for _ in range(2)]
    for t in threads:
        t.join(60)
    assert inside == [0, 1]
    assert budget.used == 0


def test_a_reservation_is_what_was_taken_and_what_there_is_room_for() -> None:
    budget = MemoryBudget(1000)
    budget.reserve((0,), 700)
    with budget.task(100):
        reservation = Reservation(budget, 100)
        reservation.start_pass(4)
        assert reservation.empty(25, np.float32).shape == (25,)
        reservation.empty(200, np.uint8)
        assert budget.used == 1000
        with pytest.raises(OverBudgetError, match="does not fit next to"):
            reservation.empty(1, np.uint8)
        reservation.keep_only(50)
        reservation.empty(250, np.uint8)
        reservation.start_pass(1)  # one sample may have all
        reservation.empty(1000, np.uint8)
        with pytest.raises(OverBudgetError, match=r"it needs 1001 B, the budget is 1000 B"):
            reservation.empty(1, np.uint8)
        reservation.close()
    assert budget.used == 700


def test_runs_that_overlap_have_one_account_and_the_earlier_goes_first() -> None:
    accounts, plan = SharedBudgets(), object()
    first, second = accounts.of(plan, "host", 100, 0.25), accounts.of(plan, "host", 100, 0.25)
    first.reserve((7,), 40)
    second.reserve((0,), 30)
    assert first.used == second.used == 70
    order: list[str] = []

    def hold(budget: MemoryBudget, number: int, what: str) -> None:
        budget.reserve((number,), 20)
        order.append(what)

    later = started(lambda: hold(second, 1, "second"))
    until_it_waits(first)
    earlier = started(lambda: hold(first, 8, "first"))
    while len(first._account.waiting) < 2:
        time.sleep(0.001)
    first.reserve((7,), 25)  # room for one of them
    earlier.join(60)
    assert order == ["first"]
    second.release((0,))
    later.join(60)
    assert order == ["first", "second"]
    assert first.used == 65
    assert accounts.of(object(), "host", 100, 0.25).used == 0, "of another plan"


def test_the_end_of_a_run_leaves_nothing_of_it_on_the_account_and_the_others_alone() -> None:
    accounts, plan = SharedBudgets(), object()
    first, second = accounts.of(plan, "host", 100), accounts.of(plan, "host", 100)
    first.reserve((0,), 60)
    assert first.try_grow(20, alone=False)
    second.reserve((0,), 10)
    waits = started(lambda: second.reserve((1,), 80))
    until_it_waits(first)
    first.stop()
    with pytest.raises(Closed):
        first.reserve((1,), 30)
    first.close()
    waits.join(60)
    first.shrink(20)  # late
    first.release((0,))
    first.reserve((2,), 50, wait=False)
    assert second.used == 90
    second.close()
    assert second.used == 0


def test_what_waits_to_be_used_again_is_on_the_account_and_goes_where_there_is_no_room() -> None:
    mib = 1 << 20
    budget = MemoryBudget(10 * mib)
    kept, other = (BufferPool(4, 8 * mib, budget.has_room) for _ in range(2))
    budget.add_cache(kept, other)
    kept.empty(4 * mib, np.uint8)
    other.empty(2 * mib, np.uint8)
    assert (kept.cached, other.cached) == (4 * mib, 2 * mib)
    budget.reserve((0,), 3 * mib)  # there is room for all
    budget.reserve((1,), mib)
    assert kept.cached + other.cached == 6 * mib
    budget.reserve((2,), 2 * mib)  # there would be, without them
    assert kept.cached + other.cached == 0
    assert budget.used == 6 * mib
    kept.empty(8 * mib, np.uint8)  # is let go of at once
    kept.empty(2 * mib, np.uint8)
    assert kept.cached == 2 * mib
    with budget.task(3 * mib):
        assert kept.cached == 0
        kept.empty(2 * mib, np.uint8)
        assert kept.cached == 0
    budget.close()
    assert not budget._account.distinct_caches


def test_engines_have_what_they_keep_on_their_account(spec: Path) -> None:
    """After them nothing refers to them."""
    kept: list[Any] = []
    keeps = MemoryBudget.add_cache
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(MemoryBudget, "add_cache", lambda self, *idle: (kept.append((self, idle)), keeps(self, *idle)))
        assert run(spec, pipeline__memory__host="200KB").exit_code == CLEAN
    assert {type(i).__name__ for _, idle in kept for i in idle} == {"BufferPool"}
    assert all(not budget._account.distinct_caches for budget, _ in kept)


def test_the_parts_of_a_job_have_one_account(spec: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two of them at the same time hold no more than one may, and make what one run makes."""
    run(spec, "whole", write__shard__samples=8)
    overrides = {"write.path": str(spec.parent / "parts"), "write.shard.samples": 8, "pipeline.memory.host": "60KB"}
    prepared = prepare(spec, overrides)
    made: list[MemoryBudget] = []
    init = MemoryBudget.__init__
    monkeypatch.setattr(MemoryBudget, "__init__", lambda self, *a, **k: (init(self, *a, **k), made.append(self))[0])
    with Sources(prepared.plan, prepared.spec.pipeline.batch_size) as sources:
        job = OpenJob(prepared, sources, identity(prepared, sources))
        spans = [range(8), range(8, len(job.positions))]
        threads = [started(lambda k=k: job.run((k, 2), spans[k], lambda _: None, {})) for k in range(len(spans))]
        for thread in threads:
            thread.join(120)
    for suffix in ("tfrecord", "idx"):
        whole = {p.name: p.read_bytes() for p in (spec.parent / "whole").glob(f"*.{suffix}")}
        assert whole
        assert whole == {p.name: p.read_bytes() for p in (spec.parent / "parts").glob(f"*.{suffix}")}
    runs = [budget for budget in made if budget.limit == 60_000 and budget.peak]
    assert len(runs) == 2
    assert runs[0]._account is runs[1]._account
    assert runs[0].used == 0


# -- what is known before decoding ------------------------------------------------------------------------------------


@pytest.mark.parametrize("arguments", [{}, {"output_type": "GRAY"}, {"dtype": "FLOAT"}, {"output_type": "ANY_DATA"}])
def test_decoders_foresee_the_sizes_of_what_they_give(arguments: dict[str, Any]) -> None:
    from dali_run.ops.base import coerce, parameter

    rng = np.random.default_rng(2)
    exif = Image.Exif()
    exif[0x0112] = 6
    blobs = [
        picture(rng, 31, 17),
        picture(rng, 40, 9, "PNG"),
        picture(rng, 8, 8, "JPEG", exif=exif),
        picture(rng, 25, 24, "JPEG", progressive=True),
        picture(rng, 7, 9, "BMP"),
        b"nonsense",
        picture(rng, 9, 9)[:50],
    ]
    gray = io.BytesIO()
    Image.fromarray(rng.integers(0, 255, (12, 13), np.uint8)).save(gray, "JPEG")
    blobs.append(gray.getvalue())
    data = np.frombuffer(b"".join(blobs), np.uint8)
    sizes = np.array([len(b) for b in blobs])
    encoded = Batch(data, np.cumsum(sizes) - sizes, sizes.astype(np.int32)[:, None], "", Samples.numbered(len(blobs)))
    kind = operators()["decoders.image"]
    op = kind(**{k: coerce(parameter(kind, k), v) for k, v in arguments.items()})
    found = op.estimate_memory("cpu", encoded)
    assert found is not None
    given = op.cpu(Context(op=op, stage="cpu", samples=encoded.samples), encoded)  # type: ignore[attr-defined]
    assert found[0].tolist() == given.sizes.tolist()
    besides = found[1].tolist()
    assert besides[0] == (3 * 31 * 17 if "dtype" in arguments else 0)
    assert besides[1] == 7 * 40 * 9  # Pillow's picture and its copy
    assert besides[2] == 3 * 64  # turned afterwards
    assert besides[3] >= 2 * 3 * 25 * 24  # coefficients of all scans
    on_gpu = op.estimate_memory("mixed", encoded)
    assert on_gpu is not None
    assert (on_gpu[1][given.sizes > 0] > 0).all()


# -- budgets of jobs --------------------------------------------------------------------------------------------------


def test_a_tight_budget_changes_no_byte(spec: Path) -> None:
    """About the memory of one batch: batches come in parts, chunks are smaller, and nothing is rejected."""
    assert run(spec, "wide").exit_code == CLEAN
    for host in ("200KB", "60KB", "25KB"):
        for device in ("cpu", "null"):
            result = run(spec, f"{host}-{device}", pipeline__memory__host=host, pipeline__device=device)
            assert result.exit_code == CLEAN, result.message
            assert shards(spec.parent / f"{host}-{device}") == shards(spec.parent / "wide")
    assert result.report["fallbacks"][IN_PARTS] > 0
    memory = result.report["memory"]
    assert memory["host_budget_bytes"] == 25_000
    assert 0 < memory["host_peak_bytes"] < 50_000
    assert "Peak batch memory: " in shown(report_view(result.report))


def test_the_account_stays_below_the_budget_where_batches_can_be_cut(spec: Path) -> None:
    settings: dict[str, Any] = {"pipeline__prefetch_queue_depth": 8, "pipeline__batch_size": 22}
    wide = run(spec, "wide", **settings)
    tight = run(spec, "tight", **settings, pipeline__memory__host="90KB")
    assert wide.report["memory"]["host_peak_bytes"] > 90_000
    assert tight.report["memory"]["host_peak_bytes"] <= 90_000


def test_batches_that_must_be_whole_stay_whole(spec: Path) -> None:
    """DALI's random numbers depend on the batch: it may run alone, over the budget."""
    wide = run(spec, "wide", pipeline__rng="dali")
    tight = run(spec, "tight", pipeline__rng="dali", pipeline__memory__host="25KB")
    assert wide.exit_code == tight.exit_code == CLEAN
    assert shards(spec.parent / "wide") == shards(spec.parent / "tight")
    assert IN_PARTS not in tight.report["fallbacks"]


def test_a_job_in_parts_continues_where_it_was_ended(spec: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run(spec, "whole")
    add = Output.add
    left = [4]

    def ends(self: Output, *args: Any) -> None:
        left[0] -= 1
        if left[0] == 0:
            raise KeyboardInterrupt
        add(self, *args)

    monkeypatch.setattr(Output, "add", ends)
    run(spec, "out", pipeline__memory__host="25KB", pipeline__batch_size=22)
    monkeypatch.setattr(Output, "add", add)
    assert run(spec, "out", pipeline__memory__host="60KB").exit_code == CLEAN
    assert shards(spec.parent / "out") == shards(spec.parent / "whole")


def test_a_sample_over_the_budget_is_rejected_with_its_size(spec: Path) -> None:
    rng = np.random.default_rng(5)
    big = spec.parent / "in" / "a" / "big.jpg"
    big.write_bytes(picture(rng, 500, 400, progressive=True, quality=5))
    result = run(spec, pipeline__memory__host="900KB")
    assert result.exit_code == REJECTS
    (line,) = (spec.parent / "out" / "rejects.jsonl").read_text().splitlines()
    assert '"code":"too_large"' in line.replace(" ", "")
    # 500 x 400 x 3: the window, the picture it is cut from, and 16 bits for each coefficient
    assert "it takes 2.3 MiB of memory, the budget is 879 KiB (pipeline.memory.host)" in line, line
    assert "retry-failed" in line
    assert "decoders.image_random_crop" in line


def test_a_record_over_the_budget_is_rejected_before_it_is_read(spec: Path) -> None:
    (spec.parent / "in" / "a" / "huge.jpg").write_bytes(bytes(300_000))
    result = run(spec, pipeline__memory__host="200KB")
    assert result.exit_code == REJECTS
    (line,) = (spec.parent / "out" / "rejects.jsonl").read_text().splitlines()
    assert "too_large" in line
    assert "the budget is 195 KiB" in line


def test_an_operator_that_cannot_tell_is_held_to_the_budget(spec: Path) -> None:
    """resize_shorter gives no shape before it runs: what it allocates is counted then."""
    text = spec.read_text().replace("image_random_crop", "image").replace("size: [12, 10]", "resize_shorter: 300")
    spec.write_text(text.replace("crop_mirror_normalize, in: x, mirror: $mirror, mean: [100, 110, 120]", "copy, in: x"))
    (spec.parent / "in" / "a" / "odd.png").write_bytes(picture(np.random.default_rng(1), 30, 900, "PNG"))
    wide = run(spec, "wide")
    tight = run(spec, "tight", pipeline__memory__host="3MB", pipeline__batch_size=4)
    assert wide.exit_code == CLEAN
    assert tight.exit_code == REJECTS
    (line,) = (spec.parent / "tight" / "rejects.jsonl").read_text().splitlines()
    assert "odd.png" in line
    assert "not enough memory for this sample: it needs" in line


# -- allocations that fail on the host --------------------------------------------------------------------------------


def test_any_allocation_on_the_host_may_fail(spec: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    _, compute = opened(spec, batch=2)
    whole = compute()
    empty = Reservation.empty

    def run_failing(failing: Failing) -> None:
        def failing_empty(self: Reservation, n: int, dtype: Any) -> Any:
            failing(n * np.dtype(dtype).itemsize)
            return empty(self, n, dtype)

        monkeypatch.setattr(Reservation, "empty", failing_empty)
        assert compute() == whole
        assert (FEWER in compute.fallbacks) <= (failing.count > 0)  # type: ignore[attr-defined]

    tried = [i for i, _ in points(run_failing, MemoryError)]
    assert len(tried) > 20


def test_samples_for_which_memory_never_suffices_are_rejected(spec: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    _, compute = opened(spec)
    whole = compute()
    empty = Reservation.empty

    def short(self: Reservation, n: int, dtype: Any) -> Any:
        if n * np.dtype(dtype).itemsize > 4000:
            raise MemoryError
        return empty(self, n, dtype)

    monkeypatch.setattr(Reservation, "empty", short)
    left = compute()
    assert 0 < len(left) < len(whole)
    assert set(left) < set(whole)
    assert compute.rejected == {"too_large": len(whole) - len(left)}  # type: ignore[attr-defined]
    with pytest.raises(JobError, match="MemoryError"):
        compute(policy="fail")


def test_want_of_memory_elsewhere_ends_the_run_in_words(spec: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def no_memory(*_: Any) -> Any:
        raise MemoryError

    with monkeypatch.context() as m:
        m.setattr(HostExecutor, "join_chunks", no_memory)
        result = run(spec)
    assert result.exit_code == FAILED
    assert "out of memory: an allocation failed; lower pipeline.batch_size" in result.message
    with monkeypatch.context() as m:
        m.setattr(Output, "add", no_memory)
        result = run(spec)
    assert result.exit_code == FAILED
    assert "out of memory while writing" in result.message
    assert run(spec).exit_code == CLEAN  # it continues


# -- allocations that fail on a device --------------------------------------------------------------------------------


def test_any_allocation_on_the_device_may_fail(spec: Path) -> None:
    _, compute = opened(spec, "null", batch=1)
    whole = compute()

    def run_failing(failing: Failing) -> None:
        assert compute(lanes_that(failing)) == whole
        if failing.count:
            assert set(compute.fallbacks) <= {on_device.AGAIN}  # type: ignore[attr-defined]

    tried = [i for i, _ in points(run_failing, OutOfMemoryError)]
    assert len(tried) > 60


@pytest.mark.parametrize("period", [2, 3])
def test_allocations_on_the_device_may_fail_again_and_again(spec: Path, period: int) -> None:
    _, compute = opened(spec, "null")
    whole = compute()
    failing = Failing(lambda number, _: number % period == 0, OutOfMemoryError, by_thread=True)
    assert compute(lanes_that(failing)) == whole
    assert on_device.HALVED in compute.fallbacks  # type: ignore[attr-defined]


@pytest.mark.parametrize(("room", "used"), [
    (20_000, {on_device.HALVED}),
    (6_000, {on_device.HALVED, on_device.CPU_DECODER, on_device.CPU_KERNELS}),
    (-1, {on_device.HALVED, on_device.CPU_DECODER, on_device.CPU_KERNELS}),
])  # fmt: skip
def test_another_process_holds_the_device(spec: Path, room: int, used: set[str]) -> None:
    """Whatever is larger than ``room`` fails, always: halves, and then the CPU, with the same result. What comes to the
    host needs no memory of the device."""
    _, compute = opened(spec, "null")
    whole = compute()

    class Full(NullLane):
        def empty(self, n: int, dtype: Any) -> Any:
            if n * np.dtype(dtype).itemsize > room:
                raise OutOfMemoryError
            return super().empty(n, dtype)

    class FullEngine(Engine):
        @staticmethod
        def open_lane(target: Target, index: int) -> Any:
            return Full(index)

    assert compute(FullEngine) == whole
    assert used <= set(compute.fallbacks)  # type: ignore[attr-defined]
    if room < 0:
        assert compute.fallbacks[on_device.CPU_KERNELS] == len(whole)  # type: ignore[attr-defined]


@pytest.mark.parametrize("args", [{}, {"reject_at": 5}, {"raise_at": 6}, {"retry_at": 4}])
def test_rejects_exceptions_and_retries_beside_want_of_memory(args: dict[str, int]) -> None:
    """A batch that is halved for memory loses and repeats the same samples as otherwise."""
    plan = compiled("null", **args)
    want = collect_on(Engine, plan)

    def compute(failing: Failing) -> None:
        found = collect_on(lanes_that(failing), plan)
        assert found == want

    assert len(list(points(compute, OutOfMemoryError))) >= 4


def collect_on(engine_type: type[Engine], plan: Plan, total: int = 12) -> dict[int, list[int]]:
    with engine_type(plan, CountingFeed(), requests(total, 4), Options(lanes=2)) as engine:
        return {
            i: z.tolist()
            for it in engine
            for z, i in zip(it.outputs(plan)["z"], it.samples.index.tolist(), strict=True)
        }


@pytest.mark.parametrize("period", [1, 2, 3])
def test_late_outputs_and_branches_beside_want_of_memory(period: int) -> None:
    b = GraphBuilder()
    (x,) = b.add("testing.numbers")
    (y,) = b.add("testing.late", [x], device="gpu")
    (z,) = b.add("testing.work", [y], {"retry_at": 4}, device="gpu")
    late = compile_graph(b.build({"x": x, "z": z}), Target("null"))
    for plan, total in ((late, 12), (branching("null"), 20)):
        want = collect_on(Engine, plan, total)
        failing = Failing(lambda number, _: number % period == 0, OutOfMemoryError, by_thread=True)
        with suppress(DeviceError):  # where every download fails, too
            assert collect_on(lanes_that(failing), plan, total) == want


def test_the_device_budget_cuts_batches(spec: Path) -> None:
    _, compute = opened(spec, "null")
    whole = compute()
    at_once: list[int] = []

    class Watched(NullLane):
        def empty(self, n: int, dtype: Any) -> Any:
            at_once.append(n * np.dtype(dtype).itemsize)
            return super().empty(n, dtype)

    class Watching(Engine):
        @staticmethod
        def open_lane(target: Target, index: int) -> Any:
            return Watched(index)

    assert compute(Watching) == whole
    widest = max(at_once)
    at_once.clear()
    assert compute(Watching, memory=Memory(gpu=60_000)) == whole
    assert max(at_once) < widest // 2
    at_once.clear()
    assert compute(Watching, memory=Memory(gpu=60_000), whole_batches=False) == whole
    assert max(at_once) < widest // 2


def test_what_counts_as_out_of_memory() -> None:
    class CUDARuntimeError(RuntimeError):
        pass

    assert errors.out_of_memory(OutOfMemoryError())
    assert errors.out_of_memory(CUDARuntimeError("cudaErrorMemoryAllocation: out of memory"))
    assert not errors.out_of_memory(CUDARuntimeError("cudaErrorIllegalAddress: an illegal memory access"))
    assert not errors.out_of_memory(MemoryError())


def test_edges_are_let_go_after_their_last_reader() -> None:
    """A chain holds two batches at a time, not all of them."""
    from dali_run.pipelines.engine.nodes.node_pass import NodePass
    from dali_run.pipelines.engine.nodes.run_nodes import run_nodes

    b = GraphBuilder()
    (x,) = b.add("testing.numbers")
    for _ in range(4):
        (x,) = b.add("testing.work", [x])
    plan = compile_graph(b.build({"x": x}), Target("cpu"))
    env: dict[Edge, Batch] = {}
    run_nodes(plan.graph.nodes, env, NodePass(Samples.numbered(3), {}), keep=[Edge(4)])
    assert list(env) == [Edge(4)]


def test_outputs_in_their_place_are_reserved_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A batch that was counted twice would leave no room for chunks to work side by side."""
    pixels = np.random.default_rng(0).integers(0, 256, (400, 400, 3), np.uint8)
    for i in range(12):
        Image.fromarray(pixels).save(tmp_path / f"{i}.jpg", quality=30)
    reserved: list[int] = []
    reserve = MemoryBudget.reserve

    def note(self: MemoryBudget, owner: tuple[int, ...], nbytes: int, *, wait: bool = True) -> None:
        reserved.append(nbytes)
        reserve(self, owner, nbytes, wait=wait)

    monkeypatch.setattr(MemoryBudget, "reserve", note)

    @pipeline_def(batch_size=12, num_threads=2, device_id=None)
    def decoded() -> Any:
        files, _ = fn.readers.file(file_root=str(tmp_path), files=[f"{i}.jpg" for i in range(12)])
        return fn.decoders.image(files)

    pipe = decoded()
    for _ in range(3):
        pipe.run()
    assert 12 * pixels.nbytes <= max(reserved) < 1.5 * 12 * pixels.nbytes
