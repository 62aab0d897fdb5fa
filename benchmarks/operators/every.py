"""Every operator that DALI also has, compared with it: the same calls in both libraries, in turns.

    python benchmarks/operators/every.py [--device gpu|cpu] [--batch 64,256] [--seconds 0.3] [--rounds 1] [--threads 2]

The calls are those of cases.py. Their inputs are in memory (on the GPU with --device gpu), one array per batch, and an
`external_source` feeds them repeatedly without a copy. Each library first tries the ways to do so, and uses the
fastest; cases named "source" measure that alone. Results stay where they are.

There is one process per library. A case is built, run until it is warm, and run for --seconds, in both in turns, with
`prefetch_queue_depth` (2) batches in flight. With --device gpu one library builds while the other runs. The best of
--rounds counts, and the least processor time; DALI's is the better of its two executors if --executors names both. A
row that cannot run prints the reason. Results are written as they come.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

sys.path.insert(0, str(Path(__file__).parents[2]))

from benchmarks.operators.cases import cases, made
from benchmarks.operators.sides import Child, answer_lines, timed

WAYS = ("fed", "called", "tensors")
"""Ways to feed a pipeline: once, for all batches; by a callable that returns an array; by a callable that returns a
TensorList."""

PROFILED = 3
"""Number of batches whose kernels are measured one by one."""


# -- the process of one library ---------------------------------------------------------------------------------------


class Side:
    """One library (dali-run or DALI), which makes pipelines of cases and runs them."""

    def __init__(self, options: argparse.Namespace) -> None:
        self.options = options
        if options.side == "dali_run":
            from dali_run import fn, math, pipeline_def, types
        else:
            from nvidia.dali import fn, math, pipeline_def, types
        warnings.filterwarnings("ignore")
        self.fn, self.types, self.pipeline_def = fn, types, pipeline_def
        self.cases = {c.name: c for c in cases(fn, types, math) if options.device in c.on}
        self._inputs: dict[tuple[str, int], tuple[list[Any], str]] = {}
        self._pipe: Any = None
        self._way = options.source or WAYS[0]

    def given(self, name: str, batch: int) -> tuple[Any, str]:
        """Return the samples of an input as one array, on the device from which the case takes them."""
        if (name, batch) not in self._inputs:
            distinct, layout = made(name)
            samples: Any = np.stack([distinct[i % len(distinct)] for i in range(batch)])
            if self.options.device == "gpu":
                import cupy

                samples = cupy.asarray(samples)
                cupy.cuda.Device().synchronize()
            if len(self._inputs) > (12 if self.options.device == "gpu" else 4):
                self._inputs.pop(next(iter(self._inputs)))
            self._inputs[name, batch] = samples, layout
        return self._inputs[name, batch]

    def fastest_source(self) -> dict[str, float]:
        """Measure each way to feed a cheap operator, and use the fastest from now on. Return the microseconds per batch
        of each."""
        taken = {}
        for self._way in WAYS:
            try:
                self.build("brightness: squares", 256, "usual")
                taken[self._way] = min(self.rate(256, 0.1)["batch_us"] for _ in range(2))
            except Exception:
                continue  # this library has no such way
        self._way = min(taken, key=lambda way: taken[way])
        return taken

    def build(self, name: str, batch: int, executor: str) -> dict[str, Any]:
        """Make the pipeline of a case and feed it."""
        self._pipe = None
        case = self.cases[name]
        device = self.options.device
        kinds = case.inputs.split()
        inputs = {f"in{k}": self.given(kind, batch) for k, kind in enumerate(kinds)}

        def pipe() -> Any:
            return case.call(*(self._source(key, *inputs[key]) for key in inputs))

        more = {} if executor == "usual" else {"exec_dynamic": executor == "dynamic"}
        made_ = self.pipeline_def(pipe)(
            batch_size=batch, num_threads=self.options.threads, seed=1, device_id=0 if device == "gpu" else None, **more
        )
        made_.build()
        for key, (samples, layout) in inputs.items():
            if self._way == "fed":
                made_.feed_input(key, samples, layout=layout)
        self._pipe = made_
        return {}

    def _source(self, key: str, samples: Any, layout: str) -> Any:
        how: dict[str, Any] = {"name": key, "device": self.options.device, "layout": layout, "no_copy": True}
        if self._way == "fed":
            return self.fn.external_source(**how, repeat_last=True)
        if self._way == "tensors":
            from nvidia.dali import tensors  # DALI's only: it need not be wrapped for every batch

            kind = tensors.TensorListGPU if self.options.device == "gpu" else tensors.TensorListCPU
            given = kind(samples, layout=layout)
            return self.fn.external_source(source=lambda: given, **how)
        return self.fn.external_source(source=lambda: samples, **how)

    def rate(self, batch: int, seconds: float) -> dict[str, float]:
        """Return the samples per second, and the microseconds of processor time (all threads) and wall time per
        batch."""
        found = timed(self._pipe, batch, seconds, self._wait)
        if self.options.profile:
            found["gpu_us"] = self._kernels(self._pipe)
        return found

    def _kernels(self, pipe: Any) -> float:
        """Return the microseconds that a batch's kernels and copies within the GPU take, one after the other."""
        from torch.autograd import DeviceType
        from torch.profiler import ProfilerActivity, profile

        self._wait(None)
        with profile(activities=[ProfilerActivity.CUDA]) as seen:
            for _ in range(PROFILED):
                out = pipe.run()
            self._wait(out)
        there = [e for e in seen.events() if e.device_type == DeviceType.CUDA and "HtoD" not in e.name]
        return float(sum(e.time_range.elapsed_us() for e in there)) / PROFILED

    def _wait(self, out: Any) -> None:
        if self.options.device == "gpu":
            import cupy

            cupy.cuda.Device().synchronize()


