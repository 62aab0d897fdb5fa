"""fn, ops and math: every operator can be called by all its names; the stubs say what the code does."""

import subprocess
import sys
import textwrap
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import pytest

import dali_run
import dali_run.fn as fn
import dali_run.math as dmath
import dali_run.ops as ops
import dali_run.types as types
from dali_run import pipeline_def
from dali_run.ops.base import find
from dali_run.ops.errors import JobError, SpecError
from dali_run.pipelines.graph.legacy_names import LEGACY, class_name
from dali_run.pipelines.python.functions import names
from dali_run.pipelines.tools.sample_data import make_sample_data

ROOT = Path(__file__).parents[3]


def lookup(root: object, dotted: str) -> object:
    for part in dotted.split("."):
        root = getattr(root, part)
    return root


def test_every_operator_has_a_function_and_a_class() -> None:
    for name in names():
        assert callable(lookup(fn, name)), name
        made = lookup(ops, class_name(name))
        assert isinstance(made, type), name
        assert hasattr(made, "operator_name"), f"{name}: ops.{class_name(name)} is {made}"


def test_names_of_classes() -> None:
    wanted = {"readers.file": "readers.File", "coco_reader": "COCOReader", "readers.tfrecord": "readers.TFRecord",
              "crop_mirror_normalize": "CropMirrorNormalize", "image_decoder_random_crop": "ImageDecoderRandomCrop",
              "random.coin_flip": "random.CoinFlip", "bbox_paste": "BBoxPaste", "mfcc": "MFCC"}  # fmt: skip
    assert {k: class_name(k) for k in wanted} == wanted


def test_legacy_names_are_the_same_operators() -> None:
    for old, new in LEGACY.items():
        if new in names():
            assert find(names()[old]) is find(names()[new])


def test_unknown_names() -> None:
    with pytest.raises(AttributeError, match="did you mean"):
        fn.resiz  # noqa: B018
    with pytest.raises(AttributeError):
        fn.decoders.imag  # noqa: B018
    with pytest.raises(AttributeError):
        ops.Resiz  # noqa: B018
    with pytest.raises(SpecError, match="no argument 'sizes'"):
        ops.Resize(sizes=3)
    with pytest.raises(AttributeError):
        dali_run.nothing  # noqa: B018


def test_help() -> None:
    assert "resize_x" in str(fn.resize.__doc__)
    assert "resize" in dir(fn)
    assert "image" in dir(fn.decoders)


def test_the_package_lists_its_members() -> None:
    import dali_run

    assert {"Pipeline", "pipeline_def", "fn", "types", "load_spec"} <= set(dir(dali_run))
    assert set(dir(dali_run)) == set(dali_run.__all__)  # nothing of what the package is made of
    assert not {"Any", "Callable", "Path", "annotations", "base"} & set(dir(dali_run.ops))


def test_modules_stay_modules() -> None:
    from dali_run.ops.codecs.decoders import Image

    assert Image.name == "decoders.image"
    assert ops.batch.Batch.__module__ == "dali_run.ops.batch"


USER = """
import dali_run.fn as fn
import dali_run.ops as ops
import dali_run.types as types
from dali_run import pipeline_def

@pipeline_def(batch_size=4, num_threads=2, device_id=None)
def pipe() -> object:
    jpegs, labels = fn.readers.file(file_root="x", random_shuffle=True, name="R")
    images = fn.decoders.image(jpegs, device="mixed", output_type=types.RGB)
    images = fn.resize(images, resize_x=256, resize_y=fn.random.uniform(range=(1.0, 2.0)))
    images = ops.Resize(device="gpu", resize_x=3)(images)
    return fn.crop_mirror_normalize(images * 2, mean=[1, 2, 3], dtype=types.FLOAT, mirror=fn.random.coin_flip()), labels

reveal_type(fn.resize(fn.constant(idata=[1]), size=3))
fn.resize(fn.constant(idata=[1]), size="big")
fn.resize(fn.constant(idata=[1]), sizes=3)
"""


