"""Debug mode: what is given from outside, and what it has not. See test_api_pipeline.py for what it computes."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import dali_run.fn as fn
from dali_run import Pipeline
from dali_run.pipeline.experimental import pipeline_def


def debugged(definition: Callable[[], Any], **arguments: Any) -> Pipeline:
    return pipeline_def(definition, debug=True)(batch_size=2, num_threads=1, **arguments)


def test_lists_of_arrays_are_sources() -> None:
    p = debugged(lambda: fn.external_source([np.full((2, 1), k) for k in range(3)], cycle="raise"))
    seen: list[Any] = []
    for _ in range(8):
        try:
            seen.append(int(p.run()[0].as_array()[0, 0]))
        except StopIteration:
            seen.append("end")
            p.reset()
    assert seen == [0, 1, 2, "end"] * 2


def test_numbers_of_numpy_are_arguments() -> None:
    def definition() -> Any:
        images = fn.constant(idata=list(range(12)), shape=[2, 2, 3], layout="HWC")
        mean = [np.float32(1), np.float32(2), np.float32(3)]
        return fn.crop_mirror_normalize(fn.cast(images, dtype=np.uint8), mean=mean, output_layout="HWC")

    assert debugged(definition).run()[0].at(0).reshape(-1)[:3].tolist() == [-1, -1, -1]


def test_feeding() -> None:
    nodes = []

    def definition() -> dict[str, Any]:
        nodes.append(fn.external_source(name="x"))
        return {"y": nodes[-1] + 1}

    p = debugged(definition)
    p.feed_input("x", np.array([1, 2]))
    assert p.run()[0].as_array().tolist() == [2, 3]
    p.feed_input(nodes[0], np.array([3, 4]))
    assert p.run()[0].as_array().tolist() == [4, 5]
    assert p.run(x=np.array([5, 6]))[0].as_array().tolist() == [6, 7]
    assert p.output_names == ("y",)
    q = debugged(lambda: fn.external_source(lambda: np.zeros(2), name="x"))
    q.run()
    with pytest.raises(RuntimeError, match="has a source"):
        q.feed_input("x", np.zeros(2))


@pytest.mark.parametrize("what", ["to_yaml", "serialize", "checkpoint"])
def test_there_is_no_graph(what: str) -> None:
    p = debugged(lambda: fn.random.uniform())
    p.run()
    with pytest.raises(RuntimeError, match="no graph: build the pipeline without debug=True"):
        getattr(p, what)()
