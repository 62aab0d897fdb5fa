"""Rewriter: replaces the conditionals in a function's source by calls of `conditionals.Helper`."""

from __future__ import annotations

import ast
import copy
import itertools
from collections.abc import Sequence
from typing import Any

from .statements import RESULT, assigned, assigned_places, declared_elsewhere, jumps, returns_in_if, without_returns

HELPER = "__dali_run"
"""Variable name under which rewritten functions find the `Helper`."""


class Rewriter(ast.NodeTransformer):
    """AST transformer that replaces conditionals and function calls by calls of `Helper` functions. One instance per
    function."""

    def __init__(self, owner: str = "") -> None:
        """``owner`` is the name of the class if the function is a method, for mangling private names such as
        ``__x``."""
        self._numbers = itertools.count()
        self._owner = owner.lstrip("_")

    def top(self, definition: ast.FunctionDef) -> ast.FunctionDef:
        self._function(definition)
        return definition

    def _function(self, definition: ast.FunctionDef) -> None:
        body = definition.body
        if returns_in_if(body):
            body = [*without_returns(body), ast.Return(_load(RESULT))]
        definition.body = [s for statement in body for s in self._statements(statement)]

    def _statements(self, statement: ast.stmt) -> list[ast.stmt]:
        result = self.visit(statement)
        return result if isinstance(result, list) else [result]

    def visit_FunctionDef(self, node: ast.FunctionDef) -> Any:
        node.decorator_list = [self.visit(d) for d in node.decorator_list]
        node.args = self.visit(node.args)
        self._function(node)
        return node

    def visit_AsyncFunctionDef(self, node: ast.AsyncFunctionDef) -> Any:
        return node

    def visit_ClassDef(self, node: ast.ClassDef) -> Any:
        return node

    def _mangled(self, name: str) -> str:
        private = self._owner and name.startswith("__") and not name.endswith("__")
        return f"_{self._owner}{name}" if private else name

    def visit_Attribute(self, node: ast.Attribute) -> Any:
        node.value = self.visit(node.value)
        node.attr = self._mangled(node.attr)
        return node

    def visit_If(self, node: ast.If) -> Any:
        line, test = node.lineno, self.visit(node.test)
        names = sorted(assigned([*node.body, *node.orelse]) - declared_elsewhere([*node.body, *node.orelse]))
        places = [self._place(p) for p in assigned_places([*node.body, *node.orelse])]
        leaves_loop = jumps([*node.body, *node.orelse])
        body = [s for statement in node.body for s in self._statements(statement)]
        orelse = [s for statement in node.orelse for s in self._statements(statement)]
        if leaves_loop:
            # A break, continue or return leaves the branch: it stays a Python `if`, whose condition must be a Python
            # value.
            return ast.If(test, body, orelse)
        number = next(self._numbers)
        this, branch = f"__dali_run_if{number}", f"__dali_run_branch{number}"
        targets = ast.Tuple([ast.Name(n, ast.Store()) for n in names], ast.Store())
        variables = ast.Call(_load("locals"), [], [])

        def method(name: str, *args: ast.expr) -> ast.Call:
            return ast.Call(ast.Attribute(_load(this), name, ast.Load()), list(args), [])

        conditional_call = ast.Call(
            _helper("conditional"),
            [test, ast.Tuple([ast.Constant(n) for n in names], ast.Load()), ast.Constant(line), *places],
            [],
        )
        restore: list[ast.stmt] = []
        after: list[ast.stmt] = []
        start, merged = method("start", variables), method("merged")
        if names:
            restore.append(ast.Assign([targets], start))
            after.append(ast.Assign([targets], merged))
        else:
            restore.append(ast.Expr(start))
            after.append(ast.Expr(merged))
        choice = ast.If(_load(branch), body, orelse)
        stop: list[ast.stmt] = [ast.Expr(method("stop", ast.Call(_load("locals"), [], [])))]
        loop = ast.For(ast.Name(branch, ast.Store()), _load(this), [*restore, choice, *stop], [])
        statements: list[ast.stmt] = [ast.Assign([ast.Name(this, ast.Store())], conditional_call), loop, *after]
        for s in statements:
            ast.copy_location(s, node)
            ast.fix_missing_locations(s)
        return statements

    def _place(self, target: ast.Attribute | ast.Subscript) -> ast.Call:
        """Return a call that creates the `Place` for the assignment target ``target``."""
        text = ast.unparse(target)
        target_copy = copy.deepcopy(target)
        owner = self.visit(target_copy.value)
        key = (
            target_copy.slice
            if isinstance(target_copy, ast.Subscript)
            else ast.Constant(self._mangled(target_copy.attr))
        )
        kind = "item" if isinstance(target_copy, ast.Subscript) else "attribute"
        find = ast.Lambda(arguments([]), ast.Tuple([owner, key], ast.Load()))
        return ast.Call(_helper("place"), [ast.Constant(text), ast.Constant(kind), find], [])

    def visit_Compare(self, node: ast.Compare) -> Any:
        self.generic_visit(node)
        if len(node.ops) == 1:
            return node
        comparisons: list[ast.expr] = [
            ast.Tuple([ast.Constant(type(op).__name__), ast.Lambda(arguments([]), right)], ast.Load())
            for op, right in zip(node.ops, node.comparators, strict=True)
        ]
        return ast.copy_location(ast.Call(_helper("compare"), [node.left, *comparisons], []), node)

    def visit_BoolOp(self, node: ast.BoolOp) -> Any:
        values = [self.visit(v) for v in node.values]
        name = "and_" if isinstance(node.op, ast.And) else "or_"
        result = values[-1]
        for value in reversed(values[:-1]):
            result = ast.Call(_helper(name), [value, ast.Lambda(arguments([]), result)], [])
        return ast.copy_location(result, node)

    def visit_UnaryOp(self, node: ast.UnaryOp) -> Any:
        node.operand = self.visit(node.operand)
        if isinstance(node.op, ast.Not):
            return ast.copy_location(ast.Call(_helper("not_"), [node.operand], []), node)
        return node

    def visit_IfExp(self, node: ast.IfExp) -> Any:
        test, body, orelse = self.visit(node.test), self.visit(node.body), self.visit(node.orelse)
        branches = [ast.Lambda(arguments([]), body), ast.Lambda(arguments([]), orelse)]
        return ast.copy_location(ast.Call(_helper("choose"), [test, *branches, ast.Constant(node.lineno)], []), node)

    def visit_Call(self, node: ast.Call) -> Any:
        node.args = [self.visit(a) for a in node.args]
        node.keywords = [self.visit(k) for k in node.keywords]
        if isinstance(node.func, ast.Name) and node.func.id in ("super", "locals", "globals", "eval", "exec", "vars"):
            return node
        node.func = ast.copy_location(ast.Call(_helper("call"), [self.visit(node.func)], []), node)
        return node


def arguments(names: Sequence[str]) -> ast.arguments:
    """Return the parameter list of a function with positional parameters ``names``."""
    return ast.arguments(posonlyargs=[], args=[ast.arg(n) for n in names], kwonlyargs=[], kw_defaults=[], defaults=[])


def _load(name: str) -> ast.Name:
    return ast.Name(name, ast.Load())


def _helper(name: str) -> ast.Attribute:
    return ast.Attribute(_load(HELPER), name, ast.Load())