def test_type_checkers_understand(tmp_path: Path) -> None:
    pytest.importorskip("mypy")
    (tmp_path / "user.py").write_text(textwrap.dedent(USER))
    command = [sys.executable, "-m", "mypy", "--strict", "--config-file=", "--follow-imports=silent", "--cache-dir",
               str(tmp_path / "cache"), "user.py"]  # fmt: skip
    done = subprocess.run(command, capture_output=True, text=True, cwd=tmp_path, check=False,
                          env={"MYPYPATH": str(ROOT), "PATH": ""})  # fmt: skip
    lines = [line.split(": ", 1)[1] for line in done.stdout.splitlines() if line.startswith("user.py")]
    assert len(lines) == 4, done.stdout + done.stderr
    assert 'Revealed type is "dali_run.pipelines.python.data_node.DataNode"' in lines[0]
    assert '"size"' in lines[1]
    assert '"sizes"' in lines[2]


def test_input_sets() -> None:
    @pipeline_def(batch_size=2, num_threads=1)
    def pipe():
        a, b = fn.constant(idata=[1, 2]), fn.constant(idata=[3, 4])
        x, y = fn.cast([a, b], dtype=types.FLOAT)
        z, w = fn.cat([a, b], a)
        return x, y, z, w

    out = [o.as_array()[0].tolist() for o in pipe().run()]
    assert out == [[1, 2], [3, 4], [1, 2, 1, 2], [3, 4, 1, 2]]

    @pipeline_def(batch_size=2, num_threads=1)
    def unequal():
        a = fn.constant(idata=[1])
        return fn.cat([a, a], [a, a, a])[0]

    with pytest.raises(SpecError, match="differ in length"):
        unequal()


def test_names_of_operators_are_unique() -> None:
    @pipeline_def(batch_size=2, num_threads=1)
    def pipe(names):
        given = [fn.constant(idata=[1], name=n) for n in names]
        return (*given, *fn.cast(given, dtype=types.FLOAT, name="both"))

    made = pipe(["a", "b"])
    made.build()
    assert {"a", "b", "both", "both_2"} <= {n.name for n in made.plan.graph.nodes}
    with pytest.raises(SpecError, match="constant: the name 'a' is taken"):
        pipe(["a", "a"])


def test_compose() -> None:
    @pipeline_def(batch_size=1, num_threads=1)
    def pipe():
        chain = ops.Compose([ops.Cast(dtype=types.FLOAT), ops.Reshape(shape=[1, 2])])
        return chain(fn.constant(idata=[1, 2]))

    assert pipe().run()[0].as_array().tolist() == [[[1.0, 2.0]]]


@pytest.mark.parametrize(("function", "reference"), [
    (dmath.sqrt, np.sqrt), (dmath.exp, np.exp), (dmath.log2, np.log2), (dmath.floor, np.floor), (dmath.tanh, np.tanh),
    (dmath.rsqrt, lambda x: 1 / np.sqrt(x)), (dmath.asin, np.arcsin), (dmath.cbrt, np.cbrt),
    (lambda x: dmath.min(x, 0.5), lambda x: np.minimum(x, 0.5)), (lambda x: dmath.clamp(x, 0.3, 0.6), lambda x:
    np.clip(x, 0.3, 0.6)), (lambda x: dmath.atan2(x, 2.0), lambda x: np.arctan2(x, 2)), (abs, np.abs),
    (lambda x: dmath.pow(x, 2.0), lambda x: x**2), (lambda x: 2 ** x, lambda x: 2.0**x), (lambda x: -x, lambda x: -x),
])  # fmt: skip
def test_math(function, reference) -> None:
    values = np.linspace(0.1, 1, 7, dtype=np.float32)

    @pipeline_def(batch_size=1, num_threads=1)
    def pipe():
        return function(fn.constant(fdata=values.tolist()))

    np.testing.assert_allclose(pipe().run()[0].as_array()[0], reference(values), rtol=1e-6)


