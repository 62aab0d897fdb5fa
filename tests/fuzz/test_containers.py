"""A little of `python -m tests.fuzz.containers`, always the same."""

from __future__ import annotations

from importlib.util import find_spec

import pytest

from .containers import CONTAINERS, check, shards

FOUND = {"lmdb": (7, 27, 82), "parquet": (51,), "gnu": (1125,)}
"""Seeds of mutations that once changed how the good shard was read."""


@pytest.mark.parametrize("name", CONTAINERS)
def test_a_damaged_shard_costs_its_own_records_only(name: str) -> None:
    if name == "parquet" and find_spec("pyarrow") is None:
        pytest.skip("needs pyarrow")
    with shards(name) as (pictures, files):
        ends = {check(name, pictures, files, seed) for seed in (*range(6), *FOUND.get(name, ()))}
    assert ends & {"rejects", "refused"}, "no mutation of these did any damage"
