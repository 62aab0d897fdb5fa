"""Batches of tests are small, and cut as large ones are."""

from __future__ import annotations

import pytest

from dali_run.pipelines.engine import cost


@pytest.fixture(autouse=True)
def chunk_for_each_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    """However little work a batch is, each worker gets a chunk of it."""
    monkeypatch.setattr(cost, "SMALLEST_CHUNK", 1)
