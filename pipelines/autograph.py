"""Autograph: `if`, `and`, `or` and `not` on DataNodes, by rewriting the source of the functions that use them.

An `if` becomes a loop over its branches: one pass for a Python condition, two for a DataNode, each in a branch of the
graph with the variables as they were before; afterwards what both branches assigned is merged, sample by sample.
"""

from __future__ import annotations

import ast
import copy
import functools
import inspect
import itertools
import operator
import textwrap
import types
import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Annotated, Any, TypeVar

from ..ops.base import Arg, Operator, Spec
from ..ops.batch import Batch
from ..ops.context import Context
from ..ops.errors import SpecError
from ..ops.types import DALIDataType
from .data_node import (
    DataNode,
    EagerBuilder,
    ScalarConstant,
    apply,
    as_node,
    calculate,
    constant,
    current_builder,
    one,
)
from .graph import Edge, Graph
from .prune import renumber

F = TypeVar("F", bound=Callable[..., Any])
_KEPT = "_dali_run_do_not_convert"
_HELPER = "__dali_run"
_RESULT = "__dali_run_result"
_DEFINITION = "__dali_run_definition"
_converted: weakref.WeakKeyDictionary[Any, Any] = weakref.WeakKeyDictionary()


def do_not_convert(func: F) -> F:
    """Mark a function that works on no DataNodes: its source stays as it is."""
    setattr(func, _KEPT, True)
    return func


# -- the operator behind conditions -----------------------------------------------------------------------------------


class Condition(Operator, name="_conditional.condition"):
    """The condition of a conditional as truth values."""

    what: Annotated[str, Arg("where it stands")] = "if"

    def infer(self, *specs: Spec) -> Spec:
        data = specs[0]
        if data.shape is not None and len(data.shape) > 0:
            raise SpecError(f"the condition of `{self.what}` must be a scalar (0 dimensions), got {data}; index it "
                            "first: x[0]")  # fmt: skip
        if self.what in ("and", "or") and data.dtype not in (None, DALIDataType.BOOL):
            raise SpecError(f"`{self.what}` takes bool, got {data}; compare it first, or cast it to BOOL")
        return Spec((), DALIDataType.BOOL)

    def cpu(self, ctx: Context, data: Batch) -> Batch:
        if data.ndim:
            raise SpecError(f"the condition of `{self.what}` must be a scalar (0 dimensions), got samples of "
                            f"{data.ndim} dimensions; index it first: x[0]")  # fmt: skip
        if self.what in ("and", "or") and data.dtype.kind != "b":
            raise SpecError(f"`{self.what}` takes bool, got {data.dtype}; compare it first, or cast it to BOOL")
        return Batch.from_dense(data.data[data.offsets] != 0, "", data.samples)


def _condition(node: DataNode, what: str) -> DataNode:
    if node.device == "gpu":
        raise SpecError(f"the condition of `{what}` must be on the CPU, got {node}")
    return one(apply(Condition, [node], {"what": what}))


def without_conditions(graph: Graph) -> Graph:
    """The graph with what goes into conditions in their place, as YAML has it: there any number is a condition."""
    through = {n.id: n.inputs[0] for n in graph.nodes if isinstance(n.op, Condition)}

    def past(edge: Edge) -> Edge:
        while edge.node in through:
            edge = through[edge.node]
        return edge

    kept = [
        replace(
            n,
            inputs=tuple(map(past, n.inputs)),
            args={k: past(e) for k, e in n.args.items()},
            scope=tuple((past(e), branch) for e, branch in n.scope),
            samples_of=None if n.samples_of is None else past(n.samples_of),
        )
        for n in graph.nodes
        if n.id not in through
    ]
    return renumber(kept, {k: past(e) for k, e in graph.outputs.items()})


# -- at run time of the definition ------------------------------------------------------------------------------------


class Undefined:
    """A variable that has no value, or one in only one branch of a conditional, or values that cannot be merged. Only
    who uses it learns of it."""

    def __init__(self, why: str, error: type[Exception] = UnboundLocalError) -> None:
        self._why = why
        self._error = error

    def _refuse(self, *_: Any, **__: Any) -> Any:
        raise self._error(self._why)

    __call__ = __bool__ = __iter__ = __getitem__ = __len__ = __add__ = __radd__ = __sub__ = __rsub__ = _refuse
    __mul__ = __rmul__ = __truediv__ = __rtruediv__ = __lt__ = __gt__ = __le__ = __ge__ = __array__ = _refuse

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return self._refuse()


