"""How fast shards are written, by the bytes that may wait for it, where each file takes only so much.

    python benchmarks/data/write_queue.py [--file-rate 2.5] [--shard 260] [--batch 26] [--waiting 128,256,512,1024,2048]

The writers' own line of work, with waiting in place of writing: a file takes --file-rate GB/s (the system lets one
thread at a time write to a file), shards of --shard MB come in batches of --batch MB as fast as there is room for them.
Nothing is written, so the figures depend neither on the disk nor on how busy the machine is.
"""

from __future__ import annotations

import argparse
import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[2]))

from dali_run.writers.bytes.background import WRITERS, Line


def rate(waiting: int, file_rate: float, shard: int, batch: int, shards: int) -> float:
    """GB/s of ``shards`` shards."""
    line = Line("write", waiting, WRITERS)
    began = time.perf_counter()
    for _ in range(shards):
        lane = line.shortest()
        for at in range(0, shard, batch):
            n = min(batch, shard - at)
            line.put(lambda n=n: time.sleep(n / file_rate), n, lane)  # type: ignore[misc]
    line.wait()
    taken = time.perf_counter() - began
    line.close()
    return shards * shard / taken / 1e9


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--file-rate", type=float, default=2.5)
    parser.add_argument("--shard", type=int, default=260)
    parser.add_argument("--batch", type=int, default=26)
    parser.add_argument("--shards", type=int, default=40)
    parser.add_argument("--waiting", default="128,256,512,1024,2048", help="MiB")
    args = parser.parse_args()
    for waiting in map(int, args.waiting.split(",")):
        found = rate(waiting << 20, args.file_rate * 1e9, args.shard * 10**6, args.batch * 10**6, args.shards)
        print(f"{waiting:6} MiB   {found:5.2f} GB/s")


if __name__ == "__main__":
    main()
