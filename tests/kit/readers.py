"""Helpers of the tests of readers."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from dali_run.ops.batch import Batch, Samples
from dali_run.ops.context import Context, KernelServices
from dali_run.ops.errors import Reject
from dali_run.readers.base import Reader, Source
from dali_run.readers.fetch.extents import in_utf8


def open_reader(reader: Reader) -> Source:
    reader.check()
    return reader.open()


def fetch(
    reader: Reader, source: Source, index: Any, staging: bool = False, uploads: Mapping[int, Any] | None = None
) -> tuple[tuple[Batch, ...], list[Reject]]:  # fmt: skip
    """Fetch the records ``index`` in one call of the kernel. Return the batches and the rejects."""
    index = np.asarray(index, np.int64)
    n = len(index)
    samples = Samples(np.arange(n, dtype=np.int32), np.arange(n, dtype=np.int64), np.zeros(n, np.int64), index, source)
    ctx = Context(op=reader, stage="cpu", samples=samples, source=source, uploads=uploads or {})
    if staging:
        ctx.services = KernelServices(lambda nbytes: np.empty(nbytes, np.uint8))
    batches = reader.cpu(ctx)
    assert samples.names() == [in_utf8(source.origin(i).key) for i in index.tolist()]  # keys of a whole batch
    assert len(batches) == reader.num_outputs
    assert all(len(b) == n for b in batches)
    for b in batches:  # nothing may point outside the data
        assert (b.offsets >= 0).all()
        assert (b.offsets + b.sizes <= len(b.data)).all()
    return batches, ctx.rejects


def content(batch: Batch) -> list[bytes]:
    return [s.tobytes() for s in batch]
