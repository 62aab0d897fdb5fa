"""The tests of what differs from another state of the code: ``python -m tests.changed [BASE]`` prints their files.

Tests of a changed file are those of its room, in the same folder below tests/, those whose imports name the file, and
those that reach a changed function, if that was recorded (`tests.reached`). `make test-changed` runs them.
"""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path, PurePosixPath

from tests.reached import RECORDS, functions_at, reaching

ROOT = Path(__file__).parents[1]
FOLDERS = ("cli", "pipelines", "ops", "readers", "writers")


def affected(changed: Iterable[str], root: Path = ROOT) -> list[str]:
    """Test files for ``changed`` files, both relative to ``root``."""
    texts = {str(p.relative_to(root)): p.read_text() for p in sorted((root / "tests").rglob("test_*.py"))}
    found = set()
    for name in changed:
        path = PurePosixPath(name)
        if name in texts:
            found.add(name)
        if path.suffix not in (".py", ".cu", ".cuh"):
            continue
        if path.parts[0] in FOLDERS:
            room = "tests/" + path.parent.as_posix()
            found.update(test for test in texts if PurePosixPath(test).parent.as_posix() == room)
        if path.parts[0] in (*FOLDERS, "dali_run", "tests"):
            module = ".".join(path.with_suffix("").parts[-2:]).removesuffix(".__init__")
            parent, _, last = module.rpartition(".")
            named = re.compile(rf"\b{re.escape(module)}\b|\b{re.escape(parent)} import .*\b{re.escape(last)}\b")
            found.update(test for test, text in texts.items() if named.search(text))
    return sorted(found)


def git(*arguments: str) -> list[str]:
    """Lines that the command of git prints."""
    done = subprocess.run(["git", *arguments], cwd=ROOT, capture_output=True, text=True, check=True)
    return done.stdout.splitlines()


def changed_since(base: str) -> list[str]:
    """Files that differ from ``base``, uncommitted and new ones included."""
    return [*git("diff", "--name-only", "--merge-base", base), *git("ls-files", "--others", "--exclude-standard")]


def changed_functions(diff: Iterable[str], root: Path = ROOT) -> set[str]:
    """Functions that a ``diff`` (of git, without context) changes, as `tests.reached` names them."""
    lines: dict[str, set[int]] = {}
    path = ""
    for line in diff:
        if line.startswith("+++ "):
            path = line[6:] if line.startswith("+++ b/") and line.endswith(".py") else ""
        elif path and (hunk := re.match(r"@@ -\S+ \+(\d+)(?:,(\d+))? @@", line)):
            first, count = int(hunk[1]), int(hunk[2] or 1)
            lines.setdefault(path, set()).update(range(first, first + max(count, 1)))
    return set().union(*(functions_at(path, numbers, root) for path, numbers in lines.items()))


if __name__ == "__main__":
    base = sys.argv[1] if len(sys.argv) > 1 else "main"
    tests = affected(changed_since(base))
    reached = reaching(changed_functions(git("diff", "--unified=0", "--merge-base", base)))
    if not RECORDS.is_dir():
        print("which tests reach a function was not recorded (make reached): only rooms count", file=sys.stderr)
    print("\n".join(dict.fromkeys([*tests, *(test for test in reached if (ROOT / test).exists())])))
