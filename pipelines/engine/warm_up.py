"""Compile the host's kernels before the clock starts, by running the plan on very few samples.

The first run on a machine compiles for seconds (Numba caches the result on disk). Without a warm-up this time would be
attributed to the first operator, and every worker would wait for it; or to the writer, and the report would blame the
storage. Called by jobs, `dali-run warm` and benchmarks.
"""

from __future__ import annotations

import contextlib
import tempfile
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from ...ops.base import Spec
from ...ops.batch import Batch, Samples
from ...ops.codecs.isolation.processes import Isolation
from ...ops.compiled.times import on_behalf
from ...ops.context import KernelServices
from ...ops.types import to_numpy
from ...readers.base import Reader
from ...writers.base import Records, ShardFiles
from ...writers.shards.config import WriteConfig
from ..compile.plan import Plan
from ..graph.nodes import Edge, Node
from .engine import Feed, Request
from .memory.budget import MemoryBudget, Reservation
from .memory.estimate import estimate_memory
from .nodes.envs import drop
from .nodes.node_pass import Dropped, Env, NodePass
from .nodes.run_nodes import run_nodes

_SAMPLES = 2
"""Number of samples on which the operators are run to compile them."""
_MAX_BYTES = 256 << 20
"""Maximum bytes of memory that one sample may need; larger samples are not used for warming up."""
_PARTS = 8
"""A sample may need at most the host's memory budget divided by this number."""


def warm_up(
    plan: Plan, feed: Feed, first: int, left: int, rng: str = "philox",
    sink: Callable[[Mapping[str, Batch]], object] = lambda _: None, isolation: Isolation | None = None,
    host: MemoryBudget | None = None,
) -> float:  # fmt: skip
    """Run the host's part of ``plan`` on a few samples to compile its kernels. Return the seconds that this took.

    The samples start at position ``first``, after which ``left`` samples follow. ``sink`` is called with the outputs;
    outputs of a GPU are replaced by zeros of the same type. Memory is reserved in the budget ``host``, as in the run. A
    sample that needs a large part of the budget is left out, because any other sample compiles the same kernels.
    Results and failures are ignored: the run itself reports errors. Operators that see whole batches may keep state;
    they and everything that depends on them are left out."""
    began = time.perf_counter()
    env: Env = {}
    samples, per_reader = feed.samples(Request(first, min(_SAMPLES, left)))
    run = NodePass(samples, plan.seeds, rng, states=feed.states, reader_samples=per_reader,
                   services=KernelServices(isolation=isolation))  # fmt: skip
    host = MemoryBudget(_MAX_BYTES * _SAMPLES) if host is None else host
    for node in plan.graph.nodes:
        stateful = node.op.per_batch and not isinstance(node.op, Reader)
        on_host = node.stage == "cpu" or plan.target.device == "null"
        if on_host and not stateful and all(e in env for e in node.reads):
            try:
                with on_behalf(node.op.loop_client):
                    estimate = estimate_memory([node], [], env, run.samples, plan.target.device == "null")
                    if _leave_out(node, np.maximum(estimate.peak, estimate.certain), env, run, host):
                        estimate = estimate_memory([node], [], env, run.samples, plan.target.device == "null")
                    with host.task(estimate.peak_total):
                        run.reservation = Reservation(host, estimate.peak_total)
                        try:
                            run_nodes([node], env, run)
                        finally:
                            run.reservation.close()
                    if isinstance(node.op, Reader):  # how large records are, no estimate knows
                        outputs_of = [env[Edge(node.id, k)] for k in range(node.op.num_outputs)]
                        _leave_out(node, sum(b.sizes * b.dtype.itemsize for b in outputs_of), env, run, host)
            except Exception:  # errors are reported by the run itself
                break
    outputs = {name: env[edge] for name, edge in plan.graph.outputs.items() if edge in env}
    with contextlib.suppress(Exception):
        if plan.target.device == "gpu":
            output_samples = next(iter(outputs.values())).samples if outputs else samples
            for name, edge in plan.graph.outputs.items():
                spec = plan.graph.spec(edge)
                if name not in outputs and spec.dtype is not None and spec.shape is not None:
                    outputs[name] = _zeros(spec, output_samples)
        if outputs and len(outputs) == len(plan.graph.outputs):
            sink(outputs)
    return time.perf_counter() - began


def _leave_out(node: Node, nbytes: Any, env: Env, run: NodePass, host: MemoryBudget) -> bool:
    """Drop the samples of ``run`` that need too large a part of the budget; ``nbytes`` is the need of each. Return
    whether there are any."""
    large = run.samples.slot[nbytes > min(_MAX_BYTES, host.limit // _PARTS)]
    drop(env, set(large.tolist()))
    run.dropped += [Dropped(int(s), node.name, "too_large", "") for s in large]
    run.samples = run.samples.take(~np.isin(run.samples.slot, large))
    return len(large) > 0


def _zeros(spec: Spec, samples: Samples) -> Batch:
    """Return a batch on the host with ``samples``, filled with zeros, of the type and shape in ``spec``; unknown
    lengths are 1."""
    assert spec.shape is not None
    assert spec.dtype is not None
    one = np.zeros([size or 1 for size in spec.shape], to_numpy(spec.dtype))
    return Batch.from_list([one] * len(samples), spec.layout, samples)


def rehearse(config: WriteConfig, outputs: Mapping[str, Batch]) -> None:
    """Write ``outputs`` as ``config`` says into a temporary folder, which is then removed. This compiles the loops that
    the writer needs."""
    writer = config.check()
    fields = {name: outputs[name] for name in config.fields}
    records = Records(next(iter(fields.values())).samples, fields)
    with tempfile.TemporaryDirectory(prefix="dali-run-") as scratch, on_behalf(f"writers.{config.writer}"):
        root = Path(scratch)
        files = ShardFiles(root, config.name, "rehearsal", len(records), writer.begin(root, []))
        try:
            if len(records) and not writer.refuse(records, files.carry):
                shard = writer.open(files, config.fields)
                shard.append(shard.frame(records), len(records))
                shard.close()
        finally:
            files.discard()
