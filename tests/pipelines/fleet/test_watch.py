"""The state of many workers: now, and over time, on a made-up clock."""

from __future__ import annotations

from dali_run.pipelines.fleet.watch import MAX_LINES, MAX_ROWS, ProgressLog, WorkerProgress


def watched(seconds: float, workers: int, nodes: int = 1, step: float = 0.1, rate: float = 100.0) -> ProgressLog:
    """Worker k reads (k + 1) times ``rate`` a second."""
    watch = ProgressLog()
    for k in range(round(seconds / step) + 1):
        at = k * step
        found = [
            WorkerProgress(f"worker {w}", f"node {w % nodes}", int(at * rate * (w + 1)), w, w, 0)
            for w in range(workers)
        ]
        if watch.due(at, workers):
            watch.record(at, sum(s.samples for s in found), sum(s.rejected for s in found), found)
    return watch


def test_rates_of_each_and_of_all() -> None:
    now = watched(20, 3).now()
    assert [w["name"] for w in now["workers"]] == ["worker 0", "worker 1", "worker 2"]
    for k, w in enumerate(now["workers"]):
        assert abs(w["samples_per_second"] - 100 * (k + 1)) < 2
        assert (w["part"], w["rejected"]) == (k, k)
    assert abs(now["samples_per_second"] - 600) < 5
    assert abs(now["done"] - 12_000) < 400
    assert now["nodes"] == 1
    assert len(now["recent_samples_per_second"]) > 10


def test_long_runs_have_no_more_rows_than_short_ones() -> None:
    for seconds in (3.0, 60.0, 3000.0):
        found = watched(seconds, 2).over_time()
        n = len(found["seconds"])
        assert 20 <= n <= MAX_ROWS + 1
        assert found["seconds"][-1] >= seconds - 1
        assert found["seconds"] == sorted(found["seconds"])
        assert set(map(len, (found["samples"], found["rejected"], *found["workers"].values()))) == {n}
        assert [sum(x) for x in zip(*found["workers"].values(), strict=True)] == found["samples"]


def test_of_many_workers_machines_are_drawn() -> None:
    found = watched(5, MAX_LINES + 1, nodes=4).over_time()
    assert sorted(found["workers"]) == [f"node {k}" for k in range(4)]
    assert sum(x[-1] for x in found["workers"].values()) == found["samples"][-1]


def test_looking_takes_a_share_of_time_that_does_not_grow() -> None:
    watch = ProgressLog()
    looks = 0
    for k in range(1000):  # 100 seconds
        if watch.due(k * 0.1, 8000):
            looks += 1
            watch.record(k * 0.1, 0, 0, [])
    assert 10 <= looks <= 14


def test_a_worker_that_came_later_has_nothing_before() -> None:
    watch = ProgressLog()
    first, later = WorkerProgress("a", "n", 50, 0, 1, 2), WorkerProgress("b", "m", 5, 1, 2, 0)
    watch.record(0.0, 0, 0, [])
    watch.record(1.0, 50, 0, [first])
    watch.record(2.0, 55, 1, [first, later])
    found = watch.over_time()
    assert found["workers"] == {"a on n": [0, 50, 50], "b on m": [0, 0, 5]}
    assert ProgressLog().over_time() == ProgressLog().now() == {}
