"""Arguments of operators: every name that DALI takes, and arrays in the place of numbers."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import dali_run.dynamic as ndd
import dali_run.fn as fn
import dali_run.types as types
from dali_run import Pipeline, ops, pipeline_def
from dali_run.pipelines.graph.legacy_names import class_name
from dali_run.pipelines.python.functions import known_arguments, names

TAKEN: dict[str, str] = json.loads((Path(__file__).parents[2] / "golden" / "arguments.json").read_text())
"""The arguments of every operator of DALI 2.4 (tests/golden/make_names.py)."""
IMAGES = [np.random.default_rng(k).integers(0, 255, (4, 5, 3)).astype(np.uint8) for k in range(2)]


def test_every_argument_that_dali_takes_is_taken() -> None:
    called = {class_name(n): n for n in names()}
    assert len(TAKEN) > 170
    assert set(TAKEN) <= set(called)
    missing = {o: set(given.split()) - known_arguments(called[o]) for o, given in TAKEN.items()}
    assert {o: m for o, m in missing.items() if m} == {}


def test_old_names_of_a_reader_of_annotations(tmp_path: Path) -> None:
    empty = {"images": [{"id": 7, "file_name": "a.jpg", "height": 1, "width": 1}], "annotations": [], "categories": []}
    (tmp_path / "a.json").write_text(json.dumps(empty))
    (tmp_path / "a.jpg").write_bytes(b"x")
    with Pipeline(1, 1, None) as p:
        read = ops.COCOReader(file_root=tmp_path, annotations_file=tmp_path / "a.json", save_img_ids=True)
        with pytest.warns(DeprecationWarning, match="deprecated alias for 'image_ids'"):
            p.set_outputs(*read())
    assert p.run()[3].as_array().tolist() == [[7]]
    with pytest.raises(RuntimeError, match="DALI's own format"), pytest.warns(DeprecationWarning, match="meta_files"):
        fn.readers.coco(meta_files_path="x", annotations_file="y")


def normalized(**arguments: Any) -> np.ndarray:
    with Pipeline(2, 1, None) as p:
        p.set_outputs(fn.normalize(fn.external_source(lambda: IMAGES, layout="HWC"), **arguments))
    return p.run()[0].as_array()


@pytest.mark.parametrize("wrapped", [np.asarray, types.Constant, np.ndarray.tolist])
@pytest.mark.parametrize("shape", [(1, 1, 3), (4, 1, 1), (4, 5, 3), (1, 1, 1)])
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_normalize_takes_arrays_that_broadcast(wrapped: Any, shape: tuple[int, ...], dtype: Any) -> None:
    mean = np.arange(1, 1 + np.prod(shape), dtype=dtype).reshape(shape)
    deviation, images = mean + 3, np.stack(IMAGES)
    for axes in ({}, {"axes": [d for d in range(3) if shape[d] == 1]} if shape != (4, 5, 3) else {}):
        found = normalized(mean=wrapped(mean), stddev=wrapped(deviation), **axes)
        np.testing.assert_allclose(found, (images - mean) / deviation, rtol=1e-5)
        alone = normalized(mean=wrapped(mean), **axes)
        axis = tuple(d for d in range(3) if shape[d] == 1)
        spread = np.sqrt(
            np.mean((images - mean.astype(np.float64)) ** 2, axis=tuple(d + 1 for d in axis), keepdims=True)
        )
        np.testing.assert_allclose(alone, np.divide(images - mean, spread, where=spread > 0, out=0 * alone), rtol=1e-4)
    eager = ndd.normalize(ndd.as_batch(images, layout="HWC"), mean=mean, stddev=deviation)
    np.testing.assert_array_equal(np.asarray(eager), normalized(mean=wrapped(mean), stddev=wrapped(deviation)))


@pytest.mark.parametrize(("mean", "words"), [
    (np.ones(3), "must be one value, got 3"), (np.ones((4, 4, 3)), "does not go with the input"),
    ([1, 2, 3], "needs a number"), ([[1], [2, 3]], "needs a number"), (np.array(["a"]), "constant"),
])  # fmt: skip
def test_what_normalize_does_not_take(mean: Any, words: str) -> None:
    with pytest.raises((RuntimeError, TypeError), match=words):
        normalized(mean=mean)


@pytest.mark.parametrize(("result", "wanted"), [
    ([1, 2], [[1, 2]]), ((1, 2), [1, 2]), ([[1.5, 2]], [[[1.5, 2]]]), (7, [7]), (np.arange(2), [[0, 1]]),
])  # fmt: skip
def test_numbers_as_outputs(result: Any, wanted: Any) -> None:
    """Values are DALI's: a list of numbers is one array."""
    outputs = pipeline_def(lambda: result)(batch_size=1, num_threads=1).run()
    assert [o.as_array()[0].tolist() for o in outputs] == wanted


def test_a_definition_without_a_result() -> None:
    p = pipeline_def(lambda: None)(batch_size=1, num_threads=1)
    with pytest.raises(NotImplementedError, match="use set_outputs"):
        p.build()

    def sets_them() -> None:
        pipe = Pipeline.current()
        assert pipe is not None
        pipe.set_outputs(fn.full(3))

    assert pipeline_def(sets_them)(batch_size=1, num_threads=1).run()[0].as_array().tolist() == [3]


def test_names_of_constants_and_sizes_with_channels() -> None:
    with Pipeline(2, 1, None) as p:
        node = types.Constant(np.float32([1, 2]), device="cpu", name="c")
        assert node.name == "c[0]"
        x, sizes = fn.external_source(lambda: IMAGES, layout="HWC"), ([8, 9], [8, 9, 3], fn.constant(idata=[8, 9, 3]))
        pasted = [fn.multi_paste(x, in_ids=np.int32([0, 1]), output_size=size) for size in sizes]
        p.set_outputs(node, *pasted)
    constant, *images = p.run()
    assert constant.as_array().tolist() == [[1, 2]] * 2
    assert images[0].shape() == [(8, 9, 3)] * 2
    for other in images[1:]:
        np.testing.assert_array_equal(other.as_array(), images[0].as_array())


def test_enumerations_are_numbers() -> None:
    modes = [types.INTERP_LINEAR, types.INTERP_CUBIC]

    def definition() -> Any:
        chosen = fn.external_source(lambda: [np.int32(m) for m in modes])
        drawn = fn.constant(idata=[types.INTERP_CUBIC], shape=[], dtype=types.INTERP_TYPE)
        return chosen == types.INTERP_LINEAR, chosen + types.RGB, drawn, fn.cast(chosen, dtype=types.DATA_TYPE)

    same, more, drawn, cast = pipeline_def(definition)(batch_size=2, num_threads=1).run()
    assert [o.as_array().tolist() for o in (same, more, drawn, cast)] == [[True, False], [1, 2], [2, 2], [1, 2]]
    assert drawn.dtype == cast.dtype == types.INTERP_TYPE == types.DALIDataType.IMAGE_TYPE
    eager = ndd.batch(modes)
    assert [t.item() for t in eager == types.INTERP_LINEAR] == [True, False]
