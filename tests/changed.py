"""The tests of what differs from another state of the code: ``python -m tests.changed [BASE]`` prints their files.

Tests of a changed file are those of its room, in the same folder below tests/, those whose imports name the file or a
module that imports it, and those that reach a changed function, if that was recorded (`tests.reached`). Modules import
the CUDA sources that they name. `make test-changed` runs the tests.
"""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from collections.abc import Iterable, Iterator
from functools import cache
from pathlib import Path, PurePosixPath

from tests.reached import RECORDS, functions_at, reaching

ROOT = Path(__file__).parents[1]
FOLDERS = ("cli", "pipelines", "ops", "readers", "writers")
MAX_IMPORTERS = 20
"""Importers up to which the tests of a module's importers are taken: more of them concern nearly all tests."""


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
            rooms = [room for room in path.parents if room.parts[1:]] or [path.parent]
            by_room = ([test for test in texts if PurePosixPath(test).parent == "tests" / room] for room in rooms)
            found.update(next(filter(None, by_room), []))  # a room may have its tests in the room above
        if path.parts[0] in (*FOLDERS, "dali_run", "tests"):
            above = importers(name, root)
            if len(above) > MAX_IMPORTERS:
                print(f"{len(above)} modules import {name}: only `make test` runs their tests", file=sys.stderr)
                above = []
            found.update(_tests_that_name(path, texts))
            for module in above:
                found.update({f"tests/{module.parent}/test_{module.stem}.py"} & texts.keys())
                if len(importers(str(module), root)) <= MAX_IMPORTERS:
                    found.update(_tests_that_name(module, texts))
    return sorted(found)


def _tests_that_name(path: PurePosixPath, texts: dict[str, str]) -> Iterator[str]:
    module = ".".join(path.with_suffix("").parts[-2:]).removesuffix(".__init__")
    parent, _, last = module.rpartition(".")
    named = re.compile(rf"\b{re.escape(module)}\b|\b{re.escape(parent)} import .*\b{re.escape(last)}\b")
    return (test for test, text in texts.items() if named.search(text))


def importers(name: str, root: Path = ROOT) -> list[PurePosixPath]:
    """Modules of the five folders that import the file ``name``, or name it if it is a CUDA source."""
    path = PurePosixPath(name)
    if path.suffix == ".py":
        module = path.parent if path.stem == "__init__" else path.with_suffix("")
        return [PurePosixPath(p) for p, imported in _imports(root).items() if module.as_posix() in imported]
    including = [path.name]  # a header is named by the sources that include it, directly or not
    for header in including:
        pattern = f'#include "{header}"'
        found = [p.name for p in sorted((root / path).parent.glob("*.cu*")) if pattern in p.read_text()]
        including += [source for source in found if source not in including]
    sources = re.compile("|".join(rf'"{re.escape(source)}"' for source in including))
    texts = {p.relative_to(root): p.read_text() for f in FOLDERS for p in sorted((root / f).rglob("*.py"))}
    return [PurePosixPath(p.as_posix()) for p, text in texts.items() if sources.search(text)]


@cache
def _imports(root: Path) -> dict[str, set[str]]:
    """Names that each module of the five folders imports, as paths without a suffix. `Kernels` and `import_module`
    import what their first argument names."""
    return {
        path.relative_to(root).as_posix(): set(_names(path.relative_to(root), ast.parse(path.read_text())))
        for folder in FOLDERS
        for path in sorted((root / folder).rglob("*.py"))
    }


def _names(path: Path, tree: ast.AST) -> Iterator[str]:
    for node in ast.walk(tree):
        relative, names = "", []
        if isinstance(node, ast.ImportFrom):
            relative, names = "." * node.level + (node.module or ""), [alias.name for alias in node.names]
        elif isinstance(node, ast.Call) and node.args and isinstance(node.args[0], ast.Constant):
            called = node.func.id if isinstance(node.func, ast.Name) else ""
            relative = str(node.args[0].value) if called in ("Kernels", "import_module") else ""
        if relative.startswith("."):
            inside = relative.lstrip(".")
            base = path.parents[len(relative) - len(inside) - 1].joinpath(*filter(None, inside.split(".")))
            yield from (base.as_posix(), *((base / name).as_posix() for name in names))


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
        print("which tests reach a function was not recorded (make reached): rooms and imports count", file=sys.stderr)
    print("\n".join(dict.fromkeys([*tests, *(test for test in reached if (ROOT / test).exists())])))
