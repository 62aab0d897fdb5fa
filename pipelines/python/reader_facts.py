"""Sizes and sharding of a pipeline's readers, in the form of DALI's `reader_meta`."""

from __future__ import annotations

from typing import Any

from ...ops.base import Operator
from ...ops.errors import SpecError
from ...readers.base import Reader


def meta_of(metas: dict[str, dict[str, Any]], name: str | None) -> dict[str, Any]:
    """Return the facts (sizes and sharding) of reader ``name``, or those of all readers by name. Raises SpecError if
    there is no such reader."""
    if name is None:
        return metas
    if name not in metas:
        raise SpecError(f"there is no reader {name!r} that an output depends on; readers: {', '.join(metas) or 'none'}")
    return metas[name]


def reader_facts(op: Operator, order: Any) -> dict[str, Any]:
    """Return the facts of reader ``op``, such as its epoch size and number of shards, for `Pipeline.reader_meta`."""
    assert isinstance(op, Reader)
    return {
        "epoch_size": order.epoch_size,
        "epoch_size_padded": order.epoch_size_padded() if op.pad_last_batch else order.epoch_size,
        "number_of_shards": op.num_shards,
        "shard_id": op.shard_id,
        "pad_last_batch": int(op.pad_last_batch),
        # if every epoch is a new order of all records, a shard keeps its position
        "stick_to_shard": int(op.stick_to_shard or op.shuffle_after_epoch or op.shuffle == "full"),
    }
