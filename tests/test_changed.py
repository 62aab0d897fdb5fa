"""`make test-changed`: which tests a change concerns."""

from __future__ import annotations

import threading
from pathlib import Path

from dali_run.ops.storage.urls import is_url, plain_path
from tests.changed import affected, changed_functions
from tests.reached import Recorder, reaching


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


def test_a_change_concerns_the_tests_that_reach_its_functions(tmp_path: Path) -> None:
    recorder = Recorder(tmp_path / "reached")
    with recorder.recording("tests/a/test_thread.py"):
        thread = threading.Thread(target=plain_path, args=("file://x",))
        thread.start()
        thread.join()
    with recorder.recording("tests/b/test_both.py"):
        is_url("s3://x")
        plain_path("x")
    recorder.pytest_sessionfinish()
    folder = tmp_path / "ops" / "storage"
    folder.mkdir(parents=True)
    source = "A = 1\n\n\ndef plain_path(path):\n    return path\n\n\ndef is_url(path):\n    return 1\n"
    (folder / "urls.py").write_text(source)
    diff = ["--- a/ops/storage/urls.py", "+++ b/ops/storage/urls.py"]
    for hunk, functions, tests in (
        ("@@ -1 +1 @@ A", [], []),
        ("@@ -5 +5,0 @@", ["plain_path"], ["tests/a/test_thread.py", "tests/b/test_both.py"]),
        ("@@ -8,0 +9 @@ def plain_path", ["is_url"], ["tests/b/test_both.py"]),
    ):
        changed = changed_functions([*diff, hunk, "+x"], tmp_path)
        assert changed == {f"ops/storage/urls.py:{name}" for name in functions}
        assert reaching(changed, tmp_path / "reached") == tests
    assert reaching(["ops/storage/urls.py:is_url"], tmp_path / "nothing") == []
