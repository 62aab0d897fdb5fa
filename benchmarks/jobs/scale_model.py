"""From one measured node to a thousand: costs of planning, driving and joining for a billion samples and more.

    python benchmarks/jobs/scale_model.py PART [...]

    memory           resident memory of planning, 1e7 to 1e9 records
    index --most 8   memory of opening a real TFRecord file of N records, by scanning it, and by its cached index
    join             time, memory and bytes of one output made of parts, by shards
    drive            the real driver with simulated workers: stragglers, lost nodes
    table            duration of a job, according to the model of `dali-run plan`

`memory` and `join` run the program's own code on artificial records and journals, each in a separate process. `drive`
runs the real driver (`pipelines/fleet/driver.py`) on a simulated clock: its messages are real, its workers' time is
not, so its processor time is measured and the job's time simulated.
"""

from __future__ import annotations

import argparse
import heapq
import json
import math
import multiprocessing
import random
import resource
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from dali_run.ops.batch import NoOrigins
from dali_run.pipelines.fleet import driver as fleet
from dali_run.pipelines.fleet.cost_model import forecast
from dali_run.pipelines.fleet.job_output import Part, parts_for, tapered
from dali_run.readers.order import Order
from dali_run.writers.shards.journal import VERSION, encode_journal
from dali_run.writers.shards.manifest import OutputFiles
from dali_run.writers.shards.merge import join
from dali_run.writers.shards.rejects import RejectLimit


