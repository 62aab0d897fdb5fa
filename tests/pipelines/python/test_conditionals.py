"""Conditionals written in Python: every form against the same function of NumPy arrays."""

import contextlib
import functools
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import dali_run
import dali_run.fn as fn
import dali_run.types as types
from dali_run import pipeline_def
from dali_run.ops.errors import JobError, SpecError
from dali_run.pipeline import do_not_convert, experimental
from dali_run.pipelines.compile.place import Target
from dali_run.pipelines.compile.plan import compile_graph
from dali_run.pipelines.engine.engine import Engine, Options, Request
from dali_run.pipelines.engine.inputs import EndlessFeed, Sources
from dali_run.pipelines.spec.build import load_spec

FLAGS = np.array([True, False, True, True, False, False])
NUMBERS = np.arange(6, dtype=np.int32)


def run(definition: Callable[..., Any]) -> list[Any]:
    """Outputs of a pipeline of ``definition(flag, other, x)``."""
    other = np.roll(FLAGS, 1)

    @pipeline_def(batch_size=6, num_threads=1, enable_conditionals=True, seed=5)
    def pipe():
        flag = fn.external_source(lambda: FLAGS)
        second = fn.external_source(lambda: other)
        x = fn.external_source(lambda: NUMBERS)
        return definition(flag, second, x)

    p = pipe()
    out = [o.as_array().tolist() for o in p.run()]
    p.close()
    return out


def expected(function: Callable[[bool, bool, int], Any]) -> list[Any]:
    rows = [function(bool(f), bool(g), int(x)) for f, g, x in zip(FLAGS, np.roll(FLAGS, 1), NUMBERS, strict=True)]
    return [list(column) for column in zip(*rows, strict=True)]


def if_else(flag, other, x):
    if flag:
        y = x + 10
    else:
        y = x * 2
    return y, x


def if_only(flag, other, x):
    y = x
    if flag:
        y = x + 10
    return y, x


def elif_chain(flag, other, x):
    if flag:
        y = x + 1
    elif other:
        y = x + 100
    else:
        y = x + 1000
    return y, y + 1


def nested(flag, other, x):
    y = x
    if flag:
        z = x + 1
        if other:
            y = z + 10
        else:
            z = z + 5
            y = z
    return y, x


def early_return(flag, other, x):
    if flag:
        return x + 1, x
    y = x + 2
    if other:
        return y + 10, x
    return y, x + 1


def choice(flag, other, x):
    y = x + 1 if flag else x - 1
    return y, x


def logic(flag, other, x):
    both = flag and other
    either = flag or not other
    if both or (x == 1):
        y = x + 1
    else:
        y = x
    return y, both, either


def number_as_condition(flag, other, x):
    if x:
        y = x + 5
    else:
        y = x - 5
    return y, not x


def in_a_loop(flag, other, x):
    total = x
    for k in range(3):
        if k == 1:
            continue
        if flag:
            total = total + k
    return total, x


def tuples(flag, other, x):
    if flag:
        a, b = x, x + 1
    else:
        a, b = x + 1, x
    return a, b


def helper(flag, x):
    if flag:
        x += 7
    return x


def calls(flag, other, x):
    def inner(value):
        if other:
            return value * 2
        return value

    return helper(flag, x), inner(x)


def constants(flag, other, x):
    if flag:
        y = 1
    else:
        y = 2
    return x + y, x


def number_in_a_branch(flag, other, x):
    if flag:
        y = x + 1
    else:
        y = 2
    if other:
        z = 5
    else:
        z = y * 2
    return y, z


class Box:
    """Holds something."""


def places(flag, other, x):
    """Branches may assign to places that are no variables."""
    box, key, row = Box(), "k", [x, x]
    box.inner = {"k": x}
    if flag:
        box.value = x + 1
        box.inner[key] = x + 2
        row[-1] += 3
        if other:
            box.inner["k"] = x * 7
    else:
        box.value = x * 100
        row[0] = x - 1
    made = {"a": 1}
    if other:
        made = {"a": x}
        made["a"] = x + 4
    else:
        made["a"] = x - 4
    settings = {}
    if key == "k":
        settings["one"] = 1
    else:
        settings["other"] = 1
    return box.value, box.inner["k"], row[0], row[1], made["a"], x + len(settings)


