"""Batches of tests are small, and cut as large ones are."""

from __future__ import annotations

import pytest

from dali_run.pipelines.engine import cost, credits


@pytest.fixture(autouse=True)
def small_chunks(monkeypatch: pytest.MonkeyPatch) -> None:
    """However little work a batch is, workers get chunks of a few samples, and few batches are joined for them."""
    for module in (cost, credits):
        monkeypatch.setattr(module, "CHUNK", 8 * cost.SAMPLE)
    monkeypatch.setattr(cost, "MIN_CHUNK", 1)
