"""Sample data for commands to work on, made once."""

from __future__ import annotations

from pathlib import Path

import pytest

from dali_run.pipelines.tools.sample_data import make_sample_data


@pytest.fixture(scope="session")
def sample(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """32 pictures: train, val, lmdb, tfrecord."""
    folder = tmp_path_factory.mktemp("cli") / "data"
    make_sample_data(folder, 32)
    return folder
