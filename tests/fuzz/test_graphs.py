"""A few of the random graphs (`python -m tests.fuzz.graphs` tries them for as long as one likes)."""

from __future__ import annotations

import pytest

from .graphs import check


@pytest.mark.parametrize("seed", [3, 7])
def test_what_comes_out_does_not_depend_on_how_it_is_computed(seed: int) -> None:
    _, (shards, _) = check(seed)
    assert len(shards) >= 3