def test_scalar_constants() -> None:
    @pipeline_def(batch_size=1, num_threads=1)
    def pipe():
        x = fn.constant(idata=[200], dtype=types.UINT8)
        numbers = (
            x + types.Constant(100).uint8(),
            x * 2,
            x + np.uint8(100),
            x * np.float64(0.5),
            x + np.array([1, 2], np.int32),
        )
        return (*numbers, types.Constant([1, 2], dtype=types.INT16), types.Constant(1.5, shape=(2,)))

    out = pipe().run()
    assert [o.as_array()[0].tolist() for o in out] == [[44], [400], [44], [100.0], [201, 202], [1, 2], [1.5, 1.5]]
    assert [o.dtype.name for o in out] == ["UINT8", "INT32", "UINT8", "FLOAT", "INT32", "INT16", "FLOAT"]


def test_scalar_constants_are_converted_as_by_python() -> None:
    made = [types.Constant(2.7).uint8(), types.Constant(-2.7, types.INT32), types.Constant(0.3).bool(),
            types.Constant(np.int16(5)), types.Constant(3, types.FLOAT, shape=[1])]  # fmt: skip
    shown = ["2:DALIDataType.UINT8", "-2:DALIDataType.INT32", "True:DALIDataType.BOOL", "5:DALIDataType.INT16",
             "3.0:DALIDataType.FLOAT"]  # fmt: skip
    assert [str(c) for c in made] == shown
    assert repr(made[0]) == "2"

    @pipeline_def(batch_size=1, num_threads=1)
    def pipe():
        return fn.constant(idata=10, dtype=types.UINT8) + made[0], made[-1]

    out = pipe().run()
    assert [o.at(0).tolist() for o in out] == [[12], 3]
    assert [o.dtype for o in out] == [types.UINT8, types.FLOAT]
    with pytest.raises(TypeError, match="is not a number"):
        types.ScalarConstant("3")


def test_errors_are_runtime_errors() -> None:
    """Programs for DALI catch RuntimeError."""

    @pipeline_def(batch_size=1, num_threads=1)
    def pipe():
        return fn.decoders.image(fn.external_source(lambda: np.zeros((1, 3), np.uint8)))

    with pytest.raises(RuntimeError, match="truncated"):
        pipe().run()
    with pytest.raises(TypeError, match="output_dtype must be"):
        pipe(output_dtype="uint8")
    with pytest.raises(ValueError, match="NO_TYPE"):
        pipe(output_dtype=[types.NO_TYPE])


def test_functions_come_first() -> None:
    @pipeline_def(batch_size=1, num_threads=1)
    def pipe():
        twice = ops.PythonFunction(lambda x: x * 2)
        return twice(fn.constant(idata=4))

    assert pipe().run()[0].at(0) == 8

    @pipeline_def(batch_size=1, num_threads=1)
    def nothing():
        return fn.python_function(fn.constant(idata=4), function=lambda x: None)

    with pytest.raises(JobError, match="must return arrays of numbers, got NoneType"):
        nothing().run()
    with pytest.raises(SpecError, match="must be called in a pipeline"):
        fn.python_function(fn.constant(idata=4), function=print, num_outputs=0)


def test_folders_of_functions_are_modules() -> None:
    """In a fresh process, as a program's first import."""
    program = """
        import dali_run.fn.experimental.decoders
        import dali_run.fn.io.file
        from dali_run.fn.decoders import image as decode
        from dali_run.fn.readers import file
        import sys
        import dali_run.fn as fn
        from dali_run.pipelines.python.functions import names

        assert fn.readers is dali_run.fn.readers and fn.readers.file is file
        assert fn.experimental.decoders.image.__name__ == decode.__name__ == "image"
        for name in names():
            folder = name.rpartition(".")[0]
            assert not folder or f"dali_run.fn.{folder}" in sys.modules, folder
        print(dir(fn.io.file))
    """
    done = subprocess.run([sys.executable, "-c", textwrap.dedent(program)], capture_output=True, text=True, check=False)
    assert done.stdout == "['read']\n", done.stderr


