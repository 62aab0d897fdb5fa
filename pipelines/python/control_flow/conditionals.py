"""Conditionals: the implementation of `if`, `and`, `or` and `not` on DataNodes, which rewritten definitions call.

An `if` is a loop over its branches: one pass for a Python condition, two for a DataNode, each in a branch of the graph
with the variables as they were before. Afterwards, the values that both branches assigned are merged, sample by sample.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from ....ops.errors import SpecError
from ...graph.conditionals import Condition
from ...graph.nodes import Edge
from ..data_node import (
    DataNode,
    EagerBuilder,
    ScalarConstant,
    apply,
    as_result,
    calculate,
    constant,
    current_builder,
    one,
)
from .statements import RESULT


def _condition(node: DataNode, statement: str) -> DataNode:
    if node.device == "gpu":
        raise SpecError(f"the condition of `{statement}` must be on the CPU, got {node}")
    return one(apply(Condition, [node], {"what": statement}))


# -- at run time of the definition ------------------------------------------------------------------------------------


class UnboundError(SpecError, UnboundLocalError):
    """Error for the use of a variable that has no value, or has one in only one branch of a conditional."""


class Undefined:
    """Stand-in for the missing value of a variable: it was assigned in only one branch of a conditional, or its values
    cannot be merged. Any use of it raises an error."""

    def __init__(self, why: str, error: type[Exception] = UnboundError) -> None:
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
    """An assignment target in an `if` other than a variable, such as ``box["key"]`` or ``box.name``. Its value can be
    read and restored."""

    def __init__(self, text: str, kind: str, find: Callable[[], tuple[Any, Any]]) -> None:
        self.text = text
        self._items = kind == "item"
        try:
            self._owner, self._key = find()
        except Exception:  # created in the branch itself, so that it needs no restoring
            self._owner = _MISSING

    def get(self) -> Any:
        """Return the target's current value; `_MISSING` if it has none."""
        if self._owner is _MISSING:
            return _MISSING
        try:
            return self._owner[self._key] if self._items else getattr(self._owner, self._key)
        except (LookupError, AttributeError):
            return _MISSING

    def set(self, value: Any) -> None:
        """Assign ``value`` to the target, or delete the target if ``value`` is `_MISSING`."""
        if self._owner is _MISSING or self.get() is value:
            return
        if value is _MISSING:
            (operator.delitem if self._items else delattr)(self._owner, self._key)
        elif self._items:
            self._owner[self._key] = value
        else:
            setattr(self._owner, self._key, value)


class Conditional:
    """One `if` statement while a pipeline's definition runs: both branches are executed, one after the other, and the
    values that they assign are merged. Created by rewritten code."""

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
        """Return the values of variables for the start of a branch, which are those from before the conditional. Reset
        other assignment targets, such as items, to their earlier values."""
        for place, value in zip(self._places, self._found, strict=True):
            place.set(value)
        if self._before is None:
            why = f"has no value before the conditional in line {self._line}"
            self._before = {n: variables.get(n, Undefined(f"variable {n!r} {why}")) for n in self._names}
        return tuple(self._before.values())

    def stop(self, variables: Mapping[str, Any]) -> None:
        """Record the variables' values at the end of a branch."""
        self._ends.append({n: variables[n] for n in self._names})
        self._left.append([p.get() for p in self._places])

    def merged(self) -> tuple[Any, ...]:
        """Return the values of variables after the conditional, merged from both branches."""
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
            return Undefined(f"variable {name!r} has a value in only one branch of the conditional in line "
                             f"{self._line}; assign it in both, or before")  # fmt: skip
        try:
            return self._joined(then, otherwise)
        except (SpecError, TypeError) as e:
            subject = "the returned value" if name == RESULT else repr(name)
            return Undefined(f"{subject} after the conditional in line {self._line}: {e}", SpecError)

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
    except (TypeError, ValueError, RuntimeError):  # arrays compare element by element
        return False