_MISSING = object()


class Place:
    """What a branch assigns to that is no variable: ``box["key"]``, ``box.name``."""

    def __init__(self, text: str, kind: str, find: Callable[[], tuple[Any, Any]]) -> None:
        self.text = text
        self._items = kind == "item"
        try:
            self._owner, self._key = find()
        except Exception:  # made in the branch itself, where it needs no restoring
            self._owner = _MISSING

    def get(self) -> Any:
        """What is there now; `_MISSING` where nothing is."""
        if self._owner is _MISSING:
            return _MISSING
        try:
            return self._owner[self._key] if self._items else getattr(self._owner, self._key)
        except (LookupError, AttributeError):
            return _MISSING

    def set(self, value: Any) -> None:
        """Put ``value`` there, or take away what is there."""
        if self._owner is _MISSING or self.get() is value:
            return
        if value is _MISSING:
            (operator.delitem if self._items else delattr)(self._owner, self._key)
        elif self._items:
            self._owner[self._key] = value
        else:
            setattr(self._owner, self._key, value)


class Conditional:
    """One `if`: its passes, and the variables before, in and after them."""

    def __init__(self, test: Any, names: Sequence[str], line: int, *places: Place) -> None:
        self._places = places if isinstance(test, DataNode) else ()
        self._found = [p.get() for p in self._places]
        self._left: list[list[Any]] = []
        self._names = names
        self._line = line
        self._node = _condition(test, "if") if isinstance(test, DataNode) else None
        self._truth = None if self._node is not None else bool(test)
        self._before: dict[str, Any] | None = None
        self._ends: list[dict[str, Any]] = []

    def __iter__(self) -> Iterator[bool]:
        if self._node is None:
            assert self._truth is not None
            yield self._truth
            return
        builder = current_builder()
        edge = _edge(self._node)
        for branch in (True, False):
            builder.enter(edge, branch)
            yield branch
            builder.leave()

    def start(self, variables: Mapping[str, Any]) -> tuple[Any, ...]:
        """The variables at the start of a pass."""
        for place, value in zip(self._places, self._found, strict=True):
            place.set(value)
        if self._before is None:
            why = f"has no value before the conditional in line {self._line}"
            self._before = {n: variables.get(n, Undefined(f"variable {n!r} {why}")) for n in self._names}
        return tuple(self._before.values())

    def stop(self, variables: Mapping[str, Any]) -> None:
        """Remember the variables at the end of a pass."""
        self._ends.append({n: variables[n] for n in self._names})
        self._left.append([p.get() for p in self._places])

    def merged(self) -> tuple[Any, ...]:
        """The variables after the conditional."""
        if self._node is None:
            return tuple(self._ends[0].values())
        assert self._before is not None
        then, otherwise = self._ends
        for place, a, b in zip(self._places, *self._left, strict=True):
            if a is not _MISSING or b is not _MISSING:
                a, b = (Undefined("") if v is _MISSING else v for v in (a, b))
                place.set(self._merge(place.text, a, b))
        return tuple(self._merge(n, then[n], otherwise[n]) for n in self._names)

    def _merge(self, name: str, then: Any, otherwise: Any) -> Any:
        if then is otherwise:
            return then
        if isinstance(then, Undefined) or isinstance(otherwise, Undefined):
            return Undefined(f"variable {name!r} gets a value in only one branch of the conditional in line "
                             f"{self._line}; give it one in both, or before")  # fmt: skip
        try:
            return self._joined(then, otherwise)
        except (SpecError, TypeError) as e:
            what = "what is returned" if name == _RESULT else repr(name)
            return Undefined(f"{what} after the conditional in line {self._line}: {e}", SpecError)

    def _joined(self, then: Any, otherwise: Any) -> Any:
        if isinstance(then, (list, tuple)) and isinstance(otherwise, (list, tuple)):
            if type(then) is not type(otherwise) or len(then) != len(otherwise):
                raise SpecError(f"it has another structure in each branch: {type(then).__name__} of {len(then)} and "
                                f"{type(otherwise).__name__} of {len(otherwise)}")  # fmt: skip
            return type(then)(self._joined(a, b) for a, b in zip(then, otherwise, strict=True))
        if isinstance(then, dict) and isinstance(otherwise, dict):
            if then.keys() != otherwise.keys():
                raise SpecError("it has other keys in each branch")
            return {k: self._joined(then[k], otherwise[k]) for k in then}
        if not _is_data(then) and not _is_data(otherwise) and _are_equal(then, otherwise):
            return then
        return merge(self._node, then, otherwise)


