"""Ratchets: measures of the source that may only fall. `make lint` prints them, and fails above a limit of `LIMITS`.

Whoever lowers a measure lowers its limit in the same commit; nobody raises one. `python -m tests.ratchets NAME` lists
the places that a measure counts.
"""

from __future__ import annotations

import ast
import subprocess
import sys
from collections.abc import Iterator
from functools import cache
from pathlib import Path

ROOT = Path(__file__).parents[1]
FOLDERS = ("cli", "pipelines", "ops", "readers", "writers")

LIMITS = {
    "circles": 0,
    "complex functions": 5,
    "complex loops": 102,
    "long functions": 10,
    "module state": 20,
    "state without a reason": 0,
    "singletons": 11,
}
"""Highest count allowed, per measure. Loops are functions that Numba compiles."""
MAX_LINES = 60
"""Lines of a function, from ``def`` to its end, above which it counts as long."""
MAX_COMPLEXITY = 10
"""Cyclomatic complexity above which a function counts as complex, as ruff's rule C901 computes it."""

_CHANGES = {"add", "append", "appendleft", "clear", "discard", "extend", "insert", "move_to_end", "pop", "popitem",
            "popleft", "remove", "setdefault", "update"}  # fmt: skip
_CONTAINERS = {"Counter", "OrderedDict", "WeakKeyDictionary", "WeakSet", "WeakValueDictionary", "defaultdict", "deque",
               "dict", "list", "set"}  # fmt: skip
_DISPLAYS = (ast.Dict, ast.DictComp, ast.List, ast.ListComp, ast.Set, ast.SetComp)


@cache
def modules() -> dict[str, ast.Module]:
    """Return the syntax trees of the five folders' modules, by path below the root."""
    paths = sorted(path for folder in FOLDERS for path in (ROOT / folder).rglob("*.py"))
    return {path.relative_to(ROOT).as_posix(): ast.parse(path.read_text()) for path in paths}


def circles() -> list[str]:
    """Return the groups of modules that import each other, also inside functions; imports for type checkers alone do
    not count."""
    import grimp

    graph = grimp.build_graph("dali_run", exclude_type_checking_imports=True, cache_dir=None)
    below = {module: graph.find_modules_directly_imported_by(module) for module in graph.modules}
    reached = {module: _reached(below, module) for module in below}
    groups = {frozenset(n for n in reached[m] if m in reached[n]) for m in below if m in reached[m]}
    return sorted(", ".join(sorted(name.removeprefix("dali_run.") for name in group)) for group in groups)


def _reached(below: dict[str, set[str]], start: str) -> set[str]:
    """Return the modules that ``start`` imports, directly or not."""
    found: set[str] = set()
    todo = [start]
    while todo:
        new = below[todo.pop()] - found
        found |= new
        todo += new
    return found


@cache
def _complex() -> list[str]:
    options = ("--select", "C901", "--config", f"lint.mccabe.max-complexity={MAX_COMPLEXITY}", "--output-format")
    command = (str(Path(sys.executable).with_name("ruff")), "check", "--no-cache", *options, "concise", *FOLDERS)
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    return [line for line in done.stdout.splitlines() if "C901" in line]


def complex_functions() -> list[str]:
    """Return the functions above `MAX_COMPLEXITY` that Numba does not compile."""
    return [line for line in _complex() if _place(line) not in _loops()]


def complex_loops() -> list[str]:
    """Return the functions above `MAX_COMPLEXITY` that Numba compiles."""
    return [line for line in _complex() if _place(line) in _loops()]


def _place(line: str) -> str:
    """Return the path and the number in a line ``path:number:...``."""
    return ":".join(line.split(":")[:2])


@cache
def _loops() -> set[str]:
    """Return path and line of each function that Numba compiles: those in modules ``*_cpu.py``, and with its
    decorators."""
    return {f"{path}:{node.lineno}" for path, node in _functions() if path.endswith("_cpu.py")} | {
        f"{path}:{node.lineno}"
        for path, node in _functions()
        if any("numba" in ast.unparse(decorator) for decorator in node.decorator_list)
    }


def _functions() -> Iterator[tuple[str, ast.FunctionDef]]:
    """Yield all functions, with the paths of their modules."""
    for path, tree in modules().items():
        yield from ((path, node) for node in ast.walk(tree) if isinstance(node, ast.FunctionDef))


def long_functions() -> list[str]:
    """Return the functions above `MAX_LINES` that Numba does not compile."""
    return [
        f"{path}:{node.lineno}: {node.name} ({node.end_lineno - node.lineno + 1} lines)"
        for path, node in _functions()
        if f"{path}:{node.lineno}" not in _loops() and node.end_lineno and node.end_lineno - node.lineno >= MAX_LINES
    ]


def module_state() -> list[str]:
    """Return the names of modules whose values functions change: containers, and names that are declared global."""
    return [f"{path}: {name}" for path, tree in modules().items() for name in sorted(changed(tree))]


