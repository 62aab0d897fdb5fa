"""`make test-changed`: which tests a change concerns."""

from __future__ import annotations

from tests.changed import affected


def test_a_change_concerns_its_room_and_the_tests_that_name_it() -> None:
    found = affected(["ops/codecs/jpeg/turbo.py"])
    assert {"tests/ops/codecs/jpeg/test_header.py", "tests/ops/codecs/jpeg/test_damage.py"} <= set(found)
    assert all("jpeg" in name or "codecs" in name for name in found), found
    elsewhere = affected(["ops/batch.py"])
    assert "tests/ops/test_batch.py" in elsewhere
    assert "tests/pipelines/engine/test_unforeseen.py" in elsewhere or len(elsewhere) > 20
    assert affected(["tests/test_changed.py"]) == ["tests/test_changed.py"]
    assert "tests/ops/filters/test_morphology.py" in affected(["tests/kit/long.py"])
    assert affected(["docs/index.md"]) == []
