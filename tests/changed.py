"""The tests of what differs from another state of the code: ``python -m tests.changed [BASE]`` prints their files.

Tests of a changed file are those of its room, in the same folder below tests/, and those whose imports name the file.
`make test-changed` runs them.
"""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path, PurePosixPath

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


def changed_since(base: str) -> list[str]:
    """Files that differ from ``base``, uncommitted and new ones included."""

    def git(*arguments: str) -> list[str]:
        done = subprocess.run(["git", *arguments], cwd=ROOT, capture_output=True, text=True, check=True)
        return done.stdout.splitlines()

    return [*git("diff", "--name-only", "--merge-base", base), *git("ls-files", "--others", "--exclude-standard")]


if __name__ == "__main__":
    print("\n".join(affected(changed_since(sys.argv[1] if len(sys.argv) > 1 else "main"))))