def unused(flag, other, x):
    """Values that cannot be merged are fine where they are not used again."""
    if flag:
        for name in ("a", "b"):
            kept = [x, name]
        y = kept[0] + 1
    else:
        name, kept = "c", None
        y = x
    return y, x


def between(flag, other, x):
    """Comparisons in a row."""
    y = x + 10 if 1 < x <= 3 else x
    inside = 0 <= x < 2 != 7
    return y, inside, x + (1 if 1 < 2 < 3 else 0)


def python_condition(flag, other, x):
    n = 3
    if n > 2 and not isinstance(n, str):
        y = x + n
    else:
        y = x
    return y, x


ALL = [if_else, if_only, elif_chain, nested, early_return, choice, logic, number_as_condition, in_a_loop, tuples,
       calls, constants, number_in_a_branch, python_condition, places, unused, between]  # fmt: skip


@pytest.mark.parametrize("definition", ALL, ids=lambda f: f.__name__)
def test_as_in_python(definition: Callable[..., Any]) -> None:
    assert run(definition) == expected(definition)


def test_methods_are_rewritten() -> None:
    class Augment:
        def __init__(self, by):
            self.by = by

        def __call__(self, flag, x):
            return x

        def apply(self, flag, x):
            if flag:
                x = x + self.by
            return x

    augment = Augment(3)

    def definition(flag, other, x):
        return augment.apply(flag, x), x

    assert run(definition)[0] == [int(x) + 3 * int(f) for f, x in zip(FLAGS, NUMBERS, strict=True)]


def test_objects_and_partial_functions_are_rewritten() -> None:
    class Shift:
        def __init__(self, by):
            self.by = by

        def __call__(self, flag, x, sign=1):
            if flag:
                x = x + sign * self.by
            return x

    class Later(Shift):
        def __call__(self, flag, x, sign=1):
            return super().__call__(flag, x, sign) + 100

    @do_not_convert
    class Kept:
        def __call__(self, flag, x):
            return flag if x is None else x

    def chosen(by, flag, x):
        return x + by if flag else x

    def definition(flag, other, x):
        minus = functools.partial(Shift(3), sign=-1)
        return Shift(3)(flag, x), minus(flag, x), functools.partial(chosen, 5)(flag, x), Later(1)(flag, x), Kept()(0, x)

    shifted = {by: [int(x) + by * int(f) for f, x in zip(FLAGS, NUMBERS, strict=True)] for by in (3, -3, 5, 1)}
    assert run(definition) == [shifted[3], shifted[-3], shifted[5], [n + 100 for n in shifted[1]], NUMBERS.tolist()]


def test_lambdas_are_rewritten() -> None:
    """As definitions, where they are defined, and where they are called; several in a line are told apart."""
    flags = fn.external_source
    both = (lambda x: not x, lambda x: (lambda y: helped(y))(x))

    def helped(x: Any) -> Any:
        if x:
            y = NUMBERS * 2
        else:
            y = NUMBERS + 100
        return y

    @pipeline_def(batch_size=6, num_threads=1, device_id=None, enable_conditionals=True)
    def definition() -> Any:
        flag = flags(lambda: FLAGS)
        within = lambda x, y=flag: not (x or y)  # noqa: E731
        return both[0](flag), both[1](flag), within(~flag), within(flag)

    negated, chosen, never, inverse = (o.as_array() for o in definition().run())
    assert negated.tolist() == (~FLAGS).tolist() == inverse.tolist()
    assert not never.any()
    assert len(chosen) == 6
    for flag, sample in zip(FLAGS, chosen, strict=True):
        assert sample.tolist() == (NUMBERS * 2 if flag else NUMBERS + 100).tolist()
    made = pipeline_def(batch_size=6, num_threads=1, device_id=None, enable_conditionals=True)(
        lambda: helped(flags(lambda: FLAGS))
    )
    assert made().run()[0].as_array().tolist() == chosen.tolist()
    nowhere = eval("lambda: helped(flag)", {"helped": helped})
    with pytest.raises(SpecError, match="cannot be found"):
        pipeline_def(batch_size=6, num_threads=1, device_id=None, enable_conditionals=True)(nowhere)().build()