def test_types() -> None:
    assert types.to_dali_type(np.float32) == types.FLOAT
    assert types.to_numpy_type(types.UINT8) is np.uint8
    assert types.to_numpy_type(types.BOOL) is np.bool_
    assert [str(t) for t in (types.FLOAT, types.RGB)] == ["DALIDataType.FLOAT", "DALIImageType.RGB"]
    assert f"{types.INTERP_NN}" == "DALIInterpType.INTERP_NN"


def test_tfrecord_features(tmp_path: Path) -> None:
    import dali_run.tfrecord as tfrec

    make_sample_data(tmp_path, 8)
    files = sorted(str(p) for p in tmp_path.rglob("*.tfrecord*") if "idx" not in p.name)

    @pipeline_def(batch_size=4, num_threads=1)
    def pipe():
        features = {
            "image/encoded": tfrec.FixedLenFeature((), tfrec.string, ""),
            "image/class/label": tfrec.FixedLenFeature([1], tfrec.int64, -1),
            "nothing": tfrec.VarLenFeature(tfrec.float32, 0.0),
        }
        inputs = fn.readers.tfrecord(path=files, features=features)
        again = ops.readers.TFRecord(path=files, features=features)()["image/class/label"]
        return fn.decoders.image(inputs["image/encoded"]), inputs["image/class/label"], inputs["nothing"], again

    images, labels, nothing, again = pipe().run()
    assert all(len(s) == 3 for s in images.shape())
    assert labels.dtype == types.INT64
    assert nothing.shape() == [(0,)] * 4
    assert (labels.as_array() == again.as_array()).all()
    assert tfrec.VarLenFeature([2], tfrec.int64, 0) == {"dtype": "int64", "shape": [2], "var_len": True}
    with pytest.raises(TypeError):
        tfrec.VarLenFeature([2])


def test_settings_without_effect_are_kept_and_said_once() -> None:
    from dali_run.pipeline import OperatorConcurrency, Pipeline, StreamPolicy
    from dali_run.pipelines.python import settings as pipeline_settings

    given = {
        "stream_policy": StreamPolicy.SINGLE, "concurrency": OperatorConcurrency.FULL, "bytes_per_sample": 100,
        "max_streams": 3, "default_cuda_stream_priority": 1, "set_affinity": True,
    }  # fmt: skip
    for name, value in given.items():
        pipeline_settings.say_once.cache_clear()
        with pytest.warns(UserWarning, match=f"{name}.* has no effect"):
            pipe = Pipeline(batch_size=1, **{name: value})
        Pipeline(batch_size=1, **{name: value})  # said once: a second warning would be an error
        if name in ("stream_policy", "concurrency", "set_affinity"):
            assert getattr(pipe, name) is value
    assert (pipe.max_streams, pipe.default_cuda_stream_priority) == (-1, 0)
    assert Pipeline(batch_size=1).stream_policy is None


def test_members_of_results() -> None:
    @dali_run.pipeline_def(batch_size=2, num_threads=1)
    def pipe():
        return dali_run.fn.external_source(lambda: np.arange(12).reshape(2, 2, 3), layout="HW")

    (out,) = pipe().run()
    assert out.ndim() == 2
    assert out.as_reshaped_tensor([4, 3]).shape() == [4, 3]
    assert out.as_reshaped_tensor([4, 3]).data_ptr() == out.data_ptr() == out.as_array().ctypes.data
    assert (out[0].ndim(), out.as_tensor().ndim()) == (2, 3)
    assert out[1].get_property("layout") == "HW"
    assert out[1].get_property("other") is None
    with pytest.raises(ValueError):
        out.as_reshaped_tensor([5, 3])


