"""Channels and the pool: what threads hand each other."""

from __future__ import annotations

import subprocess
import sys
import threading
import weakref

import pytest

from dali_run.pipelines.engine.threads.channel import Channel, Closed
from dali_run.pipelines.engine.threads.workers import Pool


def test_items_come_in_order_and_no_more_than_fit() -> None:
    channel: Channel[int] = Channel("numbers", 2)
    put: list[int] = []

    def produce() -> None:
        for k in range(100):
            channel.put(k)
            put.append(k)
        channel.close()

    producer = threading.Thread(target=produce)
    producer.start()
    found = []
    while True:
        try:
            found.append(channel.get())
        except Closed:
            break
        assert len(put) <= len(found) + 3  # two in the channel, one just taken
    producer.join()
    assert found == list(range(100))
    assert channel.passed == 100
    with pytest.raises(Closed):
        channel.get()


def test_what_is_in_a_closed_channel_can_be_taken() -> None:
    channel: Channel[int] = Channel("numbers", 2)
    channel.put(1)
    channel.close()
    assert channel.get() == 1
    for _ in range(2):
        with pytest.raises(Closed):
            channel.get()


def test_stop_wakes_everybody_and_forgets_the_items() -> None:
    class Thing:
        pass

    full, empty = Channel[object]("full", 1), Channel[object]("empty", 1)
    thing = Thing()
    gone = weakref.ref(thing)
    full.put(thing)
    del thing
    ended = []

    def wait(what: str) -> None:
        with pytest.raises(Closed):
            full.put(None) if what == "put" else empty.get()
        ended.append(what)

    threads = [threading.Thread(target=wait, args=(w,)) for w in ("put", "put", "get", "get")]
    for t in threads:
        t.start()
    full.stop()
    empty.stop()
    for t in threads:
        t.join(timeout=60)
    assert sorted(ended) == ["get", "get", "put", "put"]
    assert gone() is None
    with pytest.raises(Closed):
        full.get()


def test_pool_does_what_it_was_given_in_order() -> None:
    pool = Pool(1, "one")
    done: list[int] = []
    for k in range(50):
        pool.do(done.append, k)
    pool.shutdown()
    assert done == list(range(50))
    with pytest.raises(RuntimeError, match="no more work"):
        pool.do(done.append, 0)


def test_a_pool_without_work_has_no_threads() -> None:
    before = set(threading.enumerate())
    Pool(4, "idle").shutdown()
    assert set(threading.enumerate()) <= before


def test_the_interpreter_ends_with_a_pool_at_work() -> None:
    program = (
        "import time\nfrom dali_run.pipelines.engine.threads.workers import Pool\npool = Pool(2, 'x')\n"
        "for _ in range(1000): pool.do(time.sleep, 0.02)\nprint('end')"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (0, "end\n", "")


def test_a_pool_whose_threads_cannot_be_started_takes_no_work_until_they_can(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nobody would do it, and whoever waits for its end would wait for ever."""
    start, fails = threading.Thread.start, [True, True]

    def start_or_fail(self: threading.Thread) -> None:
        if self.name == "few_1" and fails and fails.pop():
            raise RuntimeError("can't start new thread")
        start(self)

    monkeypatch.setattr(threading.Thread, "start", start_or_fail)
    pool, done = Pool(3, "few"), list[int]()
    for k in range(2):
        with pytest.raises(RuntimeError, match="can't start"):
            pool.do(done.append, k)
    pool.do(done.append, 2)
    pool.shutdown()
    assert done == [2]
    assert not any(t.name.startswith("few") for t in threading.enumerate())