def test_random_numbers_in_a_branch() -> None:
    def definition(flag, other, x):
        y = fn.random.uniform(range=(5.0, 6.0))
        if flag:
            z = fn.random.uniform(range=(1.0, 2.0))
        else:
            z = y
        return z

    (z,) = run(definition)
    assert all((1 <= v < 2) == f for v, f in zip(z, FLAGS, strict=True))


@pytest.mark.parametrize("flags", [np.zeros(6, bool), np.ones(6, bool)])
def test_empty_branches(flags: np.ndarray) -> None:
    @pipeline_def(batch_size=6, num_threads=1, enable_conditionals=True)
    def pipe():
        flag = fn.external_source(lambda: flags)
        x = fn.external_source(lambda: NUMBERS)
        if flag:
            y = fn.cast(x + 1, dtype=types.FLOAT)
        else:
            y = fn.cast(x - 1, dtype=types.FLOAT)
        return y

    assert (pipe().run()[0].as_array() == NUMBERS + np.where(flags, 1, -1)).all()


class Base:
    def scaled(self, x):
        return x * 3


class Private(Base):
    def __init__(self):
        self.__by = 4

    def scaled(self, x):
        y = super().scaled(x)
        if x > 2:
            y = y + self.__by
        return y

    @property
    def number(self):
        return self.__by


def doubling(function):
    @functools.wraps(function)
    def wrapper(*args, **kwargs):
        return function(*args, **kwargs) * 2

    return wrapper


@doubling
def decorated(flag, x, *rest, by=5, **named):
    if flag:
        x = x + by + len(rest) + len(named)
    return x


def recursive(flag, x, depth):
    if depth == 0:
        return x
    if flag:
        x = x + 1
    return recursive(flag, x, depth - 1)


def odd(flag, other, x):
    """Constructs around conditionals that must keep their meaning."""
    state = {"y": x}
    values = [x + k for k in range(3) if k]
    with contextlib.suppress(KeyError):
        if flag:
            state = {"y": state["y"] + 1}
            values = [values[0] + 10, values[1]]
        try:
            x = {}["no"]
        finally:
            if other:
                state = {"y": state["y"] * 2}
    total = 0
    if (n := len(values)) == 2:
        total = n
    count = 0

    def add():
        nonlocal count
        count += 1
        return count

    if flag:
        z = values[0] if add() else x
    else:
        z = values[1]
    assert total == 2
    return state["y"], z


def private_names(flag, other, x):
    return Private().scaled(x), x + Private().number


def wrappers(flag, other, x):
    return decorated(flag, x), decorated(flag, x, 1, 2, by=3, other=1)


def recursion(flag, other, x):
    return recursive(flag, x, 3), x


@pytest.mark.parametrize("definition", [private_names, wrappers, recursion], ids=lambda f: f.__name__)
def test_unusual_functions(definition: Callable[..., Any]) -> None:
    assert run(definition) == expected(definition)


def test_constructs_around_conditionals() -> None:
    assert run(odd) == expected(odd)


def test_arrays_of_branches() -> None:
    """They are merged as constants; numbers that are equal are left alone."""

    @pipeline_def(batch_size=6, num_threads=1, enable_conditionals=True)
    def pipe():
        if fn.external_source(lambda: FLAGS):
            weights, same, number = np.array([1.0, 2.0]), np.array([7.0, 8.0]), 3
        else:
            weights, same, number = np.array([3.0]), np.array([7.0, 8.0]), 3
        return weights, same, fn.constant(idata=[number])

    weights, same, number = pipe().run()
    assert [w.array.tolist() for w in weights] == [[1.0, 2.0] if f else [3.0] for f in FLAGS]
    assert same.as_array().tolist() == [[7.0, 8.0]] * 6
    assert number.as_array().tolist() == [[3]] * 6


