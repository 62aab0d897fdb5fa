"""Checkpoints of a pipeline: a few integers as JSON, from which all other state is computed."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from ...ops.errors import JobError
from ...ops.storage.json_text import parse_json
from ...readers.order import Order
from ..graph.as_json import digest
from ..graph.nodes import Graph

VERSION = 1
_KIND = "dali-run pipeline checkpoint"


def dump_checkpoint(
    *, graph: Graph, seed: int, position: int, iteration: int, epoch: int, readers: Mapping[str, Order],
    extra: Mapping[str, Any],
) -> bytes:  # fmt: skip
    """Return a pipeline's state as JSON. ``position`` is the number of samples returned so far, ``iteration`` the
    number of batches in the current epoch of the external sources; ``extra`` is the state of a framework's iterator."""
    positions = {}
    for name, order in readers.items():
        done, at = order.locate(position)
        positions[name] = {"epoch": done, "position": at}
    state = {"kind": _KIND, "version": VERSION, "graph": digest(graph), "seed": seed, "position": position,
             "iteration": iteration, "epoch": epoch, "readers": positions, "extra": dict(extra)}  # fmt: skip
    return json.dumps(state, sort_keys=True).encode()


def parse_checkpoint(data: bytes | str) -> dict[str, Any]:
    """Parse the JSON text of a checkpoint and return its state. Raises JobError if it is not a checkpoint of this
    version."""
    try:
        state = parse_json(data)
    except ValueError:
        state = None
    if not isinstance(state, dict) or state.get("kind") != _KIND:
        raise JobError("this is not a checkpoint of a dali-run pipeline")
    if state.get("version") != VERSION:
        raise JobError(f"the checkpoint has version {state.get('version')}; this program knows version {VERSION}")
    return state


def check_checkpoint(state: Mapping[str, Any], graph: Graph) -> None:
    """Raise JobError if the checkpoint was written by a pipeline with another graph."""
    if state["graph"] != digest(graph):
        raise JobError("the checkpoint was made by a pipeline with other operators or arguments; build the pipeline "
                       "with the same ones (seed, threads and prefetching may differ)")  # fmt: skip
