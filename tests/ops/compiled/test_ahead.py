"""Compiling by processes: one that a loop ends costs that loop alone, and is told of."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

from dali_run.ops.compiled import listed, store, target
from dali_run.ops.compiled.ahead import compile_all
from dali_run.ops.compiled.signatures import Loop
from docs import compiled_wheel

PROJECT = Path(__file__).parents[3]
DEADLY = """
import os, signal, sys

class Finder:
    def find_spec(self, name, path, target=None):
        if name.startswith("dali_run.deadly"):
            print("LLVM ERROR: Symbol not found: __truncsfhf2", file=sys.stderr, flush=True)
            os.kill(os.getpid(), signal.SIGKILL)

sys.meta_path.insert(0, Finder())
"""
"""Modules that end the process that imports them, as LLVM does where it is at its end."""


@pytest.fixture
def environment(tmp_path: Path) -> dict[str, str]:
    (tmp_path / "deadly").mkdir()
    (tmp_path / "deadly" / "sitecustomize.py").write_text(DEADLY)
    folders = os.pathsep.join([str(tmp_path / "deadly"), str(PROJECT)])
    return {"PYTHONPATH": folders, "NUMBA_CACHE_DIR": str(tmp_path / "kept")}


def one_that_compiles() -> Loop:
    return min(listed.loops(), key=lambda loop: (loop.function != "crc_tables", loop.line()))


def test_a_process_that_a_loop_ends_costs_that_loop_alone(environment: dict[str, str]) -> None:
    """All of the processes may be ended, and more than once: loops are answered to the last."""
    good = one_that_compiles()
    wanted = [*(Loop(f"deadly{i}", "f", ()) for i in range(3)), Loop("ops.nothing", "f", ()), good]
    answers: dict[str, dict[str, Any]] = {}
    compile_all(wanted, 2, lambda loop, answer: answers.update({loop.module: answer}), environment)
    assert set(answers) == {loop.module for loop in wanted}
    for i in range(3):
        error = answers[f"deadly{i}"]["error"]
        assert error == "the compiler process ended (-9): LLVM ERROR: Symbol not found: __truncsfhf2"
    assert "ModuleNotFoundError" in answers["ops.nothing"]["error"]
    assert answers[good.module]["kept"] is True


@pytest.mark.skipif(not target.levels(), reason="needs an x86-64 processor of level 2 at least")
def test_a_pack_without_all_loops_ends_the_build(
    tmp_path: Path, environment: dict[str, str], monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("PYTHONPATH", environment["PYTHONPATH"])
    level = target.levels()[0]
    pack = tmp_path / store.pack_name(level)
    wanted = [one_that_compiles(), Loop("deadly", "one", ("int64",)), Loop("ops.nothing", "other", ())]
    with pytest.raises(SystemExit) as ended:
        compiled_wheel.loops_for(level, pack, tmp_path / "work", wanted)
    said = str(ended.value)
    assert said.startswith(f"{level}: 2 of 3 loops are missing:\n")
    assert "deadly.one(int64): the compiler process ended (-9): LLVM ERROR: Symbol not found" in said
    assert "ops.nothing.other(): ModuleNotFoundError" in said
    assert not pack.exists()
    assert "deadly.one" in capfd.readouterr().err  # while it goes on, too
