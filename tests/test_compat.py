"""compat: programs that import nvidia.dali run on this engine, whether DALI is installed or not."""

import importlib
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from dali_run.compat.importing import _ABSENT, install
from dali_run.ops.dali_names import dali_run_name
from dali_run.pipelines.tools.port import names_in
from tests.kit.long import thinned

PROGRAM = """\
import sys
import nvidia.dali as dali
import nvidia.dali.fn as fn
import nvidia.dali.fn.decoders
import nvidia.dali.types as types
from nvidia.dali import pipeline_def, Pipeline
from nvidia.dali.auto_aug import trivial_augment
from nvidia.dali.pipeline import do_not_convert
from nvidia.dali.plugin.base_iterator import LastBatchPolicy
import dali_run, dali_run.fn

@pipeline_def(batch_size=2, num_threads=1, device_id=None)
def p():
    return fn.random.uniform(seed=1), types.Constant(3)

assert Pipeline is dali_run.Pipeline and fn is dali_run.fn and dali.fn is fn
assert dali_run.fn.__spec__.name == "dali_run.fn" and dali.__version__ == "2.4.0"
assert not hasattr(dali, "nothing") and "fn" in dir(dali)
print(sys.argv[1:], __name__, [t.shape() for t in p().run()])
sys.exit(5)
"""
SAID = "['a', '-b'] __main__ [[(), ()], [(), ()]]"


def python(*arguments: object, path: Path | None = None) -> subprocess.CompletedProcess[str]:
    here = str(Path(__file__).parents[1])
    env = {**os.environ, "PYTHONPATH": os.pathsep.join([*([str(path)] if path else []), here])}
    return subprocess.run([sys.executable, *map(str, arguments)], capture_output=True, text=True, env=env, check=False,
                          cwd=path)  # fmt: skip


def installed(root: Path) -> None:
    """Something that passes for DALI, and another package of NVIDIA's."""
    for name in ("dali", "other"):
        (root / "nvidia" / name).mkdir(parents=True)
        (root / "nvidia" / name / "__init__.py").write_text("real = True\n")


@pytest.mark.parametrize("dali_is_there", [False, True])
def test_programs_run_as_they_are(dali_is_there: bool, tmp_path: Path) -> None:
    if dali_is_there:
        installed(tmp_path)
    (tmp_path / "train.py").write_text(PROGRAM)
    for how in thinned((["-m", "train"], ["train.py"]), 2):
        done = python("-m", "dali_run.compat", *how, "a", "-b", path=tmp_path)
        assert (done.stdout.strip(), done.returncode) == (SAID, 5), done.stderr
    (tmp_path / "first.py").write_text("import dali_run.compat\n" + PROGRAM)
    done = python("first.py", "a", "-b", path=tmp_path)
    assert (done.stdout.strip(), done.returncode) == (SAID, 5), done.stderr


SPAWNING = """\
import multiprocessing
import numpy as np
from nvidia.dali import fn, pipeline_def, types

class Source:
    def __call__(self, info):
        if info.iteration == 2: raise StopIteration
        return np.int32([info.idx_in_epoch])

@pipeline_def(batch_size=2, num_threads=1, device_id=None, py_num_workers=1, py_start_method="spawn")
def p():
    return fn.external_source(Source(), batch=False, parallel=True, dtype=types.INT32)

def kind():
    return types.__name__

if __name__ == "__main__":
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        print(pool.apply(kind))
    print([p_.as_array().ravel().tolist() for p_ in p().run()])
"""