def serve(options: argparse.Namespace) -> int:
    """Answer the requests on standard input."""
    side = Side(options)

    def hello() -> dict[str, Any]:
        return {"cases": list(side.cases), "source": {} if options.source else side.fastest_source()}

    def answer(asked: dict[str, Any]) -> dict[str, Any]:
        return side.build(**asked) if asked.pop("do") == "build" else side.rate(**asked)

    return answer_lines(hello, answer)


# -- both in turns ----------------------------------------------------------------------------------------------------


def measure(
    ours: Child, theirs: Child, cases_: list[tuple[str, int]], options: argparse.Namespace
) -> Iterator[dict[str, Any]]:
    """Iterate over rows, one per case and batch."""
    beside = options.device == "gpu"  # one builds while the other runs, which would disturb on few cores
    turns = [
        (case, batch, side, executor)
        for case, batch in cases_
        for _ in range(options.rounds)
        for side, executor in (("dali_run", "usual"), *(("dali", e) for e in options.executors.split(",")))
    ]
    sides = {"dali_run": ours, "dali": theirs}
    row: dict[str, Any] = {}
    told: dict[int, bool] = {}

    def begin(k: int) -> None:
        case, batch, side, executor = turns[k]
        sides[side].tell(do="build", name=case, batch=batch, executor=executor)
        told[k] = True

    for k, (case, batch, side, executor) in enumerate(turns):
        if (case, batch) != (row.get("case"), row.get("batch")):
            if row:
                yield row
            row = {"case": case, "batch": batch}
        if k not in told:
            begin(k)
        found = sides[side].answer()
        if "error" not in found:
            if beside and k + 1 < len(turns) and turns[k + 1][2] != side:
                begin(k + 1)
            found = sides[side].ask(do="rate", batch=batch, seconds=options.seconds)
        elif beside and k + 1 < len(turns) and turns[k + 1][2] != side:
            begin(k + 1)
        if "error" in found:
            row.setdefault(f"{side}_error", found["error"])
            continue
        if "gpu_us" in found:
            row[f"{side}_kernels_us"] = min(found["gpu_us"], row.get(f"{side}_kernels_us", float("inf")))
        if found["rate"] > row.get(side, 0):
            row[side] = found["rate"]
            row[f"{side}_us"] = found["batch_us"]
            if side == "dali":
                row["executor"] = executor
        row[f"{side}_busy_us"] = min(row.get(f"{side}_busy_us", float("inf")), found["busy"])
    if row:
        yield row


def ratios(row: dict[str, Any]) -> None:
    """Add the ratios to DALI's rate and processor time to a row."""
    if "dali_run" in row and "dali" in row:
        row["ratio"] = row["dali_run"] / row["dali"]
        row["busy_ratio"] = row["dali_busy_us"] / max(row["dali_run_busy_us"], 1e-3)
        if row.get("dali_kernels_us") and row.get("dali_run_kernels_us"):
            row["kernel_ratio"] = row["dali_kernels_us"] / row["dali_run_kernels_us"]


def line(row: dict[str, Any]) -> str:
    text = f"{row['case']:<40} {row['batch']:>4}"
    for side in ("dali_run", "dali"):
        text += f" {row[f'{side}_us']:>9,.0f}" if side in row else f" {'-':>9}"
    for side in ("dali_run", "dali"):
        text += f" {row[f'{side}_busy_us']:>9,.0f}" if side in row else f" {'-':>9}"
    text += f" {row['ratio']:>7.2f}x {row['busy_ratio']:>7.2f}x" if "ratio" in row else f" {'':>16}"
    if "kernel_ratio" in row:
        text += f" {row['dali_run_kernels_us']:>8,.0f} {row['dali_kernels_us']:>8,.0f} {row['kernel_ratio']:>7.2f}x"
    for side in ("dali_run", "dali"):
        if f"{side}_error" in row:
            text += f"  {side}: {row[f'{side}_error'][:150]}"
    return text


