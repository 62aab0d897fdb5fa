"""The Makefile on machines that lack something: one line says what to install, and later calls work."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]

pytestmark = pytest.mark.skipif(shutil.which("make") is None, reason="needs make")


def make(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Make the environment in ``folder``."""
    command = ["make", "--no-print-directory", f"VENV={folder}/venv", f"{folder}/venv/bin/pip", *arguments]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)


def python_without(module: str, folder: Path) -> Path:
    """A Python that lacks a module of the standard library, as Debian's does."""
    script = folder / "python3"
    script.write_text(f'#!/bin/sh\nPYTHONPATH={folder}/hides exec {sys.executable} "$@"\n')
    script.chmod(0o755)
    (folder / "hides").mkdir()
    (folder / "hides" / f"{module}.py").write_text("raise ModuleNotFoundError")
    return script


@pytest.mark.parametrize("module", ["ensurepip", "venv"])
def test_a_python_without_ensurepip_is_told_what_to_install(tmp_path: Path, module: str) -> None:
    done = make(tmp_path, f"PYTHON={python_without(module, tmp_path)}")
    assert done.returncode != 0
    # under `make test` the lines of make itself begin with make[1]
    (line,) = [line for line in done.stderr.splitlines() if not line.startswith("make")]
    assert "apt install python3-venv" in line
    assert not (tmp_path / "venv").exists()


def test_an_environment_that_was_half_made_is_made_again(tmp_path: Path) -> None:
    (tmp_path / "venv" / "bin").mkdir(parents=True)
    (tmp_path / "venv" / "bin" / "python").symlink_to(sys.executable)
    assert f"-m venv {tmp_path}/venv" in make(tmp_path, "-n").stdout
    (tmp_path / "venv" / "bin" / "pip").touch()
    assert "-m venv" not in make(tmp_path, "-n").stdout
