"""Make staging pieces so small that batches of a test need many."""

from __future__ import annotations

import time
from typing import Any

import pytest

from dali_run.ops.gpu import uploads


def shrink(monkeypatch: pytest.MonkeyPatch, nbytes: int) -> None:
    """Make uploads use two pieces of ``nbytes`` per thread, for batches of any size. The first batches wait until the
    device is open, so that they are also uploaded in pieces."""
    monkeypatch.setattr(uploads, "PIECE", nbytes)
    monkeypatch.setattr(uploads, "PIECES", 2)
    monkeypatch.setattr(uploads, "MIN_BYTES", 1)
    of = uploads.UploaderByGpu.of

    def when_open(self: uploads.UploaderByGpu, number: int, content: uploads.Content = "files") -> Any:
        while self._device() is None:
            time.sleep(0.001)
        return of(self, number, content)

    monkeypatch.setattr(uploads.UploaderByGpu, "of", when_open)
