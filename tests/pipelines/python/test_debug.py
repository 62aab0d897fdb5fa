"""Debug mode: what is given from outside, and what it has not. See test_api_pipeline.py for what it computes."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import dali_run.fn as fn
from dali_run import Pipeline
from dali_run.ops.errors import JobError
from dali_run.pipeline.experimental import pipeline_def


@pytest.fixture
def files(tmp_path: Path) -> list[str]:
    for k in range(5):
        (tmp_path / str(k)).write_bytes(bytes([k]))
    return [str(tmp_path / str(k)) for k in range(5)]


def debugged(definition: Callable[..., Any], **arguments: Any) -> Pipeline:
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
    assert p.input_feed_count("x") == 1
    p.feed_input("x", np.array([1, 2]))
    assert p.run()[0].as_array().tolist() == [2, 3]
    p.feed_input(nodes[0], np.array([3, 4]))
    assert p.run()[0].as_array().tolist() == [4, 5]
    assert p.run(x=np.array([5, 6]))[0].as_array().tolist() == [6, 7]
    assert p.output_names == ("y",)
    assert p.input_feed_count("x") == 1
    with pytest.raises(KeyError, match="'z' is not an external_source of this pipeline; it has: x"):
        p.input_feed_count("z")
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


@pytest.mark.parametrize("how", ["closed", "forgotten"])
def test_the_lane_and_the_data_sets_go_with_the_pipeline(how: str) -> None:
    closed = []

    class Closed:
        def __init__(self, name: str) -> None:
            self.name = name

        def close(self) -> None:
            closed.append(self.name)

    p: Any = debugged(lambda: fn.random.uniform())
    p.run()
    p._kept._lane = Closed("lane")
    p._kept._readers[0] = Closed("data set"), None
    if how == "closed":
        p.close()
        assert closed == ["data set", "lane"]
    del p
    assert closed == ["data set", "lane"], "once"


def test_sources_may_give_fewer_samples(files: list[str]) -> None:
    """The same labels and numbers as without debug mode."""

    def definition(sizes: Any) -> Any:
        before = fn.random.uniform(seed=1)
        label = fn.readers.file(files=files, labels=list(range(len(files))))[1]
        x = fn.external_source(np.full((n, 1), n) for n in sizes)
        return x + 1, label, before, fn.random.uniform(seed=2)

    eager = debugged(definition, sizes=iter([2, 1, 0, 2]))
    graph = pipeline_def(definition)(sizes=iter([2, 1, 0, 2]), batch_size=2, num_threads=1)
    for n in (2, 1, 0, 2):
        for a, b in zip(eager.run(), graph.run(), strict=True):
            assert len(a) == n
            assert [x.tolist() for x in a.batch] == [x.tolist() for x in b.batch]


def test_sources_must_give_equally_many_samples() -> None:
    p = debugged(lambda: [fn.external_source(iter([data])) for data in (np.zeros(1), np.zeros(2))])
    with pytest.raises(JobError, match="has 2, operators called before it 1"):
        p.run()


def test_empty_batches() -> None:
    p = debugged(lambda: fn.external_source(name="x"))
    p.feed_input("x", [])
    assert len(p.run()[0]) == 0


def test_arrays_of_results_are_constants() -> None:
    """And batches where they go into operators, as in DALI's debug mode."""

    def definition() -> Any:
        if fn.external_source(lambda: np.array([True, False])):
            merged = np.array([1, 2, 3])
        else:
            merged = np.array([4])
        return merged, np.array([5, 6, 7]), 8, fn.copy(np.array([[9], [10]]))

    p = debugged(definition, enable_conditionals=True)
    found = [[x.tolist() for x in o.batch] for o in p.run()]
    assert found == [[[1, 2, 3], [4]], [[5, 6, 7]] * 2, [8, 8], [[9], [10]]]