def _is_data(value: Any) -> bool:
    return isinstance(value, DataNode)


def _are_equal(a: Any, b: Any) -> bool:
    try:
        return a is b or (type(a) is type(b) and bool(a == b))
    except (TypeError, ValueError, RuntimeError):  # arrays are equal, or not, element by element
        return False


def _edge(node: DataNode) -> Edge:
    builder = current_builder()
    return node.edge if node.builder is builder else builder.adopt(node.builder, node.edge)


def merge(predicate: DataNode | None, then: Any, otherwise: Any) -> DataNode:
    """``then`` for the samples where the predicate is true, ``otherwise`` for the others."""
    assert predicate is not None
    builder = current_builder()
    ends = [as_node(v) for v in (then, otherwise)]
    devices = {n.device for n in ends}
    if len(devices) > 1:
        ends = [n.gpu() for n in ends]
    edge = builder.merge(_edge(predicate), _edge(ends[0]), _edge(ends[1]))
    return _made(edge, ends[0].device)


def _made(edge: Edge, device: str) -> DataNode:
    builder = current_builder()
    return builder.ran(edge, device) if isinstance(builder, EagerBuilder) else DataNode(builder, edge, device)


def _short_circuit(what: str, left: Any, right: Callable[[], Any]) -> Any:
    if not isinstance(left, DataNode):
        return (left and right()) if what == "and" else (left or right())
    condition = _condition(left, what)
    shortcut = constant(what == "or")
    builder = current_builder()
    builder.enter(_edge(condition), what == "and")
    value = right()
    if isinstance(value, DataNode):
        value = _condition(value, what)
    elif isinstance(value, (bool, ScalarConstant)):
        value = constant(bool(getattr(value, "value", value)))
    else:
        raise TypeError(f"`{what}` takes bool, got {value!r}")
    builder.leave()
    return merge(condition, value, shortcut) if what == "and" else merge(condition, shortcut, value)


_COMPARISONS: dict[str, Callable[[Any, Any], Any]] = {
    "Lt": operator.lt, "LtE": operator.le, "Gt": operator.gt, "GtE": operator.ge, "Eq": operator.eq,
    "NotEq": operator.ne, "Is": operator.is_, "IsNot": operator.is_not, "In": lambda a, b: a in b,
    "NotIn": lambda a, b: a not in b,
}  # fmt: skip


class Helper:
    """What rewritten functions call."""

    conditional = Conditional
    place = Place

    @staticmethod
    def compare(left: Any, *rest: tuple[str, Callable[[], Any]]) -> Any:
        """``left < b <= c``, where ``rest`` is ``("Lt", lambda: b), ("LtE", lambda: c)``: ``left < b and b <= c``."""
        (name, right), *others = rest
        value = right()
        first = _COMPARISONS[name](left, value)
        return Helper.and_(first, lambda: Helper.compare(value, *others)) if others else first

    @staticmethod
    def and_(left: Any, right: Callable[[], Any]) -> Any:
        """``left and right``."""
        return _short_circuit("and", left, right)

    @staticmethod
    def or_(left: Any, right: Callable[[], Any]) -> Any:
        """``left or right``."""
        return _short_circuit("or", left, right)

    @staticmethod
    def not_(value: Any) -> Any:
        """``not value``."""
        return calculate("not {}", _condition(value, "not")) if isinstance(value, DataNode) else not value

    @staticmethod
    def choose(test: Any, then: Callable[[], Any], otherwise: Callable[[], Any], line: int) -> Any:
        """``then if test else otherwise``."""
        if not isinstance(test, DataNode):
            return then() if test else otherwise()
        conditional = Conditional(test, ("result",), line)
        for branch in conditional:
            conditional.start({})
            conditional.stop({"result": then() if branch else otherwise()})
        return conditional.merged()[0]

    @staticmethod
    def call(function: Any) -> Any:
        """The function to call in the place of ``function``."""
        return converted_callee(function)