HEAD = (
    f"{'case':<40} {'size':>4} {'us/batch':>9} {'DALI':>9} {'us busy':>9} {'DALI':>9} {'rate':>8} {'busy':>8}"
    "  kernels     DALI"
)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", choices=("gpu", "cpu"), default="cpu")
    parser.add_argument("--batch", default="64")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--seconds", type=float, default=0.3)
    parser.add_argument("--rounds", type=int, default=1)
    parser.add_argument("--executors", default="dynamic", help="DALI's: dynamic,pipelined tries both")
    parser.add_argument("--cases", default="", help="words: cases whose names hold one, and none with a - before it")
    parser.add_argument("--warm", type=int, default=0, help="compile beforehand, in so many processes")
    parser.add_argument("--profile", action="store_true", help="the kernels' own times, too (needs torch)")
    parser.add_argument("--stop", type=float, default=0, help="seconds after which no further case begins")
    parser.add_argument("--dali-path", help="folder that `import nvidia.dali` works from")
    parser.add_argument("--dali-python", default=sys.executable)
    parser.add_argument("--json", type=Path)
    parser.add_argument(
        "--source", default="", choices=("", *WAYS), help="how pipelines are fed; by default as is fastest"
    )
    parser.add_argument("--side", default="", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.side:
        return serve(options)
    begin = time.perf_counter()
    common = ["--device", options.device, "--threads", str(options.threads), "--source", options.source]
    common += ["--profile"] if options.profile else []
    if options.warm:
        warm(options, common)
        print(f"compiled in {time.perf_counter() - begin:.1f} s", flush=True)
    ours = Child(sys.executable, __file__, ["--side", "dali_run", *common])
    theirs = Child(options.dali_python, __file__, ["--side", "dali", *common], options.dali_path)
    words = [w for w in options.cases.split(",") if not w.startswith("-")] or [""]
    without = [w[1:] for w in options.cases.split(",") if w.startswith("-")]
    batches = [int(b) for b in options.batch.split(",")]
    chosen = [
        (c, b)
        for b in batches
        for c in ours.hello["cases"]
        if any(w in c for w in words) and not any(w in c for w in without)
    ]
    rows: list[dict[str, Any]] = []
    setting = {k: getattr(options, k) for k in ("device", "threads", "seconds", "rounds", "executors")}
    ways = {name: side.hello["source"] for name, side in (("dali_run", ours), ("dali", theirs))}
    print(f"us a batch of 256 pictures of 256 x 256 made brighter, by source: {ways}\n{HEAD}")
    for row in measure(ours, theirs, chosen, options):
        ratios(row)
        rows.append(row)
        print(line(row), flush=True)
        if options.json:
            options.json.write_text(json.dumps({"setting": setting, "sources": ways, "rows": rows}, indent=1))
        if options.stop and time.perf_counter() - begin > options.stop:
            print(f"stopped after {options.stop:g} s: {len(rows)} of {len(chosen)} cases")
            break
    else:
        ours.close()
        theirs.close()
    compared = sorted((r for r in rows if "ratio" in r), key=lambda r: float(r["ratio"]))
    by_kernels = sorted((r for r in rows if "kernel_ratio" in r), key=lambda r: float(r["kernel_ratio"]))
    if by_kernels:
        print("\nby the kernels' own times")
    for row in by_kernels:
        print(line(row))
    print(f"\nby ratio, in {time.perf_counter() - begin:.0f} s\n{HEAD}")
    for row in compared:
        print(line(row))
    for floor in (5, 2, 1, 0):
        print(f"at least {floor}x: {sum(r['ratio'] >= floor for r in compared)} of {len(compared)}")
    os._exit(0)  # children that still run end when their pipes close


def warm(options: argparse.Namespace, common: list[str]) -> None:
    """Run every case for a few batches of 8, in several processes, so that loops and kernels are compiled."""
    common = [*(c for c in common if c != "--profile"), "--source", "fed"]
    children = [Child(sys.executable, __file__, ["--side", "dali_run", *common]) for _ in range(options.warm)]
    names = children[0].hello["cases"]
    from concurrent.futures import ThreadPoolExecutor

    def go(k: int) -> None:
        for name in names[k :: options.warm]:
            if "error" not in children[k].ask(do="build", name=name, batch=8, executor="usual"):
                children[k].ask(do="rate", batch=8, seconds=0.01)
        children[k].close()

    with ThreadPoolExecutor(options.warm) as pool:
        list(pool.map(go, range(options.warm)))


if __name__ == "__main__":
    sys.exit(main())
