"""Looking at data: what it costs, and what is shown of it."""

from __future__ import annotations

import io
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from PIL import Image

from dali_run.pipelines.job.data_stats import data_stats
from dali_run.pipelines.job.first_spec import look_at
from dali_run.pipelines.tools.datasets import describe, inspect_data


@pytest.mark.parametrize("look", ["inspect", "stats", "init"])
def test_what_a_file_of_a_large_folder_costs(tmp_path: Path, look: str) -> None:
    """Calls of Python functions per file. A `Path` per file and pass takes a dozen."""
    looks: dict[str, Callable[[Path], object]] = {
        "inspect": lambda place: inspect_data(place, 1),
        "stats": lambda place: data_stats(place, limit=2),
        "init": lambda place: look_at(str(place)),
    }
    picture = io.BytesIO()
    Image.new("RGB", (8, 8)).save(picture, "png")
    counts = []
    for n in (100, 600):
        place = tmp_path / str(n)
        place.mkdir()
        for i in range(n):
            (place / f"{i}.png").write_bytes(picture.getvalue())
        if not counts:
            looks[look](place)  # imports
        calls = 0

        def count(frame: object, event: str, arg: object) -> None:
            nonlocal calls
            calls += event == "call"

        before = sys.getprofile()
        sys.setprofile(count)
        try:
            looks[look](place)
        finally:
            sys.setprofile(before)
        counts.append(calls)
    assert (counts[1] - counts[0]) / 500 < 40


def test_texts_are_shown_as_people_write_them() -> None:
    """All but what a terminal would obey, and what cannot be encoded."""
    for text in ("größer – é 日本 🙂", "a\\b"):
        assert describe(text.encode())["value"] == text
    for text, shown in (("a\nb\tc\x1b[31m\x7f\x9b", r"a\nb\tc\x1b[31m\x7f\x9b"), ("x\u202ey", r"x\u202ey")):
        assert describe(text.encode())["value"] == shown
    assert describe(("größer" * 20).encode())["value"].endswith(" ...")