# -- which functions are rewritten ------------------------------------------------------------------------------------


def converted(function: Callable[..., Any]) -> Callable[..., Any]:
    """``function`` with conditionals on DataNodes. Raises SpecError where its source cannot be found."""
    if getattr(function, _KEPT, False):
        return function
    try:
        made: Callable[..., Any] = _rewrite(function)
    except (OSError, TypeError, IndentationError) as e:
        raise SpecError(f"the source of {function.__name__}() cannot be found ({e}), which enable_conditionals needs; "
                        "define the function in a file") from None  # fmt: skip
    return made


def converted_callee(function: Any) -> Any:
    """What a rewritten function calls instead of ``function``: rewritten, if it is the user's."""
    bound = isinstance(function, types.MethodType)
    plain = function.__func__ if bound else function
    if not isinstance(plain, types.FunctionType) or not _is_users(plain):
        return function
    try:
        made = _rewrite(plain)
    except (OSError, TypeError, SyntaxError):
        return function
    return types.MethodType(made, function.__self__) if bound else made


def _is_users(function: types.FunctionType) -> bool:
    if getattr(function, _KEPT, False) or getattr(function, "_is_pipeline_def", False):
        return False
    if _HELPER in function.__code__.co_freevars or function.__name__ == "<lambda>":
        return False
    module = function.__module__ or ""
    here = __name__.split(".")[0]
    if module.split(".")[0] in (here, "numpy", "torch", "jax", "functools", "contextlib", "typing"):
        return False
    path = function.__code__.co_filename
    return "site-packages" not in path and not path.startswith(("<frozen", _stdlib()))


@functools.cache
def _stdlib() -> str:
    import sysconfig

    return sysconfig.get_paths()["stdlib"]


def _rewrite(function: Any) -> Any:
    if function in _converted:
        return _converted[function]
    code = function.__code__
    lines, first = inspect.getsourcelines(code)  # of the function itself, not of what it wraps
    tree = ast.parse(textwrap.dedent("".join(lines)))
    definition = tree.body[0]
    if not isinstance(definition, ast.FunctionDef):
        raise TypeError("it is no plain function")
    definition.decorator_list = []
    definition.name = _DEFINITION  # its own name must go on to mean what it means outside
    owner = function.__qualname__.split(".")[-2:-1]
    definition = _Rewriter(owner[0] if owner and owner[0] != "<locals>" else "").top(definition)
    ast.increment_lineno(definition, first - 1)
    factory = ast.FunctionDef(
        name="__factory",
        args=_arguments([*code.co_freevars, _HELPER]),
        body=[definition],
        decorator_list=[],
    )
    factory.type_params = []  # type: ignore[attr-defined]  # Python 3.12 asks for it
    module = ast.fix_missing_locations(ast.Module([factory], []))
    compiled = compile(module, code.co_filename, "exec")
    outer = next(c for c in compiled.co_consts if isinstance(c, types.CodeType))
    inner = next(c for c in outer.co_consts if isinstance(c, types.CodeType) and c.co_name == _DEFINITION)
    cells = dict(zip(code.co_freevars, function.__closure__ or (), strict=True)) | {_HELPER: types.CellType(Helper)}
    inner = inner.replace(co_name=code.co_name)
    made = types.FunctionType(inner, function.__globals__, function.__name__, function.__defaults__,
                              tuple(cells[n] for n in inner.co_freevars))  # fmt: skip
    made.__kwdefaults__ = function.__kwdefaults__
    made.__doc__, made.__module__, made.__qualname__ = function.__doc__, function.__module__, function.__qualname__
    _converted[function] = made
    return made


def _arguments(names: Sequence[str]) -> ast.arguments:
    return ast.arguments(posonlyargs=[], args=[ast.arg(n) for n in names], kwonlyargs=[], kw_defaults=[], defaults=[])


