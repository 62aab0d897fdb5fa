"""Iterators written by hand for DALI of 2019 to 2022, and pipelines that are run in two ways."""

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest

import dali_run.fn as fn
from dali_run import Pipeline
from dali_run.plugin.base_iterator import LastBatchPolicy
from dali_run.plugin.numpy import DALIGenericIterator
from dali_run.types import PipelineAPIType


def pipe(n: int = 5, **settings: Any) -> Pipeline:
    with Pipeline(2, 1, None, **settings) as p:
        p.set_outputs(fn.external_source([np.full((2, 1), i) for i in range(n)], cycle="raise"))
    return p


def number(outputs: Any) -> int:
    return int(outputs[0].as_array()[0, 0])


def prefetched_once(p: Pipeline) -> Iterator[int]:
    p._prefetch()
    while True:
        yield number(p.share_outputs())
        p.release_outputs()
        p.schedule_run()


def prefetched_each_time(p: Pipeline) -> Iterator[int]:
    """As the SSD example of NVIDIA's DeepLearningExamples does."""
    while True:
        p._prefetch()
        yield number(p._share_outputs())
        p._release_outputs()
        p._run()


def one_by_one(p: Pipeline) -> Iterator[int]:
    p._start_py_workers()
    while True:
        p._run_once()
        yield number(p._outputs())


def as_the_plugins(p: Pipeline) -> Iterator[int]:
    with p._check_api_type_scope(PipelineAPIType.ITERATOR):
        p.schedule_run()
    while True:
        with p._check_api_type_scope(PipelineAPIType.ITERATOR):
            yield number(p.share_outputs())
            p.release_outputs()
            p.schedule_run()


@pytest.mark.filterwarnings("ignore:Pipeline._:Warning")
@pytest.mark.parametrize("settings", [{}, {"prefetch_queue_depth": 3}, {"exec_pipelined": False, "exec_async": False}])
@pytest.mark.parametrize("loop", [prefetched_once, prefetched_each_time, one_by_one, as_the_plugins])
def test_loops_written_by_hand(loop: Callable[[Pipeline], Iterator[int]], settings: dict[str, Any]) -> None:
    p = pipe(**settings)
    for _ in range(2):
        found = []
        with contextlib.suppress(RuntimeError):  # what a generator makes of StopIteration
            for k in loop(p):
                found.append(k)
        assert found == [0, 1, 2, 3, 4]
        p.reset()


def test_old_names_say_so() -> None:
    p = pipe()
    with pytest.warns(Warning, match="_run is DALI's old name for schedule_run") as warned:
        p._run()
    assert [w.category for w in warned] == [Warning]


def scheduled(p: Pipeline) -> None:
    p.schedule_run()


def iterated(p: Pipeline) -> None:
    DALIGenericIterator(p, ["x"], last_batch_policy=LastBatchPolicy.PARTIAL)


@pytest.mark.parametrize(("first", "second"), [
    (Pipeline.run, scheduled), (Pipeline.run, Pipeline.outputs), (Pipeline.run, Pipeline.share_outputs),
    (Pipeline.run, Pipeline.release_outputs), (scheduled, Pipeline.run), (iterated, Pipeline.run),
    (scheduled, iterated),
])  # fmt: skip
def test_two_ways_of_running_are_refused(first: Callable[..., Any], second: Callable[..., Any]) -> None:
    p = pipe()
    first(p)
    with pytest.raises(RuntimeError, match="is run in two ways"):
        second(p)
    p.enable_api_check(False)
    second(p)