def test_modules_of_dali() -> None:
    for statement in (
        "from dali_run.data_node import DataNode, newaxis",
        "from dali_run.backend import TensorCPU, TensorGPU, TensorListCPU, TensorListGPU",
        "from dali_run.pipeline.experimental import pipeline_def",
        "import dali_run.pipeline.experimental as experimental; experimental.pipeline_def(debug=True)",
        "from dali_run.pipeline import experimental; experimental.pipeline_def(debug=True)",
        "import dali_run; dali_run.pipeline.experimental.pipeline_def; dali_run.data_node.DataNode",
    ):  # fmt: skip
        subprocess.run([sys.executable, "-c", statement], check=True)


@pytest.mark.skipif(find_spec("jax") is None, reason="JAX is not installed")
def test_functions_of_jax() -> None:
    import jax

    from dali_run.plugin import jax as dax

    jax_fn = dax.fn  # as DALI's documentation writes it

    @jax_fn.jax_function
    @jax.jit
    def flip(x):
        return x[:, ::-1]

    @jax_fn.jax_function(num_outputs=2, output_layouts=["W", "X"])
    def two(x, y):
        assert isinstance(x, jax.Array)
        return x + y, x[:, :2]

    seen = []

    @pipeline_def(batch_size=3, num_threads=1)
    def pipe():
        x = fn.external_source(lambda: np.arange(12, dtype=np.float32).reshape(3, 4))
        jax_fn.jax_function(lambda a: seen.append(a.shape), num_outputs=0)(x)
        flipped = flip(x)
        return x, flipped, *two(x, flipped)

    x, flipped, total, part = pipe().run()
    assert np.array_equal(flipped.as_array(), x.as_array()[:, ::-1])
    assert np.array_equal(total.as_array(), x.as_array() + flipped.as_array())
    assert np.array_equal(part.as_array(), x.as_array()[:, :2])
    assert (total.layout(), part.layout(), seen[0]) == ("W", "X", (3, 4))
    with pytest.raises(SpecError, match="sharding is not supported"):
        jax_fn.jax_function(flip, sharding=object())


@pytest.mark.skipif(find_spec("jax") is None, reason="JAX is not installed")
def test_peeking_at_batches() -> None:
    from dali_run.plugin.jax.clu import peekable_data_iterator

    @peekable_data_iterator(output_map=["x"], size=6, auto_reset=True)
    def batches():
        return fn.external_source(lambda i: np.full((2, 3), i, np.float32))

    it = batches(batch_size=2, enable_checkpointing=True)
    assert it.peek()["x"][0, 0] == 0
    assert it.element_spec["x"].shape == (2, 3)
    with pytest.raises(RuntimeError, match="call next"):
        it.checkpoints()
    assert [float(b["x"][0, 0]) for b in it] == [0, 1, 2]
    assert it.peek_async().result()["x"].shape == (2, 3)
    next(it)
    assert len(it.checkpoints()) == 1


@pytest.mark.parametrize("kind", [np.int64, np.float32, np.array, lambda n: np.array([n]), lambda n: [np.int64(n)]])
def test_numbers_of_numpy_as_arguments(kind) -> None:
    """Where a number is asked for, and where a list is, as in DALI."""

    def definition(number):
        images = fn.zeros(shape=[4, 6, 3], dtype=types.UINT8)
        listed = fn.resize(images, size=number(3)), fn.crop_mirror_normalize(images, mean=number(2))
        single = number if not isinstance(number(3), list) else int
        return *listed, fn.resize(images, resize_x=single(3)), fn.rotate(images, angle=single(90))

    def outputs(number):
        pipe = pipeline_def(definition)(number, batch_size=1, num_threads=1)
        return [(o.shape(), o.as_array().tolist()) for o in pipe.run()]

    assert outputs(kind) == outputs(int)


