"""Environments: batches of different branches by their edges, which are cut by slots and joined again.

What ties the samples of an environment's batches together is each sample's slot. Because every kernel treats every
sample as if it were alone, an environment can be cut by slots, its parts run anywhere, and the results joined.
"""

from __future__ import annotations

from collections.abc import Generator, Iterable, Mapping, Sequence
from itertools import pairwise
from typing import Any

import numpy as np

from ....ops.base import Spec
from ....ops.batch import Batch, Samples, concat
from ....ops.context import kind_text
from ....ops.errors import SpecError
from ....ops.types import to_numpy
from ...graph.nodes import Edge, Node
from .node_pass import Dropped, Env, NodePass


def bytes_of(batches: Iterable[Batch]) -> int:
    """Bytes of batches, those that share their memory counted once; what lies between samples is not counted."""
    sizes: dict[int, int] = {}
    for b in batches:
        sizes[id(b.data)] = max(sizes.get(id(b.data), 0), b.nbytes)
    return sum(sizes.values())


def merge(parts: Sequence[Batch], allocate: Any = None) -> Batch:
    """The samples of all parts (disjoint), ordered by slot; ``allocate(n, dtype)`` makes the array. Raises SpecError
    where branches gave different types or layouts."""
    kinds = {f"{b.dtype}, {b.ndim}-D" for b in parts if len(b)}
    if len(kinds) > 1:
        raise SpecError(f"the branches of a conditional give different types: {' and '.join(sorted(kinds))}; cast or "
                        "reshape one of them")  # fmt: skip
    layouts = {b.layout for b in parts if len(b) and b.layout}
    if len(layouts) > 1:
        raise SpecError(f"the branches of a conditional give different layouts: {' and '.join(sorted(layouts))}; "
                        "transpose one of them")  # fmt: skip
    return in_order(parts, allocate)


def in_order(parts: Sequence[Batch], allocate: Any = None) -> Batch:
    """As `merge`, for parts of one node's samples. Raises MixedBatchError for parts of several types."""
    whole = concat(parts, empty=allocate)
    order = np.argsort(whole.samples.slot, kind="stable")
    return whole if (order[1:] > order[:-1]).all() else whole.take(order)


def odd_kind(batch: Batch, kind: Spec | None) -> str:
    """A text that says how the samples of ``batch`` differ from ``kind`` in type or rank; empty if they do not."""
    if kind is None or (batch.ndim == kind.ndim and (kind.dtype is None or batch.dtype == to_numpy(kind.dtype))):
        return ""
    return f"is {batch.dtype}, {batch.ndim}-D; the data set's first sample decides: {kind_text(kind)}"


def empty(spec: Spec, samples: Samples) -> Batch:
    """A batch without samples, of the dtype and dimensions of ``spec`` as far as they are known."""
    dtype = np.dtype(np.uint8) if spec.dtype is None else to_numpy(spec.dtype)
    return Batch(
        np.empty(0, dtype), np.empty(0, np.int64), np.empty((0, spec.ndim or 0), np.int32), spec.layout, samples
    )


def nothing(nodes: Sequence[Node], samples: Samples, gives: Sequence[Edge]) -> Env:
    """The batches of ``gives`` without samples."""
    by_id = {n.id: n for n in nodes}
    nobody = samples.take(slice(0, 0))
    return {e: empty(by_id[e.node].specs[e.output] if by_id[e.node].specs else Spec(), nobody) for e in gives}


def gone(dropped: Iterable[Dropped]) -> set[int]:
    """Slots of the samples that are there no more."""
    return {d.slot for d in dropped if not d.kept}


def drop(env: Env, slots: set[int]) -> None:
    """Take the samples at ``slots`` out of every batch of ``env``."""
    gone = np.fromiter(slots, np.int32, len(slots))
    kept: dict[int, Samples] = {}  # batches of one scope go on sharing their Samples
    for edge, batch in env.items():
        out = np.isin(batch.samples.slot, gone)
        if out.any():
            where = np.flatnonzero(~out)
            key = id(batch.samples)
            if key not in kept:
                kept[key] = batch.samples.take(where)
            env[edge] = batch.take(where, kept[key])


def within(samples: Samples, low: int, high: int, known: dict[int, tuple[slice, Samples]]) -> tuple[slice, Samples]:
    """Where those with slots in [low, high) are, and they; ``known`` keeps them, as most batches share theirs."""
    found = known.get(id(samples))
    if found is None:
        slot = samples.slot
        n = len(slot)
        first = int(slot[0]) if n else 0
        if n and int(slot[-1]) - first == n - 1:  # no sample was dropped; a search releases the GIL
            where = slice(max(low - first, 0), max(high - first, 0))
        else:
            where = slice(*slot.searchsorted((low, high)).tolist())
        found = known[id(samples)] = where, samples.take(where)
    return found


def cut(env: Mapping[Edge, Batch], low: int, high: int, known: dict[int, tuple[slice, Samples]] | None = None) -> Env:
    """The samples with slots in [low, high) of every batch; ``known`` as of `within`."""
    known = {} if known is None else known
    return {edge: batch.take(*within(batch.samples, low, high, known)) for edge, batch in env.items()}


def middle(run: NodePass) -> tuple[int, int, int]:
    """Slots that cut the samples of ``run`` in halves, for `pieces`."""
    slots = run.samples.slot
    return int(slots[0]), int(slots[len(slots) // 2]), int(slots[-1]) + 1


def pieces(env: Mapping[Edge, Batch], run: NodePass, borders: Sequence[int]) -> Generator[Env]:
    """``env`` cut at the slots ``borders``, piece by piece, with ``run`` set to the samples of each meanwhile."""
    whole = run.samples, run.reader_samples
    try:
        for low, high in pairwise(borders):
            run.samples = whole[0].take((whole[0].slot >= low) & (whole[0].slot < high))
            run.reader_samples = {k: s.take((s.slot >= low) & (s.slot < high)) for k, s in whole[1].items()}
            yield cut(env, low, high)
    finally:
        run.samples, run.reader_samples = whole