def resident() -> int:
    """Return the resident bytes of this process."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * resource.getpagesize()


def apart(work: Callable[..., dict[str, Any]], *arguments: Any) -> dict[str, Any]:
    """Run ``work`` in a separate process, so that its peak of memory is its own. Return its result."""
    context = multiprocessing.get_context("spawn")
    with context.Pool(1) as pool:
        return pool.apply(work, arguments)


# -- memory -----------------------------------------------------------------------------------------------------------


def planned(records: int, shuffle: str, device: str) -> dict[str, Any]:
    """Measure memory and time of the order of ``records`` records, and of the driver's division into parts."""
    before = resident()
    began = time.process_time()
    job = Order(records, shuffle=shuffle, shuffled_list=shuffle == "window").job()  # type: ignore[arg-type]
    low = records // 2
    picked = job.samples(low, 1024, NoOrigins()).index
    assert len(picked) == 1024
    order, order_seconds = resident() - before, time.process_time() - began
    began, before = time.process_time(), resident()
    n = parts_for(records, 10_000, 64, device)
    parts = [Part(i, records * i // n, records * (i + 1) // n, records // n) for i in range(n)]
    return {
        "records": records, "shuffle": shuffle, "order_bytes": order, "order_seconds": order_seconds,
        "peak_bytes": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024, "parts": len(parts),
        "driver_bytes": resident() - before, "driver_seconds": time.process_time() - began,
    }  # fmt: skip


def memory(most: int) -> list[dict[str, Any]]:
    rows = []
    for exponent in range(7, most + 1):
        for shuffle in ("none", "window", "full"):
            if shuffle == "none" or exponent <= 7:
                rows.append(apart(planned, 10**exponent, shuffle, "cpu"))
                print(json.dumps(rows[-1]), flush=True)
    return rows


# -- index ------------------------------------------------------------------------------------------------------------


def opened(path: str, records: int) -> dict[str, Any]:
    """Measure memory and time of opening the data set at ``path``, and of a batch in its middle."""
    from dali_run.readers.tfrecord import TFRecord
    from dali_run.readers.tfrecord_cpu import walk

    few = np.frombuffer(tiny(4), np.uint8).copy()
    walk(few, 0, len(few), len(few), True, *(np.empty(8, t) for t in (np.int64, np.int64, np.int32)))  # compiles
    before, began = resident(), time.process_time()
    source = TFRecord(path=path).open()
    found = {"records": len(source), "seconds": time.process_time() - began}
    assert len(source) == records
    assert source.origin(records // 2).record == records // 2
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024 - before
    own = sum(int(line.split()[1]) << 10 for line in Path("/proc/self/status").read_text().splitlines()
              if line.startswith("RssAnon"))  # fmt: skip
    return {**found, "peak_bytes": peak, "own_bytes": own}


def tiny(records: int) -> bytes:
    """Return ``records`` TFRecords of one byte each, as the bytes of a file."""
    from dali_run.ops.storage.crc32c_cpu import masked_crc32c

    def crc(data: bytes) -> bytes:
        return int(masked_crc32c(np.frombuffer(bytearray(data), np.uint8), 0, len(data))).to_bytes(4, "little")

    length = (1).to_bytes(8, "little")
    return (length + crc(length) + b"x" + crc(b"x")) * records


def index(most: int, folder: Path | None) -> list[dict[str, Any]]:
    rows = []
    for exponent in range(6, most + 1):
        with tempfile.TemporaryDirectory(dir=folder) as name:
            path = Path(name, "tiny.tfrecord")
            with path.open("wb") as file:
                for _ in range(10):
                    block = tiny(10 ** (exponent - 1))
                    file.write(block)
            for way in ("walked", "from the index on disk"):
                rows.append({"way": way, **apart(opened, str(path), 10**exponent)})
                print(json.dumps(rows[-1]), flush=True)
    return rows


# -- joining ----------------------------------------------------------------------------------------------------------


def entry(k: int, samples: int) -> dict[str, Any]:
    """Return a line of the journal (list of finished shards) for a TFRecord shard."""
    name = f"imagenet-{k:07d}-of-1000000"
    files = [{"name": name + s, "bytes": 1 << 30, "crc32c": f"{k % 2**32:08x}", "tree": f"{k:064x}"}
             for s in (".tfrecord", ".idx")]  # fmt: skip
    return {"shard": name, "positions": [k * samples, (k + 1) * samples], "samples": samples, "rejects": 0,
            "first_key": f"train/{k:07d}/00000000.jpg", "last_key": f"train/{k:07d}/00009999.jpg", "files": files,
            "rejects_size": 0, "carry": {}}  # fmt: skip


def joined(shards: int, parts: int) -> dict[str, Any]:
    """Join the journals of ``parts`` job parts, with ``shards`` shards in total, into one output, and measure it."""
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder)
        write = {"name": "imagenet", "writer": "tfrecord", "options": {}, "shard": {"samples": 10_000, "bytes": None}}
        written = 0
        for i in range(parts):
            files = OutputFiles(root, (i, parts))
            low, high = shards * i // parts, shards * (i + 1) // parts
            header = {"identity": {}, "write": write, "range": [low * 10_000, high * 10_000],
                      "whole": shards * 10_000, "part": [i, parts]}  # fmt: skip
            lines = b"".join(
                encode_journal(header, (entry(k, 10_000) for k in range(low, high)), high * 10_000, VERSION)
            )
            written += len(lines)
            files.journal.write_bytes(lines)
            files.rejects.write_bytes(b"")
        before, began = resident(), time.process_time()
        join(OutputFiles(root), {})
        return {
            "shards": shards, "parts": parts, "cpu_seconds": time.process_time() - began,
            "peak_bytes": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024 - before,
            "journal_bytes_per_shard": written / shards,
            "manifest_bytes_per_shard": (root / "manifest.json").stat().st_size / shards,
        }  # fmt: skip


def joining(most: int) -> list[dict[str, Any]]:
    rows = []
    for exponent in range(3, most + 1):
        rows.append(apart(joined, 10**exponent, min(10**exponent // 10, 10_000)))
        print(json.dumps(rows[-1]), flush=True)
    return rows


# -- driving ----------------------------------------------------------------------------------------------------------


class Clock:
    """Clock with simulated seconds, which replaces the module `time` in the driver."""

    def __init__(self) -> None:
        self.now = 0.0

    def monotonic(self) -> float:
        return self.now

    perf_counter = monotonic


class Simulated:
    """A worker whose time is simulated."""

    def __init__(self, number: int, node: int, rate: float) -> None:
        self.name, self.node, self.rate = f"worker {number}", f"node {node}", rate
        self.queue: list[tuple[int, int]] = []
        self.alive = True


class Cluster:
    """The workers of a simulated cluster. Nodes differ in speed; some are lost, and come back after a while."""

    def __init__(
        self, clock: Clock, nodes: int, each: int, rate: float, whole: JobOutput, *, spread: float,
        hours_to_loss: float,
        away: float, seed: int,
    ) -> None:  # fmt: skip
        self.clock, self.whole, self.each, self.rate, self.away = clock, whole, each, rate, away
        self.rng = random.Random(seed)
        self.speeds = [math.exp(self.rng.gauss(0, spread)) for _ in range(nodes)]
        self.mean_to_loss = hours_to_loss * 3600
        self.events: list[tuple[float, int, str, Any]] = []
        self.count = self.lost = self.messages = 0
        self.workers: dict[int, list[Simulated]] = {}
        for node in range(nodes):
            self.arrive(node)

    def at(self, seconds: float, kind: str, what: Any) -> None:
        self.count += 1
        heapq.heappush(self.events, (self.clock.now + seconds, self.count, kind, what))

    def arrive(self, node: int) -> None:
        self.workers[node] = []
        for _ in range(self.each):
            worker = Simulated(self.count, node, self.rate * self.speeds[node])
            self.workers[node].append(worker)
            self.at(5 + self.rng.random(), "opened", worker)
        if self.mean_to_loss:
            self.at(self.rng.expovariate(1 / self.mean_to_loss), "lost", node)

    def room(self) -> int:
        return max(1, sum(map(len, self.workers.values())))  # lost workers may come back

    def fill(self, wanted: int) -> None:
        """Do nothing: workers start by themselves."""

    def stop(self) -> None:
        """Do nothing: there is no worker to stop."""

    def give(self, worker: Simulated, order: dict[str, Any]) -> None:
        if "part" in order:
            worker.queue.append(tuple(order["part"]))
            if len(worker.queue) == 1:
                self.begin(worker)

    def begin(self, worker: Simulated) -> None:
        i, _ = worker.queue[0]
        left = self.whole.left[i]
        jitter = math.exp(self.rng.gauss(0, 0.05))
        self.at(0.1 + left / worker.rate * jitter, "ended", (worker, i, left, self.clock.now, jitter))

    def poll(self, seconds: float) -> Sequence[tuple[Simulated, dict[str, Any]]]:
        end = self.clock.now + seconds
        if not self.events or self.events[0][0] > end:
            self.clock.now = end
            return []
        heard: list[tuple[Simulated, dict[str, Any]]] = []
        now = self.events[0][0]
        while self.events and self.events[0][0] <= now + 0.01:
            self.clock.now, _, kind, what = heapq.heappop(self.events)
            heard += getattr(self, f"on_{kind}")(what)
        self.messages += len(heard)
        return heard

    def on_opened(self, worker: Simulated) -> list[Any]:
        who = {"opened": [0, self.whole.samples], "who": {}, "process": {}}
        return [(worker, who)] if worker.alive else []

    def on_ended(self, what: Any) -> list[Any]:
        worker, i, left, _, _ = what
        if not worker.alive:
            return []
        worker.queue.pop(0)
        if worker.queue:
            self.begin(worker)
        self.whole.left[i] = 0
        told = {"ended": i, "code": 0, "text": "", "written": left, "rejected": 0, "report": {}}
        return [(worker, told)]

    def on_lost(self, node: int) -> list[Any]:
        """Keep the completed shards of a lost worker, as the journals do."""
        gone = []
        self.lost += 1
        running = {id(w): (i, t0, left, j) for _, _, kind, x in self.events if kind == "ended"
                   for (w, i, left, t0, j) in [x] if w in self.workers[node]}  # fmt: skip
        for worker in self.workers[node]:
            worker.alive = False
            if id(worker) in running:
                i, t0, left, jitter = running[id(worker)]
                done = int((self.clock.now - t0) * worker.rate / jitter) // self.whole.shard * self.whole.shard
                self.whole.left[i] = max(0, left - done)
            gone.append((worker, {"gone": "was lost"}))
        self.workers[node] = []
        self.at(self.away, "back", node)
        return gone

    def on_back(self, node: int) -> list[Any]:
        self.arrive(node)
        return []


class JobOutput:
    """The output of a simulated job. It only has the remaining samples of each part."""

    def __init__(self, samples: int, shard: int) -> None:
        self.samples, self.shard = samples, shard
        self.left: list[int] = []

        class config:  # noqa: N801
            where = "nowhere"

        self.config = config

    def check(self) -> None:
        """Do nothing: no other job writes here."""

    def parts(self, span: range, who: Any, workers: int, device: str) -> list[Part]:
        n = parts_for(len(span), self.shard, workers, device)
        borders = [min(b * self.shard, len(span)) for b in tapered(-(-len(span) // self.shard), n, device)]
        self.left = np.diff(borders).tolist()
        return [Part(i, borders[i], borders[i + 1], self.left[i]) for i in range(n)]


def driven(
    samples: int, shard: int, nodes: int, each: int, rate: float, spread: float, hours: float,
    device: str = "cpu",
) -> dict[str, Any]:  # fmt: skip
    """Run a job on a simulated cluster with the real driver."""
    clock = Clock()
    fleet.time = clock  # type: ignore[assignment]
    whole = JobOutput(samples, shard)
    cluster = Cluster(clock, nodes, each, rate, whole, spread=spread, hours_to_loss=hours, away=300, seed=1)
    run = fleet.Driver(whole, cluster, RejectLimit(), device, lambda _: None, lambda _: None)  # type: ignore[arg-type]
    began = time.process_time()
    code, text = run.run()
    cpu = time.process_time() - began
    ideal = samples / (rate * each * sum(cluster.speeds))
    return {
        "samples": samples, "nodes": nodes, "workers": nodes * each, "parts": len(run.parts),
        "code": code, "text": text,
        "simulated_seconds": clock.now, "linear": ideal / clock.now, "nodes_lost": cluster.lost,
        "messages": cluster.messages, "driver_us_per_message": cpu / max(1, cluster.messages) * 1e6,
        "driver_share": cpu / clock.now, "driver_bytes": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024,
    }  # fmt: skip


def driving(rate: float) -> list[dict[str, Any]]:
    rows = []
    for nodes in (1, 10, 100, 1000):
        for hours in (0.0, 24.0):
            samples = 10**7 * nodes
            rows.append(apart(driven, samples, 10_000, nodes, 8, rate, 0.1, hours))
            print(json.dumps(rows[-1]), flush=True)
    return rows


# -- the table --------------------------------------------------------------------------------------------------------


def table(rate: float) -> list[dict[str, Any]]:
    rows = []
    for samples in (10**6, 10**8, 10**9, 10**10):
        for nodes in (1, 8, 100, 1000):
            f = forecast(samples, rate, 10_000, nodes * 8, "cpu", written_bytes=20_000, read_bytes=110_000)
            rows.append({"samples": samples, "nodes": nodes, "parts": f.parts, "seconds": f.seconds,
                         "efficiency": f.efficiency, "read_GB_s": (f.read_per_second or 0) / 1e9,
                         "index_GB": f.index_bytes / 1e9, "manifest_MB": f.manifest_bytes / 1e6})  # fmt: skip
            print(json.dumps({k: round(v, 3) for k, v in rows[-1].items()}), flush=True)
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=("memory", "index", "join", "drive", "table"))
    parser.add_argument("--most", type=int, default=0, help="largest power of ten")
    parser.add_argument("--rate", type=float, default=3000, help="samples a second of a worker")
    parser.add_argument("--folder", type=Path, help="where `index` writes its files")
    parser.add_argument("--out", type=Path, help="write the rows as JSON")
    given = parser.parse_args()
    rows = {"memory": lambda: memory(given.most or 9), "index": lambda: index(given.most or 8, given.folder),
            "join": lambda: joining(given.most or 5),
            "drive": lambda: driving(given.rate), "table": lambda: table(given.rate)}[given.what]()  # fmt: skip
    if given.out:
        given.out.write_text(json.dumps(rows, indent=1) + "\n")


if __name__ == "__main__":
    main()
