"""How fast records come out of a file in the page cache onto a GPU, and what it costs other kernels.

    python benchmarks/data/gather.py [--records 512] [--bytes 104000] [--rounds 30] [--json out.json]

A file is written, mapped and registered. Then, on one stream, in turns and GB/s of payload (medians):

    pinned      one copy of as many bytes out of page-locked memory: what the bus gives
    runs        a copy for every record (records in a row, and scattered)
    gather N    the gather kernel with N blocks of 256 threads (likewise)

`beside` is what is left of the speed of a kernel that keeps all of the GPU busy, while another stream gathers.
"""

from __future__ import annotations

import argparse
import json
import mmap
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

sys.path.insert(0, str(Path(__file__).parents[2]))

from dali_run.ops.batch import Batch, Samples
from dali_run.ops.gpu import readable_by_gpu as leases
from dali_run.ops.gpu.lane import Lane, pinned_empty
from dali_run.ops.gpu.readable_by_gpu import RegisteredLease, gathered
from dali_run.ops.gpu.registered import register, unregister, why_not

BLOCKS = (16, 32, 64, 128, 264)
BUSY = """
extern "C" __global__ void busy(float* out, int n) {
    float x = threadIdx.x, y = blockIdx.x;
    for (int i = 0; i < n; i++) { x = x * 1.0001f + y; y = y * 0.9999f - x; }
    if (x == y) out[0] = x;
}
"""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--records", type=int, default=512)
    parser.add_argument("--bytes", type=int, default=104_000, help="mean size of a record")
    parser.add_argument("--rounds", type=int, default=30)
    parser.add_argument("--gigabytes", type=float, default=2, help="size of the file")
    parser.add_argument("--json", type=Path)
    args = parser.parse_args()
    if reason := why_not([0]):
        sys.exit(reason)
    rng = np.random.default_rng(0)
    nbytes = int(args.gigabytes * 2**30) // mmap.PAGESIZE * mmap.PAGESIZE
    with tempfile.NamedTemporaryFile() as file:
        block = rng.integers(0, 256, 64 << 20, np.uint8).tobytes()
        for at in range(0, nbytes, len(block)):
            file.write(block[: nbytes - at])
        file.flush()
        mapping = mmap.mmap(file.fileno(), nbytes, mmap.MAP_SHARED, mmap.PROT_READ)
    data = np.frombuffer(mapping, np.uint8)
    lane = Lane()
    began = time.perf_counter()
    register(data.ctypes.data, nbytes, 0)
    print(f"registering {nbytes / 1e9:.2f} GB took {1e3 * (time.perf_counter() - began):.0f} ms")
    try:
        found = measure(lane, data, args)
    finally:
        lane.synchronize()
        began = time.perf_counter()
        unregister(data.ctypes.data, 0)
        print(f"giving it back took {1e3 * (time.perf_counter() - began):.0f} ms")
    if args.json:
        args.json.write_text(json.dumps(found, indent=1))


def measure(lane: Lane, data: np.ndarray, args: argparse.Namespace) -> dict[str, float]:
    import cupy

    rng = np.random.default_rng(1)
    sizes = rng.integers(args.bytes // 2, args.bytes * 3 // 2, args.records)
    in_a_row = np.cumsum(sizes + 57) - sizes
    batches = {
        name: Batch(RegisteredLease(data, 0).array(), starts, sizes.astype(np.int32).reshape(-1, 1), "",
                    Samples.numbered(len(sizes)))
        for name, starts in (("in a row", in_a_row), ("scattered", rng.integers(0, len(data) - sizes)))
    }  # fmt: skip
    at, total = gathered(batches["scattered"])
    payload, runtime = int(sizes.sum()), cupy.cuda.runtime
    pinned, out = pinned_empty(total), cupy.empty(total, np.uint8)

    def copy() -> None:
        lane.copy_in(out.data.ptr, pinned)

    def runs(batch: Batch) -> Callable[[], None]:
        rows = np.stack([out.data.ptr + at, batch.offsets + data.ctypes.data, sizes], 1).tolist()

        def each() -> None:
            for to, source, size in rows:
                runtime.memcpyAsync(to, source, size, runtime.memcpyHostToDevice, lane.stream.ptr)

        return each

    def gather(batch: Batch, blocks: int) -> Callable[[], None]:
        def launch() -> None:
            leases._BLOCKS = blocks
            lane.to_device(batch)

        return launch

    ways: dict[str, Callable[[], None]] = {"pinned": copy}
    for name, batch in batches.items():
        ways[f"runs, {name}"] = runs(batch)
        for blocks in BLOCKS:
            ways[f"gather {blocks}, {name}"] = gather(batch, blocks)
    taken: dict[str, list[float]] = {name: [] for name in ways}
    with lane:
        for _ in range(args.rounds):
            for name, way in ways.items():
                taken[name].append(timed(lane, way))
    found = {name: payload / statistics.median(t) / 1e9 for name, t in taken.items()}
    slowed = beside(lane, {n: w for n, w in ways.items() if "scattered" in n or n == "pinned"})
    print(f"{args.records} records, {payload / 1e6:.1f} MB\n{'':28}{'GB/s':>8}{'beside':>10}")
    for name, rate in found.items():
        print(f"{name:28}{rate:8.1f}" + (f"{slowed[name]:10.1%}" if name in slowed else ""))
    return found | {f"beside {name}": share for name, share in slowed.items()}


def timed(lane: Lane, work: Callable[[], None]) -> float:
    lane.synchronize()
    begin = lane.mark()
    work()
    end = lane.mark()
    lane.synchronize()
    return lane.seconds_since(begin, end)


def beside(lane: Lane, ways: dict[str, Callable[[], None]]) -> dict[str, float]:
    """The part of a busy kernel's speed that is left while each way runs over and over on another stream."""
    import cupy

    other = Lane()
    kernel: Any = cupy.RawKernel(BUSY, "busy")
    out = cupy.empty(1, np.float32)

    def busy() -> None:
        kernel((132 * 8 * 4,), (256,), (out, np.int32(40_000)), stream=other.stream)

    with other:
        alone = statistics.median(timed(other, busy) for _ in range(5))
    found = {}
    for name, way in ways.items():
        shares = []
        for _ in range(3):
            with lane:
                for _ in range(24):
                    way()
            with other:
                shares.append(alone / timed(other, busy))
            lane.synchronize()
        found[name] = statistics.median(shares)
    return found


if __name__ == "__main__":
    main()
