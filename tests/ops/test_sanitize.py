"""`make sanitize`: what it hands to compute-sanitizer, and how it ends. The tool itself needs a GPU."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = Path(__file__).parents[2] / "benchmarks" / "sanitize.py"
FAKE = """\
import sys
from pathlib import Path
log = Path(__file__).with_name("log")
log.write_text((log.read_text() if log.exists() else "") + " ".join(sys.argv[1:]) + "\\n")
sys.exit(86 if "memcheck" in sys.argv and "--bad" in sys.argv and COMPLAINS else 0)
"""


@pytest.mark.parametrize("complains", [False, True])
def test_both_tools_see_all_files_and_a_complaint_is_the_exit_code(tmp_path: Path, complains: bool) -> None:
    fake = tmp_path / "compute-sanitizer"
    fake.write_text(f"#!{sys.executable}\n{FAKE.replace('COMPLAINS', str(complains))}")
    fake.chmod(0o755)
    command = [sys.executable, SCRIPT, "good", "--bad", "bad", "--mutations", "77"]
    environment = {**os.environ, "PATH": f"{tmp_path}:{os.environ['PATH']}"}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == complains, done.stderr
    assert ("memcheck complains" in done.stdout) == complains
    lines = (tmp_path / "log").read_text().splitlines()
    assert [line.split()[1] for line in lines] == ["memcheck"] * 3 + ["racecheck"] * 3
    assert all("--error-exitcode 86" in line and "--apart" in line for line in lines)
    assert ["--mutate 77" in line for line in lines] == [False, False, True] * 2


def test_without_the_tool_it_says_where_it_comes_from(tmp_path: Path) -> None:
    environment = {"PATH": str(tmp_path), "CUDA_HOME": str(tmp_path), "CUDA_PATH": str(tmp_path)}
    done = subprocess.run(
        [sys.executable, SCRIPT, "good"], env=environment, capture_output=True, text=True, check=False
    )
    assert done.returncode == 1
    assert "CUDA toolkit" in done.stderr