def test_types_of_numpys_scalars_in_arithmetic() -> None:
    """Also of arrays without dimensions, in expressions only; as DALI has it."""

    @pipeline_def(batch_size=1, num_threads=1, device_id=None)
    def pipe():
        x = fn.zeros(shape=[2], dtype=types.UINT8)
        kinds = [np.array(3), np.array(3, np.uint8), np.array(3.0), np.array(True), np.int16(3)]
        return *(x + k for k in kinds), fn.copy(kinds[0])

    out = pipe().run()
    assert [o.dtype.name for o in out] == ["INT64", "UINT8", "FLOAT64", "UINT8", "INT16", "INT32"]
    assert [o.as_array().ravel().tolist() for o in out] == [[3, 3], [3, 3], [3, 3], [1, 1], [3, 3], [3]]


def test_a_matrix_of_numpy() -> None:
    matrix = np.float32([[1, 0.5, 1], [0, 1, 0]])
    image = np.arange(24, dtype=np.uint8).reshape(2, 4, 3)

    @pipeline_def(batch_size=1, num_threads=1, device_id=None)
    def pipe():
        x = fn.external_source(lambda: image[None], layout="HWC")
        return fn.warp_affine(x, matrix=matrix), fn.warp_affine(x, matrix=matrix.ravel().tolist())

    got, expected = (o.as_array() for o in pipe().run())
    assert got.tolist() == expected.tolist()
    with pytest.raises(SpecError, match="needs a number"):
        pipeline_def(batch_size=1)(lambda: fn.resize(fn.zeros(shape=[2, 2, 3]), size=np.ones((1, 2))))().build()


@pytest.mark.parametrize("kind", [np.int64, np.uint32, np.array, float])
def test_numbers_of_numpy_as_seeds_and_sizes(kind) -> None:
    def definition(number):
        return fn.random.uniform(seed=number(2**31 - 5)), fn.random.normal()

    def outputs(number, **arguments):
        pipe = pipeline_def(definition)(number, rng="dali", **arguments)
        assert pipe.serialize()  # which takes plain numbers only
        return [o.as_array().tolist() for o in pipe.run()]

    plain = outputs(int, batch_size=2, num_threads=1, prefetch_queue_depth=1, seed=7)
    size = np.int64
    arguments = {"batch_size": size(2), "num_threads": size(1), "prefetch_queue_depth": size(1), "seed": kind(7)}
    assert outputs(kind, **arguments) == plain


def test_one_number_a_sample_where_a_list_is_asked_for() -> None:
    """It stands for all of its values, as in DALI; and scalars have nothing to be squeezed out of."""

    @pipeline_def(batch_size=3, num_threads=1)
    def pipe():
        number = fn.external_source(lambda: np.array([2, 3, 4], np.float32))
        images = fn.zeros(shape=[5, 6, 3], dtype=types.UINT8)
        region = fn.resize(images, size=[2, 2], roi_start=number, roi_end=[5, 5])
        return fn.resize(images, size=number), region, fn.squeeze(number, axes=[0])

    resized, region, squeezed = pipe().run()
    assert resized.shape() == [(2, 2, 3), (3, 3, 3), (4, 4, 3)]
    assert region.shape() == [(2, 2, 3)] * 3
    assert squeezed.as_array().tolist() == [2, 3, 4]


def test_jax_function_keeps_layouts_and_may_stand_in_a_branch() -> None:
    pytest.importorskip("jax")
    from dali_run.plugin.jax.fn import jax_function

    add = jax_function(lambda x: x + 1)

    @pipeline_def(batch_size=4, num_threads=1, device_id=None, enable_conditionals=True)
    def definition():
        image = fn.external_source(lambda: [np.zeros((2, 3, 1), np.float32)] * 4, layout="HWC")
        x = fn.external_source(lambda info: np.int32([info.idx_in_batch]), batch=False)
        if x[0] > 1:
            x = add(x)
        return add(image), x

    image, x = definition().run()
    assert image.layout() == "HWC"
    assert x.as_array().ravel().tolist() == [0, 1, 3, 4]