def _edge(node: DataNode) -> Edge:
    builder = current_builder()
    return node.edge if node.builder is builder else builder.adopt(node.builder, node.edge)


def merge(predicate: DataNode | None, then: Any, otherwise: Any) -> DataNode:
    """Return a batch with ``then`` for the samples for which ``predicate`` is true, and ``otherwise`` for the
    others."""
    assert predicate is not None
    builder = current_builder()
    ends = [as_result(v) for v in (then, otherwise)]
    devices = {n.device for n in ends}
    if len(devices) > 1:
        ends = [n.gpu() for n in ends]
    edge = builder.merge(_edge(predicate), _edge(ends[0]), _edge(ends[1]))
    return _made(edge, ends[0].device)


def _made(edge: Edge, device: str) -> DataNode:
    builder = current_builder()
    return builder.ran(edge, device) if isinstance(builder, EagerBuilder) else DataNode(builder, edge, device)


def _short_circuit(keyword: str, left: Any, right: Callable[[], Any]) -> Any:
    if not isinstance(left, DataNode):
        return (left and right()) if keyword == "and" else (left or right())
    condition = _condition(left, keyword)
    shortcut = constant(keyword == "or")
    builder = current_builder()
    builder.enter(_edge(condition), keyword == "and")
    value = right()
    if isinstance(value, DataNode):
        value = _condition(value, keyword)
    elif isinstance(value, (bool, ScalarConstant)):
        value = constant(bool(getattr(value, "value", value)))
    else:
        raise TypeError(f"`{keyword}` takes bool, got {value!r}")
    builder.leave()
    return merge(condition, value, shortcut) if keyword == "and" else merge(condition, shortcut, value)


_COMPARISONS: dict[str, Callable[[Any, Any], Any]] = {
    "Lt": operator.lt, "LtE": operator.le, "Gt": operator.gt, "GtE": operator.ge, "Eq": operator.eq,
    "NotEq": operator.ne, "Is": operator.is_, "IsNot": operator.is_not, "In": lambda a, b: a in b,
    "NotIn": lambda a, b: a not in b,
}  # fmt: skip


class Helper:
    """Functions that rewritten definitions of pipelines call instead of Python's `and`, `or`, `not`, comparisons and
    conditionals."""

    conditional = Conditional
    place = Place

    @staticmethod
    def compare(left: Any, *rest: tuple[str, Callable[[], Any]]) -> Any:
        """Return the result of a chained comparison: ``left < b <= c`` for ``rest`` = ``("Lt", lambda: b), ("LtE",
        lambda: c)``, computed as ``left < b and b <= c``."""
        (name, right), *others = rest
        value = right()
        first = _COMPARISONS[name](left, value)
        return Helper.and_(first, lambda: Helper.compare(value, *others)) if others else first

    @staticmethod
    def and_(left: Any, right: Callable[[], Any]) -> Any:
        """Return ``left and right()``, sample by sample if ``left`` is a DataNode."""
        return _short_circuit("and", left, right)

    @staticmethod
    def or_(left: Any, right: Callable[[], Any]) -> Any:
        """Return ``left or right()``, sample by sample if ``left`` is a DataNode."""
        return _short_circuit("or", left, right)

    @staticmethod
    def not_(value: Any) -> Any:
        """Return ``not value``, sample by sample if ``value`` is a DataNode."""
        return calculate("not {}", _condition(value, "not")) if isinstance(value, DataNode) else not value

    @staticmethod
    def choose(test: Any, then: Callable[[], Any], otherwise: Callable[[], Any], line: int) -> Any:
        """Return ``then() if test else otherwise()``, sample by sample if ``test`` is a DataNode; ``line`` is for error
        messages."""
        if not isinstance(test, DataNode):
            return then() if test else otherwise()
        conditional = Conditional(test, ("result",), line)
        for branch in conditional:
            conditional.start({})
            conditional.stop({"result": then() if branch else otherwise()})
        return conditional.merged()[0]
