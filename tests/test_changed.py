"""`make test-changed`: which tests a change concerns."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest

from dali_run.ops.storage.urls import is_url, plain_path
from tests.changed import affected, changed_functions, importers
from tests.reached import Recorder, reaching


def test_a_change_concerns_its_room_and_the_tests_that_name_it() -> None:
    found = affected(["ops/codecs/jpeg/turbo.py"])
    assert {"tests/ops/codecs/jpeg/test_header.py", "tests/ops/codecs/jpeg/test_damage.py"} <= set(found)
    assert "tests/ops/test_batch.py" not in found
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


@pytest.mark.parametrize(
    ("changed", "importer"),
    [("ops/codecs/jpeg/turbo.py", "ops/codecs/jpeg/decoder.py"),  # by Kernels(".turbo")
     ("ops/images/resampling/plan_cpu.py", "ops/fused/decode_resize.py"),  # from another room
     ("ops/codecs/__init__.py", "ops/codecs/library.py"), ("readers/order.py", "pipelines/engine/inputs.py"),
     ("ops/cuda/resample.cu", "ops/images/resampling/resample.py"),
     ("ops/cuda/border.cuh", "ops/filters/separable.py")],  # by way of sources that include it
)  # fmt: skip
def test_modules_above_import_what_changed(changed: str, importer: str) -> None:
    assert importer in map(str, importers(changed))


def test_tests_of_modules_above_are_among_them(capsys: pytest.CaptureFixture[str]) -> None:
    found = affected(["ops/images/resampling/plan_cpu.py"])
    assert {"tests/ops/images/test_resize.py", "tests/ops/fused/test_fused_decode.py"} <= set(found)
    assert not capsys.readouterr().err
    assert len(affected(["ops/batch.py"])) < 150
    assert "modules import ops/batch.py: only `make test`" in capsys.readouterr().err
