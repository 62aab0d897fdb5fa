"""Share: equal nodes become one; what a program could tell apart stays apart."""

from typing import Any

import numpy as np
import pytest

import dali_run.fn as fn
import dali_run.types as types
from dali_run import Pipeline
from dali_run.pipelines.compile.place import Target
from dali_run.pipelines.compile.plan import compile_graph
from dali_run.pipelines.graph.rules import verify

IMAGE = np.arange(24, dtype=np.uint8).reshape(2, 4, 3)


def image() -> Any:
    return fn.external_source(lambda: [IMAGE, IMAGE], layout="HWC")


def pipe_of(definition: Any, **arguments: Any) -> Pipeline:
    pipe = Pipeline(2, 1, None, **arguments)
    with pipe:
        result = definition()
        pipe.set_outputs(*result)
    return pipe


def twice(make: Any) -> Any:
    def definition() -> Any:
        x = image()
        return make(x), make(x)

    return definition


SAME = [
    twice(lambda x: fn.flip(x)),
    twice(lambda x: fn.flip(fn.crop(x, crop=[1, 2]))),
    twice(lambda x: fn.random.uniform(seed=5)),
    twice(lambda x: fn.flip(x, horizontal=fn.random.coin_flip(seed=3))),
    twice(lambda x: x + 1),
    twice(lambda x: fn.crop(x, crop=[1, 2], fill_values=[0.0])),
]
OTHER = [
    twice(lambda x: fn.random.uniform()),
    twice(lambda x: fn.flip(x, horizontal=fn.random.coin_flip())),
    twice(lambda x: fn.python_function(x, function=abs)),
    lambda: (image(), image()),
    lambda: (fn.flip(image()), fn.flip(image())),
    lambda: (fn.random.uniform(seed=5), fn.random.uniform(seed=6)),
    lambda: (fn.constant(fdata=[0.0]), fn.constant(fdata=[-0.0])),
    lambda: (fn.constant(idata=[1], dtype=types.UINT8), fn.constant(idata=[1])),
]


@pytest.mark.parametrize("definition", SAME)
def test_equal_operators_are_computed_once(definition: Any) -> None:
    pipe = pipe_of(definition)
    a, b = pipe.run()
    assert a.data_ptr() == b.data_ptr()
    pipe.close()


@pytest.mark.parametrize("definition", OTHER)
def test_what_differs_or_may_differ_is_not(definition: Any) -> None:
    pipe = pipe_of(definition)
    a, b = pipe.run()
    assert a.data_ptr() != b.data_ptr()
    pipe.close()


def test_names_of_the_program_s_stay() -> None:
    def definition() -> Any:
        x = image()
        return fn.flip(x, name="a"), fn.flip(x, name="b")

    pipe = pipe_of(definition)
    pipe.run()
    assert {"a", "b"} <= set(pipe.executor_statistics())
    pipe.close()


def test_seeds_are_dealt_as_without_it() -> None:
    """Results do not change: the seeds of operators behind the shared ones are those that they had."""

    def draws() -> Any:
        a, b = fn.random.uniform(seed=1), fn.random.uniform(seed=1)
        return a, b, fn.random.uniform(), fn.random.normal()

    pipe = pipe_of(draws, seed=11)
    graph = pipe._definition.builder.build(pipe._named_outputs())
    shared, apart = compile_graph(graph, Target("cpu"), 11), compile_graph(graph, Target("cpu"), 11, sharing=False)
    names = lambda plan: {plan.graph.nodes[i].name: s for i, s in plan.seeds.items()}  # noqa: E731
    assert len(apart.graph.nodes) == len(shared.graph.nodes) + 1
    assert names(shared).items() <= names(apart).items()
    verify(shared.graph, "share")
    pipe.close()