# -- the rewriting ----------------------------------------------------------------------------------------------------

_SCOPES = (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda, ast.ClassDef)


class _Rewriter(ast.NodeTransformer):
    def __init__(self, owner: str = "") -> None:
        """``owner`` is the class of a method, for its private names."""
        self._numbers = itertools.count()
        self._owner = owner.lstrip("_")

    def top(self, definition: ast.FunctionDef) -> ast.FunctionDef:
        self._function(definition)
        return definition

    def _function(self, definition: ast.FunctionDef) -> None:
        body = definition.body
        if _returns_in_if(body):
            body = [*_without_returns(body), ast.Return(_load(_RESULT))]
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

    def visit_Lambda(self, node: ast.Lambda) -> Any:
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
        names = sorted(_assigned([*node.body, *node.orelse]) - _declared_elsewhere([*node.body, *node.orelse]))
        places = [self._place(p) for p in _places([*node.body, *node.orelse])]
        leaves_loop = _jumps([*node.body, *node.orelse])
        body = [s for statement in node.body for s in self._statements(statement)]
        orelse = [s for statement in node.orelse for s in self._statements(statement)]
        if leaves_loop:
            # break, continue or return out of the branch: it stays a Python `if`, whose condition must be Python's too
            return ast.If(test, body, orelse)
        number = next(self._numbers)
        this, branch = f"__dali_run_if{number}", f"__dali_run_branch{number}"
        targets = ast.Tuple([ast.Name(n, ast.Store()) for n in names], ast.Store())
        variables = ast.Call(_load("locals"), [], [])

        def method(name: str, *args: ast.expr) -> ast.Call:
            return ast.Call(ast.Attribute(_load(this), name, ast.Load()), list(args), [])

        made = ast.Call(
            ast.Attribute(_load(_HELPER), "conditional", ast.Load()),
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
        statements: list[ast.stmt] = [ast.Assign([ast.Name(this, ast.Store())], made), loop, *after]
        for s in statements:
            ast.copy_location(s, node)
            ast.fix_missing_locations(s)
        return statements

    def _place(self, target: ast.Attribute | ast.Subscript) -> ast.Call:
        """The `Place` that ``target`` assigns to."""
        text = ast.unparse(target)
        found = copy.deepcopy(target)
        owner = self.visit(found.value)
        key = found.slice if isinstance(found, ast.Subscript) else ast.Constant(self._mangled(found.attr))
        kind = "item" if isinstance(found, ast.Subscript) else "attribute"
        find = ast.Lambda(_arguments([]), ast.Tuple([owner, key], ast.Load()))
        return ast.Call(_helper("place"), [ast.Constant(text), ast.Constant(kind), find], [])

    def visit_Compare(self, node: ast.Compare) -> Any:
        self.generic_visit(node)
        if len(node.ops) == 1:
            return node
        rest: list[ast.expr] = [
            ast.Tuple([ast.Constant(type(op).__name__), ast.Lambda(_arguments([]), right)], ast.Load())
            for op, right in zip(node.ops, node.comparators, strict=True)
        ]
        return ast.copy_location(ast.Call(_helper("compare"), [node.left, *rest], []), node)

    def visit_BoolOp(self, node: ast.BoolOp) -> Any:
        values = [self.visit(v) for v in node.values]
        name = "and_" if isinstance(node.op, ast.And) else "or_"
        result = values[-1]
        for value in reversed(values[:-1]):
            result = ast.Call(_helper(name), [value, ast.Lambda(_arguments([]), result)], [])
        return ast.copy_location(result, node)

    def visit_UnaryOp(self, node: ast.UnaryOp) -> Any:
        node.operand = self.visit(node.operand)
        if isinstance(node.op, ast.Not):
            return ast.copy_location(ast.Call(_helper("not_"), [node.operand], []), node)
        return node

    def visit_IfExp(self, node: ast.IfExp) -> Any:
        test, body, orelse = self.visit(node.test), self.visit(node.body), self.visit(node.orelse)
        branches = [ast.Lambda(_arguments([]), body), ast.Lambda(_arguments([]), orelse)]
        return ast.copy_location(ast.Call(_helper("choose"), [test, *branches, ast.Constant(node.lineno)], []), node)

    def visit_Call(self, node: ast.Call) -> Any:
        node.args = [self.visit(a) for a in node.args]
        node.keywords = [self.visit(k) for k in node.keywords]
        if isinstance(node.func, ast.Name) and node.func.id in ("super", "locals", "globals", "eval", "exec", "vars"):
            return node
        node.func = ast.copy_location(ast.Call(_helper("call"), [self.visit(node.func)], []), node)
        return node


def _load(name: str) -> ast.Name:
    return ast.Name(name, ast.Load())


def _helper(name: str) -> ast.Attribute:
    return ast.Attribute(_load(_HELPER), name, ast.Load())


def _walk(statements: Sequence[ast.AST]) -> Iterator[ast.AST]:
    """All nodes, without what stands inside functions and classes."""
    for node in statements:
        yield node
        if not isinstance(node, _SCOPES):
            yield from _walk(list(ast.iter_child_nodes(node)))


def _assigned(statements: Sequence[ast.stmt]) -> set[str]:
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
    # variables of comprehensions are their own
    own = {n.id for node in _walk(statements) if isinstance(node, ast.comprehension)
           for n in ast.walk(node.target) if isinstance(n, ast.Name)}  # fmt: skip
    stored = {n.id for node in _walk(statements) if isinstance(node, (ast.Assign, ast.AugAssign, ast.AnnAssign, ast.For,
              ast.NamedExpr, ast.With)) for n in _targets(node)}  # fmt: skip
    return {n for n in names if n not in own or n in stored}


def _places(statements: Sequence[ast.stmt]) -> list[ast.Attribute | ast.Subscript]:
    """What is assigned to among the statements besides variables, with names and constants as keys; without what
    belongs to something that is assigned itself, and is merged with it."""
    changed = _assigned(statements)
    found: dict[str, ast.Attribute | ast.Subscript] = {}
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
            found.setdefault(ast.unparse(node), node)
    return [n for n in found.values() if not any(ast.unparse(p) in found for p in ast.walk(n) if p is not n
            and isinstance(p, (ast.Attribute, ast.Subscript)))]  # fmt: skip


def _targets(node: ast.AST) -> Iterator[ast.Name]:
    targets = getattr(node, "targets", None) or [getattr(node, "target", None)]
    targets += [i.optional_vars for i in getattr(node, "items", [])]
    for target in targets:
        if target is not None:
            yield from (n for n in ast.walk(target) if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Store))