def test_processes_that_a_program_spawns_are_its_own(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(SPAWNING)
    for how in (["train.py"], ["-m", "train"]):
        done = python("-m", "dali_run.compat", *how, path=tmp_path)
        assert done.stdout.splitlines() == ["dali_run.types", "[[0, 1]]"], done.stderr


def test_other_packages_of_nvidias_stay(tmp_path: Path) -> None:
    installed(tmp_path)
    program = (
        "import dali_run.compat, nvidia.other, nvidia.dali; print(nvidia.other.real, hasattr(nvidia.dali, 'real'))"
    )
    assert python("-c", program, path=tmp_path).stdout == "True False\n"
    done = python("-c", "import nvidia.dali, dali_run.compat", path=tmp_path)
    assert "import dali_run.compat first" in done.stderr


def test_what_is_missing_says_so_by_name(tmp_path: Path) -> None:
    program = (
        "import dali_run.compat, importlib\n"
        f"for name in {sorted(_ABSENT)!r}:\n"
        "    try: module = importlib.import_module('nvidia.dali.' + name)\n"
        "    except ModuleNotFoundError as e:\n"
        "        assert e.name in ('jax', 'torch', 'torchdata'), e  # what DALI needs there, too\n"
        "        continue\n"
        "    if module.__name__.startswith('nvidia.dali.'):\n"
        "        try: module.Thing\n"
        "        except ImportError as e: assert str(e).startswith(f'nvidia.dali.{name}.Thing: DALI has this "
        "name'), e\n"
        "        else: raise AssertionError(name)\n"
        "try: from nvidia.dali.sysconfig import get_lib_dir\n"
        "except ImportError as e: print(e)\n"
        "try: import nvidia.dali.nothing\n"
        "except ModuleNotFoundError as e: print(e)\n"
    )
    said = python("-c", program).stdout.splitlines()
    assert said[0].startswith("nvidia.dali.sysconfig.get_lib_dir: DALI has this name, dali_run does not")
    assert said[1].startswith("there is no module 'nvidia.dali.nothing'")


def test_the_dynamic_mode_has_another_place_here() -> None:
    program = (
        "import dali_run.compat\n"
        "import nvidia.dali.experimental.dynamic as ndd\n"
        "from nvidia.dali.experimental import dynamic as same\n"
        "import nvidia.dali.experimental.dynamic.math, nvidia.dali.experimental.dynamic.random\n"
        "from nvidia.dali.experimental.dynamic.readers import File\n"
        "import dali_run.dynamic\n"
        "assert ndd is same is dali_run.dynamic and File is ndd.readers.File\n"
        "print(ndd.cast([1.5], dtype=ndd.int32))"
    )
    done = python("-c", program)
    assert done.stdout == 'Tensor(\n    [2],\n    dtype=i32,\n    device="cpu",\n    shape=(1,))\n', done.stderr


def test_dalis_torchvision_is_transforms() -> None:
    program = (
        "import dali_run.compat\n"
        "from nvidia.dali.experimental.torchvision import Compose, Resize\n"
        "import nvidia.dali.experimental.torchvision.v2.functional as F\n"
        "from nvidia.dali.experimental.torchvision.v2 import functional\n"
        "import nvidia.dali.experimental.torchvision as tv, dali_run.transforms as ours\n"
        "print(tv is ours, F is functional is ours.functional, Compose([Resize(4, device='cpu')], batch_size=8))\n"
    )
    done = python("-c", program)
    assert done.stdout.split()[:2] == ["True", "True"], done.stderr


@pytest.mark.parametrize("arguments", [[], ["-h"], ["-m"], ["none.py"]])
def test_usage(arguments: list[str], tmp_path: Path) -> None:
    done = python("-m", "dali_run.compat", *arguments, path=tmp_path)
    assert done.returncode == (0 if arguments == ["-h"] else 2)
    assert ("usage" in done.stdout + done.stderr) or "no program none.py" in done.stderr


# -- every public name of DALI's ---------------------------------------------------------------------------------------

ROOT = Path(__file__).parents[1]
NAMES: dict[str, list[str]] = json.loads((Path(__file__).parent / "golden" / "names.json").read_text())
"""Names that DALI 2.4 has (tests/golden/make_names.py)."""
MISSING = {
    # compiled parts and what serves only itself
    "nvidia.dali": "backend_impl internal python_function_plugin reducers sysconfig",
    "nvidia.dali.backend": """
        CUDAStreamSynchronize CheckDLPackCapsule DLDeviceType ExternalContextCheckpoint GetCUDACurrentDevice
        GetCUDAStreamDevice GetCufftVersion GetCxx11AbiFlag GetNppVersion GetNvimgcodecVersion
        GetNvjpegVersion GetOpenCVVersion GetSchema GetSchemaAndTarget Init IsDriverInitialized LoadDefaultPlugins
        OpSchema OpSpec Pipeline PipelineDebug RegisteredCPUOps RegisteredGPUOps RegisteredMixedOps
        SetCUDACurrentDevice SharedMem Stream TryGetSchema check_cuda_runtime cuda_checked deprecation_warning
        initialized""",
    "nvidia.dali.fn._conditional": "hidden",
    "nvidia.dali.internal": "get_submodule",
    "nvidia.dali.python_function_plugin": "ArrayToDLTensor DLTensorObj DLTensorToArray current_dali_stream",
    "nvidia.dali.ops": "Reload cpu_ops gpu_ops mixed_ops python_op_factory register_cpu_op register_gpu_op",
    "nvidia.dali.plugin.jax.clu": "get_spec_for_array",
    "nvidia.dali.plugin.jax.iterator": "default_num_threads_value",
    "nvidia.dali.plugin.numba": "address_as_void_pointer minimal_numba_version",
    "nvidia.dali.reducers": """
        DaliCallbackPickler cell_reducer cell_unpickle dummy_lambda function_by_value_reducer function_unpickle
        get_global_references_from_nested_code module_reducer module_unpickle set_cell_state set_funcion_state""",
    # how C++ operators are compiled
    "nvidia.dali.sysconfig": "get_compile_flags get_include_dir get_include_flags get_lib_dir get_link_flags",
    # types that no data has, and the class behind types.Constant
    "nvidia.dali.tfrecord": "Feature",
    "nvidia.dali.types": """
        ConstantNode FEATURE PYTHON_OBJECT TENSOR_LAYOUT dali_type_converters""",
}
"""Names that are missing here, and why."""
MISSING["nvidia.dali.backend_impl"] = " ".join(set(MISSING["nvidia.dali.backend"].split()) - {
    "check_cuda_runtime", "cuda_checked", "deprecation_warning", "initialized"}) + " tfrecord types"  # fmt: skip
MISSING["nvidia.dali.backend_impl.tfrecord"] = MISSING["nvidia.dali.tfrecord"]
MISSING["nvidia.dali.backend_impl.types"] = "FEATURE PYTHON_OBJECT TENSOR_LAYOUT"
FRAMEWORKS = {"jax", "paddle", "tensorflow", "torch", "torchdata", "torchvision"}


def missing_names(module: str) -> set[str]:
    """The names of DALI's ``module`` that cannot be taken from it here. A framework that is not installed counts as
    there: then the source is asked."""
    try:
        found = importlib.import_module(module)
    except ModuleNotFoundError as e:
        if e.name not in FRAMEWORKS:
            raise
        path = ROOT.joinpath("dali_run", *dali_run_name(module.removeprefix("nvidia.dali.")).split("."))
        sources = [p for p in (path.with_suffix(".py"), path / "__init__.py") if p.exists()]
        return set(NAMES[module]) - (names_in(sources[0]) if sources else set())
    return {name for name in NAMES[module] if not is_there(found, name)}


def is_there(module: Any, name: str) -> bool:
    """The module has it, or what it needs is not installed. Where it is missing, the error must name it."""
    try:
        getattr(module, name)
    except (AttributeError, ImportError) as e:
        if name not in str(e) and getattr(e, "name", "") not in FRAMEWORKS:
            raise
        return name not in str(e)
    return True


@pytest.fixture
def as_dali() -> Iterator[None]:
    """nvidia.dali is this package, and what was imported by that name is forgotten afterwards."""
    if any(n == "nvidia.dali" or n.startswith("nvidia.dali.") for n in sys.modules):
        pytest.skip("DALI itself was imported")
    before = list(sys.meta_path)
    install()
    yield
    sys.meta_path[:] = before
    for name in [n for n in sys.modules if n == "nvidia.dali" or n.startswith("nvidia.dali.")]:
        del sys.modules[name]


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("module", list(NAMES))
def test_every_name_is_here_or_listed(module: str, as_dali: None) -> None:
    listed = set(MISSING.get(module, "").split())
    assert missing_names(module) == listed


def test_files_of_dalis_transforms_are_modules(as_dali: None) -> None:
    """Programs may import a class from the file of DALI that defines it."""
    from dali_run import transforms

    for file, name in (("compose", "Compose"), ("centercrop", "CenterCrop"), ("randomcrop", "RandomCrop"),
                       ("color", "ColorJitter"), ("flips", "RandomHorizontalFlip"),
                       ("totensor", "PILToTensor")):  # fmt: skip
        module = importlib.import_module(f"nvidia.dali.experimental.torchvision.v2.{file}")
        assert getattr(module, name) is getattr(transforms, name)
    functional = importlib.import_module("nvidia.dali.experimental.torchvision.v2.functional.resize")
    assert functional.resize is transforms.functional.resize


def test_the_list_is_whole() -> None:
    assert len(NAMES) > 100
    assert sum(map(len, NAMES.values())) > 1000
    assert {"nvidia.dali.ops.readers", "nvidia.dali.fn._conditional", "nvidia.dali.backend_impl.types"} <= set(NAMES)
    assert {"nvidia.dali.plugin.tf", "nvidia.dali.plugin.paddle", "nvidia.dali.plugin.triton"} <= set(NAMES)
