"""Sizes and sharding of a pipeline's readers, as DALI's `reader_meta` gives them."""

from __future__ import annotations

from typing import Any

from ...ops.base import Operator
from ...ops.errors import SpecError
from ...readers.base import Reader


def meta_of(metas: dict[str, dict[str, Any]], name: str | None) -> dict[str, Any]:
    """The facts of reader ``name``, or those of all by name. Raises SpecError where there is no such reader."""
    if name is None:
        return metas
    if name not in metas:
        raise SpecError(f"there is no reader {name!r} that an output needs; there are: {', '.join(metas) or 'none'}")
    return metas[name]


def reader_facts(op: Operator, order: Any) -> dict[str, Any]:
    """The facts of a reader that `Pipeline.reader_meta` gives."""
    assert isinstance(op, Reader)
    return {
        "epoch_size": order.epoch_size,
        "epoch_size_padded": order.epoch_size_padded() if op.pad_last_batch else order.epoch_size,
        "number_of_shards": op.num_shards,
        "shard_id": op.shard_id,
        "pad_last_batch": int(op.pad_last_batch),
        # where every epoch is a fresh order of all records, a shard keeps its place
        "stick_to_shard": int(op.stick_to_shard or op.shuffle_after_epoch or op.shuffle == "full"),
    }
