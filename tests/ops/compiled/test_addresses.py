"""Arrays that compiled loops use by their address live until the last use of that address.

Numba frees a local array after the last statement that names it. A loop that goes on with the array's address reads and
writes freed memory: results that are wrong now and then, and crashes elsewhere.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]
MODULES = sorted(p for folder in ("ops", "readers", "writers") for p in (ROOT / folder).rglob("*_cpu.py"))


def names(tree: ast.AST) -> set[str]:
    return {n.id for n in ast.walk(tree) if isinstance(n, ast.Name)}


def addressed(tree: ast.AST) -> Iterator[ast.Name]:
    """The ``x`` of every ``x.ctypes.data``."""
    for node in ast.walk(tree):
        match node:
            case ast.Attribute(value=ast.Attribute(value=ast.Name() as name, attr="ctypes"), attr="data"):
                yield name


def is_distance(value: ast.expr, addresses: set[str]) -> bool:
    """Whether an expression is a difference of addresses."""
    if not (isinstance(value, ast.BinOp) and isinstance(value.op, ast.Sub)):
        return False
    return any(True for _ in addressed(value.right)) or bool(names(value.right) & addresses)


def addresses_of(array: str, function: ast.FunctionDef) -> set[str]:
    """Variables that hold the address of a local array, or one computed from it."""
    found: set[str] = set()
    while True:
        before = len(found)
        for node in (n for n in ast.walk(function) if isinstance(n, ast.Assign | ast.AugAssign)):
            taken = array in {n.id for n in addressed(node.value)} or names(node.value) & found
            if taken and not is_distance(node.value, found):
                targets = node.targets if isinstance(node, ast.Assign) else [node.target]
                found |= set().union(*map(names, targets)) - {array}
        if len(found) == before:
            return found


def freed_too_early(source: str) -> list[str]:
    """Local arrays of functions whose address is used in later lines than their name."""
    wrong = []
    for function in (n for n in ast.walk(ast.parse(source)) if isinstance(n, ast.FunctionDef)):
        parameters = {a.arg for a in function.args.args}
        by_address = list(addressed(function))
        ignored = {id(n) for n in by_address}
        for array in {n.id for n in by_address} - parameters:
            variables = addresses_of(array, function)
            loads = [n for n in ast.walk(function) if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Load)]
            named = max((n.lineno for n in loads if n.id == array and id(n) not in ignored), default=0)
            used = max(
                (n.lineno for n in loads if n.id in variables or (id(n) in ignored and n.id == array)), default=0
            )
            bodies = [n for n in ast.walk(function) if isinstance(n, ast.For | ast.While)]
            # an array made before a loop that names it lives as long as the loop
            lives = [n for n in bodies if n.lineno <= named and used <= (n.end_lineno or 0) and not makes(n, array)]
            if named < used and not lives:
                wrong.append(f"{function.name}: {array} is freed after line {named}, its address used in line {used}")
    return wrong


def makes(loop: ast.AST, array: str) -> bool:
    return any(isinstance(n, ast.Name) and n.id == array and isinstance(n.ctx, ast.Store) for n in ast.walk(loop))


@pytest.mark.parametrize("path", MODULES, ids=lambda p: str(p.relative_to(ROOT)))
def test_no_loop_uses_the_address_of_a_freed_array(path: Path) -> None:
    assert not freed_too_early(path.read_text())


SHORT = """
def f(n):
    memory = np.empty(n, np.int32)
    base = memory.ctypes.data
    place = base + 4
    for k in range(n):
        put(place + k){last}
"""


@pytest.mark.parametrize(("last", "count"), [("", 1), ("\n    return keep(memory)", 0)])
def test_the_rule_finds_such_a_loop(last: str, count: int) -> None:
    assert len(freed_too_early(SHORT.format(last=last))) == count
