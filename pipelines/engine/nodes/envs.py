"""Cut and join environments: batches of different branches of a graph, by their edges.

The samples of an environment's batches belong together by their slots. Because every kernel treats every sample as if
it were alone, an environment can be cut by slots, its parts computed anywhere, and the results joined. Used by all of
the engine.
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
from .node_pass import Env, LeftOut, Loss, NodePass


def bytes_of(batches: Iterable[Batch]) -> int:
    """Return the bytes of ``batches``, without gaps between samples; memory that several share counts once."""
    sizes: dict[int, int] = {}
    for b in batches:
        sizes[id(b.data)] = max(sizes.get(id(b.data), 0), b.nbytes)
    return sum(sizes.values())


def merge(parts: Sequence[Batch], allocate: Any = None) -> Batch:
    """Join batches of different samples into one, ordered by slot (index of a sample). ``allocate(n, dtype)`` creates
    the array. Raises SpecError if the branches of a conditional gave different types or layouts."""
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
    """Join batches of different samples from one node, ordered by slot (index of a sample). ``allocate(n, dtype)``
    creates the array. Raises MixedBatchError if they differ in type."""
    joined = concat(parts, empty=allocate)
    order = np.argsort(joined.samples.slot, kind="stable")
    return joined if (order[1:] > order[:-1]).all() else joined.take(order)


def odd_kind(batch: Batch, kind: Spec | None) -> str:
    """Return a text for users if the samples of ``batch`` differ from the expected ``kind`` in type or rank; empty if
    they do not."""
    if kind is None or (batch.ndim == kind.ndim and (kind.dtype is None or batch.dtype == to_numpy(kind.dtype))):
        return ""
    return f"is {batch.dtype}, {batch.ndim}-D; the data set's first sample decides: {kind_text(kind)}"


def empty(spec: Spec, samples: Samples) -> Batch:
    """Return a batch of zero samples, with the dtype and number of dimensions of ``spec`` as far as they are known."""
    dtype = np.dtype(np.uint8) if spec.dtype is None else to_numpy(spec.dtype)
    return Batch(
        np.empty(0, dtype), np.empty(0, np.int64), np.empty((0, spec.ndim or 0), np.int32), spec.layout, samples
    )


def nothing(nodes: Sequence[Node], samples: Samples, gives: Sequence[Edge]) -> Env:
    """Return a batch without samples for each of the node outputs ``gives``."""
    by_id = {n.id: n for n in nodes}
    no_samples = samples.take(slice(0, 0))
    return {e: empty(by_id[e.node].specs[e.output] if by_id[e.node].specs else Spec(), no_samples) for e in gives}


def gone(dropped: Iterable[Loss]) -> set[int]:
    """Return the indices (slots) of the dropped samples that have left the batch. Damaged samples may stay in it."""
    slots = set[int]()
    for d in dropped:
        if isinstance(d, LeftOut):
            slots.update(d.slots.tolist())
        elif not d.kept:
            slots.add(d.slot)
    return slots


def drop(env: Env, slots: set[int]) -> None:
    """Remove the samples with the indices ``slots`` from every batch of ``env``."""
    removed = np.fromiter(slots, np.int32, len(slots))
    shared: dict[int, Samples] = {}  # batches that share their Samples still do so afterwards
    for edge, batch in env.items():
        is_removed = np.isin(batch.samples.slot, removed)
        if is_removed.any():
            where = np.flatnonzero(~is_removed)
            key = id(batch.samples)
            if key not in shared:
                shared[key] = batch.samples.take(where)
            env[edge] = batch.take(where, shared[key])


def within(samples: Samples, low: int, high: int, cached: dict[int, tuple[slice, Samples]]) -> tuple[slice, Samples]:
    """Return the index range, as a slice, of the samples with slots (original indices) in [low, high), and these
    samples. ``cached`` keeps the result for each `Samples` object, which most batches share."""
    result = cached.get(id(samples))
    if result is None:
        slot = samples.slot
        n = len(slot)
        first = int(slot[0]) if n else 0
        if n and int(slot[-1]) - first == n - 1:  # no sample was dropped; a search releases the GIL
            where = slice(max(low - first, 0), max(high - first, 0))
        else:
            where = slice(*slot.searchsorted((low, high)).tolist())
        result = cached[id(samples)] = where, samples.take(where)
    return result


def cut(env: Mapping[Edge, Batch], low: int, high: int, cached: dict[int, tuple[slice, Samples]] | None = None) -> Env:
    """Return ``env`` with only the samples of the slots (indices) [low, high). ``cached``: see `within`."""
    cached = {} if cached is None else cached
    return {edge: batch.take(*within(batch.samples, low, high, cached)) for edge, batch in env.items()}


def middle(run: NodePass) -> tuple[int, int, int]:
    """Return three sample indices (first, middle, end) that cut the samples of ``run`` into halves; for `pieces`."""
    slots = run.samples.slot
    return int(slots[0]), int(slots[len(slots) // 2]), int(slots[-1]) + 1


def pieces(env: Mapping[Edge, Batch], run: NodePass, borders: Sequence[int]) -> Generator[Env]:
    """Yield ``env`` cut at the sample indices ``borders`` into pieces, one after the other. While the caller uses a
    piece, ``run.samples`` are the samples of that piece."""
    whole = run.samples, run.reader_samples
    try:
        for low, high in pairwise(borders):
            run.samples = whole[0].take((whole[0].slot >= low) & (whole[0].slot < high))
            run.reader_samples = {k: s.take((s.slot >= low) & (s.slot < high)) for k, s in whole[1].items()}
            yield cut(env, low, high)
    finally:
        run.samples, run.reader_samples = whole
