"""Prepare a finished batch for its consumer: samples that failed are left out, replaced, or end the run.

Called by `Engine` when it delivers a batch.
"""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

from ...ops.errors import SampleFailedError, SampleValueError
from ...readers.fetch.bus_errors import lost_files
from ..compile.plan import Plan
from ..graph.nodes import Edge
from .in_flight import InFlightBatch
from .nodes.envs import drop, gone
from .nodes.node_pass import Dropped, LeftOut, Loss, rejected
from .services import Services


def finished(services: Services, iteration: InFlightBatch) -> InFlightBatch:
    """Handle the samples of the batch that failed: drop them, or replace them by copies, as `Options.policy` says.
    Raises SampleFailedError if the policy is ``fail``."""
    plan, stats, policy = services.plan, services.stats, services.options.policy
    if files := lost_files():
        _drop_lost(plan, iteration, files)
    for d in iteration.dropped:
        if isinstance(d, LeftOut):
            stats.count(stats.left_out, d.node, len(d.slots))
        else:
            stats.count(stats.rejected, d.code)
    failed = [d for d in rejected(iteration.dropped) if not d.kept]
    if failed and policy == "fail":
        d = failed[0]
        at = iteration.origin_of(d)
        kind = SampleValueError if d.code in ("bad_argument", "bad_shape") else SampleFailedError
        raise kind(f"{at.source or at.key}: {_where(plan, d.node)}: {d.code}: {d.message} (on_error policy is fail)")
    if failed and policy == "replace":
        replace_dropped(iteration, plan.graph.outputs.values())
    return iteration


def _where(plan: Plan, name: str) -> str:
    """Return the name of a node and, if it is known, the place in the user's spec that created it."""
    marks = (n.mark for n in plan.graph.nodes if n.mark and name in (n.name, *n.parts.values()))
    return next((f"{name} ({mark})" for mark in marks), name)


def _drop_lost(plan: Plan, iteration: InFlightBatch, files: frozenset[str]) -> None:
    """Drop the samples from ``files``, which could not be read, so that their bytes may be zeros."""
    names = {slot: plan.graph.nodes[node].name for node, slot, _ in iteration.read_from(files)}
    why = "the file was cut short, or could not be read, while the job ran"
    # a rejection of the zeros is not the cause
    dropped: list[Loss] = []
    for d in iteration.dropped:
        if isinstance(d, LeftOut):
            dropped.append(d.take(~np.isin(d.slots, list(names))))
        elif d.slot not in names:
            dropped.append(d)
    iteration.dropped = dropped
    iteration.dropped += [Dropped(slot, name, "read_failed", why) for slot, name in names.items()]
    drop(iteration.env, set(names))
    iteration.samples = iteration.samples.take(~np.isin(iteration.samples.slot, list(names)))


def replace_dropped(iteration: InFlightBatch, edges: Iterable[Edge]) -> None:
    """Replace every rejected sample by a copy of the nearest valid one. All outputs copy the same sample."""
    good = iteration.samples.slot
    if len(good) == 0:
        return
    slots = np.sort(np.concatenate([good, np.array(sorted(gone(rejected(iteration.dropped))), good.dtype)]))
    right = np.searchsorted(good, slots).clip(0, len(good) - 1)
    left = (right - 1).clip(0)
    nearest = np.where(np.abs(good[left] - slots) <= np.abs(good[right] - slots), left, right)
    iteration.samples = iteration.all_samples.take(np.searchsorted(iteration.all_samples.slot, slots))
    iteration.replaced = True
    for edge in dict.fromkeys(edges):
        iteration.env[edge] = iteration.env[edge].take(nearest, iteration.samples)
