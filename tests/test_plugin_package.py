"""The example package of docs/examples: built, installed beside dali-run, and used; and what may run its code."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
EXAMPLE = ROOT / "docs" / "examples" / "plugin-package"


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder for sys.path with the package as pip installs it, without a network."""
    work = tmp_path_factory.mktemp("package")
    source = shutil.copytree(EXAMPLE, work / "source", ignore=shutil.ignore_patterns("__pycache__"))  # builds in place
    command = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--no-build-isolation", "--no-index",
               "--disable-pip-version-check", "--target", str(work / "site"), str(source)]  # fmt: skip
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if "No module named pip" in done.stderr:
        pytest.skip("needs pip in this environment")
    assert done.returncode == 0, done.stderr
    return work / "site"


def run(installed: Path, *arguments: str, cwd: Path | None = None) -> subprocess.CompletedProcess[str]:
    path = os.pathsep.join([str(installed), str(ROOT)])
    return subprocess.run([sys.executable, *arguments], capture_output=True, text=True, check=False, cwd=cwd,
                          env={**os.environ, "PYTHONPATH": path})  # fmt: skip


def test_the_package_s_own_tests_pass(installed: Path, tmp_path: Path) -> None:
    source = installed.parent / "source"
    done = run(installed, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-c", str(source / "pyproject.toml"),
               "--basetemp", str(tmp_path / "base"), str(source / "tests"), cwd=source)  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    assert "3 passed" in done.stdout


def test_commands_know_what_is_installed(installed: Path, tmp_path: Path) -> None:
    """Validation, help, the schema for editors, completion of Python names."""
    program = f"""
import json, sys
from dali_run.cli.main import main
assert main(["validate", {str(EXAMPLE / "cifar.yaml")!r}]) == 0
assert "dali_run_cifar" in sys.modules
assert main(["ops", "readers.cifar"]) == 0
assert main(["ops", "writers.cifar"]) == 0
from dali_run.pipelines.spec.json_schema import spec_schema
assert {{"op.readers.cifar", "op.smooth_labels", "writer.cifar"}} <= set(spec_schema()["$defs"])
import dali_run
assert "smooth_labels" in dir(dali_run.fn)
"""
    done = run(installed, "-c", program, cwd=tmp_path)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "image, label as cifar" in done.stdout


def test_nothing_of_it_is_imported_before_it_is_needed(installed: Path, tmp_path: Path) -> None:
    program = f"""
import sys
from dali_run.cli.main import main
assert main(["validate", {str(ROOT / "configs" / "quickstart.yaml")!r}]) == 0
assert "dali_run_cifar" not in sys.modules
"""
    done = run(installed, "-c", program, cwd=tmp_path)
    assert done.returncode == 0, done.stdout + done.stderr


def test_a_broken_package_is_named_where_it_is_needed(installed: Path, tmp_path: Path) -> None:
    broken = shutil.copytree(installed, tmp_path / "site")
    (broken / "dali_run_cifar" / "__init__.py").write_text("import no_such_module")
    done = run(broken, "-m", "dali_run.cli.main", "validate", "--json", str(EXAMPLE / "cifar.yaml"))
    assert done.returncode == 2
    texts = " ".join(p["text"] for p in json.loads(done.stdout)[0]["problems"])
    reason = "plugin cifar (dali_run_cifar) cannot be imported: ModuleNotFoundError: No module named 'no_such_module'"
    assert "there is no operator 'readers.cifar'" in texts
    assert "there is no writer 'cifar'" in texts
    assert texts.count(reason) == 2, "for the reader and for the writer"