def _declared_elsewhere(statements: Sequence[ast.stmt]) -> set[str]:
    return {n for node in _walk(statements) if isinstance(node, (ast.Global, ast.Nonlocal)) for n in node.names}


def _jumps(statements: Sequence[ast.stmt]) -> bool:
    """A return, or a break or continue of a loop around the statements, stands among them."""

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


def _returns_in_if(body: Sequence[ast.stmt]) -> bool:
    """A `return` stands in an `if` on the level of the function, and nowhere that it could not be moved from."""
    return any(_has_return([s]) for s in body if isinstance(s, ast.If))


def _has_return(statements: Sequence[ast.stmt]) -> bool:
    return any(isinstance(n, ast.Return) for n in _walk(statements))


def _without_returns(body: Sequence[ast.stmt]) -> list[ast.stmt]:
    """The statements with the result assigned instead of returned: what follows an `if` that returns in one branch
    moves into its other branch."""
    out: list[ast.stmt] = []
    for i, statement in enumerate(body):
        if isinstance(statement, ast.Return):
            value = statement.value or ast.Constant(None)
            out.append(ast.copy_location(ast.Assign([ast.Name(_RESULT, ast.Store())], value), statement))
            return out
        if isinstance(statement, ast.If) and _has_return([statement]):
            rest = body[i + 1 :]
            then = _without_returns([*statement.body, *rest])
            otherwise = _without_returns([*statement.orelse, *copy.deepcopy(rest)])
            out.append(ast.copy_location(ast.If(statement.test, then, otherwise), statement))
            return out
        out.append(statement)
    out.append(ast.Assign([ast.Name(_RESULT, ast.Store())], ast.Constant(None), lineno=0))
    return out