def state_without_a_reason() -> list[str]:
    """Return the names of `module_state` whose docstring is missing: it says why the whole process shares the value."""
    found = []
    for path, tree in modules().items():
        if names := changed(tree):
            told = {name for name, after in zip(tree.body, tree.body[1:], strict=False) if _is_text(after)
                    for name in _bound(name)}  # fmt: skip
            found += [f"{path}: {name}" for name in sorted(names - told)]
    return found


def singletons() -> list[str]:
    """Return the names of modules that are bound to an object of a class of the module which changes: state that is
    guarded by its class."""
    return [
        f"{path}: {name}"
        for path, tree in modules().items()
        for node in tree.body
        if isinstance(node, ast.Assign) and isinstance(node.value, ast.Call) and isinstance(node.value.func, ast.Name)
        for kind in tree.body
        if isinstance(kind, ast.ClassDef) and kind.name == node.value.func.id and not node.value.args
        for name in _bound(node)
        if _changes(kind) or any(_is_set(n, name) for n in ast.walk(tree))
    ]


def _changes(kind: ast.ClassDef) -> bool:
    """Return whether methods of a class, other than ``__init__``, change its objects."""
    methods = [n for n in kind.body if isinstance(n, ast.FunctionDef) and n.name != "__init__"]
    return any(_is_set(node, "self") for method in methods for node in ast.walk(method))


def _is_set(node: ast.AST, name: str) -> bool:
    """Return whether a statement or call sets an attribute of the object ``name``, or fills one."""
    targets = node.targets if isinstance(node, ast.Assign) else [node.target] if isinstance(node, ast.AugAssign) else []
    places = [t for target in targets for t in (target.elts if isinstance(target, ast.Tuple) else [target])]
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr in _CHANGES:
        places = [node.func.value]
    of = [place.value if isinstance(place, ast.Subscript) else place for place in places]
    return any(isinstance(p, ast.Attribute) and isinstance(p.value, ast.Name) and p.value.id == name for p in of)


def _bound(node: ast.stmt) -> list[str]:
    """Return the names that an assignment binds."""
    targets = node.targets if isinstance(node, ast.Assign) else [node.target] if isinstance(node, ast.AnnAssign) else []
    return [target.id for target in targets if isinstance(target, ast.Name)]


def _is_text(node: ast.stmt) -> bool:
    return isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str)


def changed(tree: ast.Module) -> set[str]:
    """Return the names of one module that its functions change: containers that they fill, and names that they declare
    global."""
    containers = set(_containers(tree))
    found: set[str] = set()
    for function in (node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)):
        nodes = list(ast.walk(function))
        declared = {name for node in nodes if isinstance(node, ast.Global) for name in node.names}
        bound = {n.id for n in nodes if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Store)} - declared
        bound |= {n.arg for n in nodes if isinstance(n, ast.arg)}
        found |= declared | {name for node in nodes for name in _filled(node) if name in containers - bound}
    return found


def _containers(tree: ast.Module) -> Iterator[str]:
    """Yield the names that a module binds to containers."""
    for node in tree.body:
        if isinstance(node, ast.Assign | ast.AnnAssign) and node.value is not None:
            kind = node.value.func if isinstance(node.value, ast.Call) else None
            kind = kind.value if isinstance(kind, ast.Subscript) else kind
            if isinstance(node.value, _DISPLAYS) or (kind and ast.unparse(kind).rpartition(".")[2] in _CONTAINERS):
                yield from _bound(node)


def _filled(node: ast.AST) -> Iterator[str]:
    """Yield the names whose items this statement or call sets, adds or removes."""
    places: list[ast.expr] = []
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr in _CHANGES:
        places = [node.func.value]
    elif isinstance(node, ast.Assign | ast.Delete):
        places = [target.value for target in node.targets if isinstance(target, ast.Subscript)]
    elif isinstance(node, ast.AugAssign | ast.AnnAssign) and isinstance(node.target, ast.Subscript):
        places = [node.target.value]
    yield from (place.id for place in places if isinstance(place, ast.Name))


MEASURES = {
    "circles": circles,
    "complex functions": complex_functions,
    "complex loops": complex_loops,
    "long functions": long_functions,
    "module state": module_state,
    "state without a reason": state_without_a_reason,
    "singletons": singletons,
}


def main(names: list[str]) -> int:
    """Print each measure and its limit, or the places that the measures ``names`` count. Return 1 above a limit."""
    for name in names:
        print("\n".join(MEASURES[name]()))
    counts = {name: len(MEASURES[name]()) for name in LIMITS if not names}
    for name, count in counts.items():
        print(f"{name}: {count} of {LIMITS[name]}")
    above = [name for name, count in counts.items() if count > LIMITS[name]]
    for name in above:
        print(f"{name}: above the limit; `python -m tests.ratchets '{name}'` lists them", file=sys.stderr)
    return bool(above)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
