"""Warm up: compile the host's kernels before the clock starts, by running the chain on very few samples.

The first run on a machine compiles for seconds (Numba keeps the result on disk). Without this the time would be booked
to whichever operator came first, and every worker would wait for it.
"""

from __future__ import annotations

import time

from ..readers.base import Reader
from .compile import Plan
from .execute import Feed, Request
from .run_nodes import Env, Run, run_nodes

_SAMPLES = 2


def warm_up(plan: Plan, feed: Feed, first: int, left: int, rng: str = "philox") -> float:
    """Run the host's part of ``plan`` on samples from position ``first``, of which ``left`` follow; the seconds taken.

    Results are thrown away, and so are failures: the run itself will say what is wrong. Operators that see whole
    iterations are left out with all that needs them, because they may keep state.
    """
    began = time.perf_counter()
    env: Env = {}
    samples, per_reader = feed.samples(Request(first, min(_SAMPLES, left)))
    run = Run(samples, plan.seeds, rng, states=feed.states, reader_samples=per_reader)
    for node in plan.graph.nodes:
        stateful = node.op.per_batch and not isinstance(node.op, Reader)
        on_host = node.stage == "cpu" or plan.target.device == "null"
        if on_host and not stateful and all(e in env for e in node.reads):
            try:
                run_nodes([node], env, run)
            except Exception:  # whatever it is, it is not this function's to report
                break
    return time.perf_counter() - began
