"""Compiled functions by name, and what tests put into their places."""

from __future__ import annotations

import pytest

from dali_run.ops.audio import decoders, libsndfile


def test_a_patch_is_seen_whatever_ran_before_and_by_nothing_after(monkeypatch: pytest.MonkeyPatch) -> None:
    for _ in range(2):
        found = libsndfile.open_memory
        assert decoders._files.open_memory is found  # kept from now on
        for target in ((libsndfile, "open_memory"), ("dali_run.ops.audio.libsndfile.open_memory",)):
            with monkeypatch.context() as patch:
                patch.setattr(*target, len)
                assert decoders._files.open_memory is len
            assert decoders._files.open_memory is found
