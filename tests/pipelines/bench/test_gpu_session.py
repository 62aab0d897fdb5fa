"""A session on a GPU loses nothing to a step that fails or hangs, and goes on where it was ended."""

from __future__ import annotations

import json
import os
import sys
import time
from pathlib import Path

import pytest

from benchmarks.jobs.gpu_session import Step, limit, main, session, steps

CHILD = "import os, sys, time; open(sys.argv[1], 'w').write(str(os.getpid())); time.sleep(1000)"
PARENT = "import subprocess, sys; subprocess.run([sys.executable, '-c', sys.argv[1], sys.argv[2]])"


def step(name: str, program: str, *arguments: str, weight: float = 1.0, gpus: int = 0) -> Step:
    return Step(name, weight, (sys.executable, "-c", program, *arguments), gpus)


def lives(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def test_steps_that_fail_hang_or_cannot_run(tmp_path: Path) -> None:
    pid, told = tmp_path / "pid", {"cores": 1}
    chosen = [
        step("good", "import sys; open(sys.argv[1], 'w').write('{}'); print('all well')", "{json}", weight=1000),
        step("bad", "print('half'); raise SystemExit(3)", weight=1000),
        step("hangs", PARENT, CHILD, str(pid), weight=1),
        step("needs", "", gpus=1),
        step("last", "print('still here | there')", weight=1000),
    ]
    found = session(chosen, tmp_path, 4000, 0, False, told)
    assert {k: v["state"] for k, v in found.items()} == {
        "good": "ok", "bad": "failed", "hangs": "limit", "needs": "left out", "last": "ok",
    }  # fmt: skip
    if pid.exists() and (number := pid.read_text()):  # else it had not come so far
        while lives(int(number)):  # what the step had started goes with it
            time.sleep(0.01)
    assert found["needs"]["last"] == "needs 1 GPU"
    assert (found["bad"]["code"], found["bad"]["last"]) == (3, "half")
    assert (tmp_path / "good.json").exists()
    assert "all well" in (tmp_path / "good.log").read_text()
    written = json.loads((tmp_path / "session.json").read_text())
    assert written == {"machine": told, "steps": found}
    assert (tmp_path / "session.md").read_text().count("\n") == 2 + len(chosen)
    chosen[1:3] = [step("bad", "print('mended')")]
    again = session(chosen, tmp_path, 1000, 0, False, told)
    assert again["good"] == found["good"]
    assert (again["bad"]["state"], again["bad"]["last"]) == ("ok", "mended")


def test_time_that_is_not_needed_goes_to_the_rest() -> None:
    a, b = step("a", "", weight=1), step("b", "", weight=3)
    assert limit(a, [b], 400) == 100
    assert limit(b, [], 390) == 390
    assert limit(b, [], 1e6) == 1200


@pytest.mark.parametrize("device", ["gpu", "cpu"])
def test_all_scripts_and_tests_are_there(device: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "a.jpg").write_bytes(bytes(1000))
    arguments = ["--images", str(tmp_path), "--out", str(tmp_path / "out"), "--seconds", "100", "--device", device]
    assert main([*arguments, "--dry-run", "--gpus", "2", "--dali", "x", "--dali-python", "y"]) == 0
    said = capsys.readouterr().out
    found = steps(str(tmp_path), 4, "x", "y", device)
    assert len(said.splitlines()) == len(found) == len({s.name for s in found})
    assert "needs" not in said
    for one in found:
        files = [w.partition("::")[0] for w in one.command if ".py" in w and not w.startswith("--ignore")]
        assert all(os.path.exists(Path(__file__).parents[3] / f) for f in files), one
        if one.command[1].endswith(".py"):
            text = Path(one.command[1]).read_text()
            options = [w for w in one.command[2:] if w.startswith("--")]
            assert all(f'"{o}"' in text for o in options), one
    with pytest.raises(SystemExit):
        main([*arguments, "--steps", "nothing"])
    assert not (tmp_path / "out").exists()
