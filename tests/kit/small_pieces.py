"""Pieces that are so small that batches of a test need many."""

from __future__ import annotations

import time
from typing import Any

import pytest

from dali_run.ops.gpu import uploads


def shrink(monkeypatch: pytest.MonkeyPatch, nbytes: int) -> None:
    """Two pieces of ``nbytes`` for each thread, whatever a batch has; the first batches wait until the device is open,
    so that they go in pieces, too."""
    monkeypatch.setattr(uploads, "PIECE", nbytes)
    monkeypatch.setattr(uploads, "PIECES", 2)
    monkeypatch.setattr(uploads, "MIN_BYTES", 1)
    of = uploads.UploaderByGpu.of

    def when_open(self: uploads.UploaderByGpu, number: int, **named: bool) -> Any:
        while self._device() is None:
            time.sleep(0.001)
        return of(self, number, **named)

    monkeypatch.setattr(uploads.UploaderByGpu, "of", when_open)