def test_source_that_cannot_be_found() -> None:
    scope: dict[str, Any] = {}
    exec("def definition():\n    return 1\n", scope)
    with pytest.raises(SpecError, match="source of definition"):
        pipeline_def(scope["definition"], enable_conditionals=True)(batch_size=1)


def refused(definition: Callable[..., Any], error: type[Exception], match: str) -> None:
    with pytest.raises(error, match=match):
        run(definition)


def test_refusals() -> None:
    def one_branch(flag, other, x):
        if flag:
            y = x
        return y + 1

    refused(one_branch, UnboundLocalError, "only one branch")

    def types_differ(flag, other, x):
        if flag:
            y = x
        else:
            y = fn.cast(x, dtype=types.FLOAT)
        return y

    refused(types_differ, SpecError, "different types")

    def not_scalar(flag, other, x):
        if fn.stack(flag, flag):
            x = x + 1
        return x

    refused(not_scalar, JobError, "scalar")

    def and_of_numbers(flag, other, x):
        return x and flag

    refused(and_of_numbers, JobError, "takes bool")

    def loop(flag, other, x):
        while flag:
            x = x + 1
        return x

    refused(loop, TypeError, "no truth value")

    def breaks(flag, other, x):
        for _ in range(3):
            if flag:
                break
        return x

    refused(breaks, TypeError, "no truth value")

    def structures(flag, other, x):
        if flag:
            y = [x, x]
        else:
            y = [x]
        return y[0]

    refused(structures, SpecError, "another structure")

    def texts(flag, other, x):
        name = "a"
        if flag:
            name = "b"
        return name

    refused(texts, SpecError, "'name' after the conditional in line .*: 'b' .* cannot be used as a constant")

    def one_return(flag, other, x):
        if flag:
            return x
        return None

    refused(one_return, SpecError, "the returned value after the conditional in line .*: None")

    def one_place(flag, other, x):
        found = {}
        if flag:
            found["x"] = x
        return found["x"]

    refused(one_place, UnboundLocalError, r"found\['x'\].*only one branch")

    def layouts(flag, other, x):
        y = fn.stack(fn.stack(x, x), fn.stack(x, x))
        if flag:
            y = fn.reshape(y, layout="HW")
        else:
            y = fn.reshape(y, layout="WH")
        return y

    refused(layouts, SpecError, "different layouts")


def test_readers_in_branches(tmp_path: Path) -> None:
    """They read for the whole batch, of which the branch takes its samples; YAML has them before the conditional."""
    names = []
    for k in range(7):
        names.append(tmp_path / f"{k}.bin")
        names[-1].write_bytes(bytes([k]))

    @pipeline_def(batch_size=6, num_threads=1, enable_conditionals=True)
    def pipe():
        flag = fn.random.coin_flip(dtype=types.BOOL, seed=3)
        if flag:
            low = fn.constant(idata=[0], dtype=types.UINT8)
            y = fn.readers.file(files=[str(n) for n in names], name="Reader")[0] + low
        else:
            y = fn.constant(idata=[100], dtype=types.UINT8)
        return flag, y

    made = pipe()
    flags, data = (o.as_array() for o in made.run())
    expected = [[k] if flag else [100] for k, flag in enumerate(flags)]
    assert data.tolist() == expected
    assert 0 < sum(flags) < 6
    assert made.epoch_size("Reader") == 7
    (tmp_path / "spec.yaml").write_text(made.to_yaml())
    again = dali_run.load_spec(tmp_path / "spec.yaml")
    assert again.run()[1].as_array().tolist() == expected


def test_without_conditionals() -> None:
    @pipeline_def(batch_size=6, num_threads=1)
    def pipe():
        flag = fn.external_source(lambda: FLAGS)
        if flag:
            return flag
        return fn.constant(idata=[1])

    with pytest.raises(TypeError, match="enable_conditionals=True"):
        pipe()


