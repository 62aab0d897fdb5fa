"""Jobs where the system refuses what containers, sandboxes and old kernels refuse: the same bytes, or one sentence that
says what to do. Systems other than Linux are refused when the package is imported (tests/cli/test_main.py)."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[1]
PROGRAM = """
import errno, hashlib, json, os, sys
from pathlib import Path
from tests import torture_isolation as jobs

work = Path(sys.argv[1])
jobs.pictures(work / "data", 8)
spec = jobs.make_spec(work, work / "data", timeout=60)

def outcome(**settings):
    try:
        files, _ = jobs.run(spec, work / "out", **settings)
    except AssertionError as e:
        return str(e)
    finally:
        os.rename(work / "out", work / f"out-{len(list(work.iterdir()))}")
    return {name: hashlib.sha256(data).hexdigest() for name, data in files.items()}

def refused(*_):
    raise OSError(errno.ENOSYS, "Function not implemented")

def without_proc(event, args):
    if event == "open" and str(args[0]).startswith(("/proc/", "/sys/")):
        raise FileNotFoundError(errno.ENOENT, "No such file or directory", args[0])

found = {"all": outcome()}
del os.sched_getaffinity
os.posix_fallocate = os.posix_fadvise = os.copy_file_range = refused
sys.addaudithook(without_proc)
os.memfd_create = refused
found["isolated"] = outcome()
found["few"] = outcome(isolation="none")
print(json.dumps(found))
"""


def test_what_a_system_refuses_costs_nothing_or_is_told(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, str(tmp_path)], cwd=ROOT, capture_output=True, text=True, check=True
    )
    found = json.loads(done.stdout.splitlines()[-1])
    assert any(name.endswith(".tfrecord") for name in found["all"])
    assert "the processes for decoders cannot be started" in found["isolated"]
    assert "`isolation: none` decodes without them" in found["isolated"]
    assert found["few"] == found["all"]
