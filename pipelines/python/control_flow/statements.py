"""Analysis of a function's statements: assigned variables, and statements that leave them."""

from __future__ import annotations

import ast
import copy
from collections.abc import Iterator, Sequence

RESULT = "__dali_run_result"
"""Name of the variable to which rewritten functions assign their return value, if a branch contains a `return`."""
_SCOPES = (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda, ast.ClassDef)


def _walk(statements: Sequence[ast.AST]) -> Iterator[ast.AST]:
    """Yield all syntax nodes in ``statements``, except those inside nested functions and classes."""
    for node in statements:
        yield node
        if not isinstance(node, _SCOPES):
            yield from _walk(list(ast.iter_child_nodes(node)))


def assigned(statements: Sequence[ast.stmt]) -> set[str]:
    """Return the names of the variables to which ``statements`` assign."""
    names: set[str] = set()
    for node in _walk(statements):
        if isinstance(node, ast.Name) and isinstance(node.ctx, (ast.Store, ast.Del)):
            names.add(node.id)
        elif isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
            names.add(node.name)
        elif isinstance(node, (ast.Import, ast.ImportFrom)):
            names |= {(a.asname or a.name).split(".")[0] for a in node.names}
        elif isinstance(node, ast.ExceptHandler) and node.name:
            names.discard(node.name)
    # variables of comprehensions are local to them
    comprehension_names = {n.id for node in _walk(statements) if isinstance(node, ast.comprehension)
           for n in ast.walk(node.target) if isinstance(n, ast.Name)}  # fmt: skip
    stored = {n.id for node in _walk(statements) if isinstance(node, (ast.Assign, ast.AugAssign, ast.AnnAssign, ast.For,
              ast.NamedExpr, ast.With)) for n in _targets(node)}  # fmt: skip
    return {n for n in names if n not in comprehension_names or n in stored}


def assigned_places(statements: Sequence[ast.stmt]) -> list[ast.Attribute | ast.Subscript]:
    """Return the attributes and items to which ``statements`` assign, such as ``box.name`` or ``box["key"]``, if they
    consist of names and constants only. Parts of something that is itself assigned are left out."""
    changed = assigned(statements)
    targets: dict[str, ast.Attribute | ast.Subscript] = {}
    for node in _walk(statements):
        if not isinstance(node, (ast.Attribute, ast.Subscript)) or not isinstance(node.ctx, ast.Store):
            continue
        if isinstance(node, ast.Subscript) and not isinstance(node.slice, (ast.Constant, ast.Name, ast.UnaryOp)):
            continue
        inside = [n for n in ast.walk(node) if n is not node]
        parts = (ast.Name, ast.Constant, ast.Attribute, ast.Subscript, ast.UnaryOp, ast.unaryop, ast.expr_context)
        if all(isinstance(n, parts) for n in inside) and not any(
            isinstance(n, ast.Name) and n.id in changed for n in inside
        ):
            targets.setdefault(ast.unparse(node), node)
    return [n for n in targets.values() if not any(ast.unparse(p) in targets for p in ast.walk(n) if p is not n
            and isinstance(p, (ast.Attribute, ast.Subscript)))]  # fmt: skip


def _targets(node: ast.AST) -> Iterator[ast.Name]:
    targets = getattr(node, "targets", None) or [getattr(node, "target", None)]
    targets += [i.optional_vars for i in getattr(node, "items", [])]
    for target in targets:
        if target is not None:
            yield from (n for n in ast.walk(target) if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Store))


def declared_elsewhere(statements: Sequence[ast.stmt]) -> set[str]:
    """Return the names that the statements declare as `global` or `nonlocal`."""
    return {n for node in _walk(statements) if isinstance(node, (ast.Global, ast.Nonlocal)) for n in node.names}


def jumps(statements: Sequence[ast.stmt]) -> bool:
    """Return whether the statements contain a `return`, or a `break` or `continue` of a loop around them."""

    def search(nodes: Sequence[ast.AST], in_loop: bool) -> bool:
        for node in nodes:
            if isinstance(node, ast.Return) or (isinstance(node, (ast.Break, ast.Continue)) and not in_loop):
                return True
            if isinstance(node, _SCOPES):
                continue
            inside = in_loop or isinstance(node, (ast.For, ast.While))
            if search(list(ast.iter_child_nodes(node)), inside):
                return True
        return False

    return search(statements, False)


def returns_in_if(body: Sequence[ast.stmt]) -> bool:
    """Return whether an `if` at the top level of the function ``body`` contains a `return`."""
    return any(_has_return([s]) for s in body if isinstance(s, ast.If))


def _has_return(statements: Sequence[ast.stmt]) -> bool:
    return any(isinstance(n, ast.Return) for n in _walk(statements))


def without_returns(body: Sequence[ast.stmt]) -> list[ast.stmt]:
    """Return the statements with `return` replaced by an assignment to the result variable. Statements after an `if`
    with a `return` in one branch move into its other branch."""
    out: list[ast.stmt] = []
    for i, statement in enumerate(body):
        if isinstance(statement, ast.Return):
            value = statement.value or ast.Constant(None)
            out.append(ast.copy_location(ast.Assign([ast.Name(RESULT, ast.Store())], value), statement))
            return out
        if isinstance(statement, ast.If) and _has_return([statement]):
            following = body[i + 1 :]
            then = without_returns([*statement.body, *following])
            otherwise = without_returns([*statement.orelse, *copy.deepcopy(following)])
            out.append(ast.copy_location(ast.If(statement.test, then, otherwise), statement))
            return out
        out.append(statement)
    out.append(ast.Assign([ast.Name(RESULT, ast.Store())], ast.Constant(None), lineno=0))
    return out