@pytest.mark.parametrize(
    "name", ["if_else", "elif_chain", "nested", "logic", "number_as_condition", "constants", "number_in_a_branch"]
)
def test_as_yaml(name: str, tmp_path: Path) -> None:
    """The same conditionals from the text of a spec."""
    definition = {f.__name__: f for f in ALL}[name]

    @pipeline_def(batch_size=6, num_threads=1, enable_conditionals=True, seed=5)
    def pipe():
        flag = fn.random.coin_flip(dtype=types.BOOL)
        other = fn.random.coin_flip(dtype=types.BOOL)
        return definition(flag, other, fn.random.uniform(range=(0, 3), dtype=types.INT32))

    made = pipe()
    (tmp_path / "spec.yaml").write_text(made.to_yaml())
    built = load_spec(tmp_path / "spec.yaml")
    plan = compile_graph(built.graph, Target("cpu"), built.spec.pipeline.seed)
    with Sources(plan, 6) as sources:
        engine = Engine(plan, EndlessFeed(sources), iter([Request(0, 6)]), Options())
        with engine:
            outputs = next(engine).outputs(plan)
    assert [b.dense().tolist() for b in outputs.values()] == [o.as_array().tolist() for o in made.run()]


# -- by hand ----------------------------------------------------------------------------------------------------------

ROWS = [np.full(3, i, np.float32) for i in range(4)]


def by_hand(definition: Any, **settings: Any) -> list[Any]:
    def whole() -> Any:
        even = fn.external_source(lambda: [np.array(i % 2 == 0) for i in range(4)])
        low = fn.external_source(lambda: [np.array(i < 2) for i in range(4)])
        return definition(fn.external_source(lambda: ROWS), even, low)

    p = experimental.pipeline_def(whole, batch_size=4, num_threads=1, **settings)()
    return [float(a[0]) for a in np.array([np.asarray(t) for t in p.run()[0]])]


@pytest.mark.parametrize("debug", [False, True])
def test_batches_split_and_merged_by_hand(debug: bool) -> None:
    """Values are DALI's."""
    split, merge = fn._conditional.split, fn._conditional.merge

    def simple(x: Any, even: Any, low: Any) -> Any:
        then, otherwise = split(x, predicate=even)
        return merge(then + 10, otherwise * fn.full_like(otherwise, 2), predicate=even)

    def nested(x: Any, even: Any, low: Any) -> Any:
        then, otherwise = split(x, predicate=even)
        low_then, _ = split(low, predicate=even)
        a, b = split(then, predicate=low_then)
        return merge(merge(a + 100, b, predicate=low_then), otherwise, predicate=even)

    assert by_hand(simple, debug=debug) == [10, 2, 12, 6]
    assert by_hand(nested, debug=debug) == [100, 1, 2, 3]
    assert by_hand(lambda x, even, low: merge(x, x + 1, predicate=even), debug=debug) == [0, 2, 2, 4]
    negated = by_hand(lambda x, even, low: fn.stack(fn._conditional.not_(even)), debug=debug)
    assert negated == [0, 1, 0, 1]
    checked = fn._conditional.validate_logical
    assert by_hand(lambda x, e, low: fn.stack(checked(e, expression_name="and", expression_side="left")))[:2] == [1, 0]


@pytest.mark.parametrize(("words", "definition"), [
    ("inside a branch", lambda x, even, low: fn._conditional.split(x, predicate=even)[0]),
    ("used outside", lambda x, even, low: fn._conditional.merge(
        *fn._conditional.split(x, predicate=even)[::-1], predicate=even)),
    ("must be a scalar", lambda x, even, low: fn._conditional.merge(x, x, predicate=x)),
    ("used outside", lambda x, even, low: x + fn._conditional.split(x, predicate=even)[0]
     + fn._conditional.split(x, predicate=low)[0]),
])  # fmt: skip
def test_what_cannot_be_split_or_merged_by_hand(words: str, definition: Any) -> None:
    with pytest.raises(RuntimeError, match=words):
        by_hand(definition)
