"""compat: programs that import nvidia.dali run on this engine, whether DALI is installed or not."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from dali_run.compat.importing import _ABSENT

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
    for how in (["train.py"], ["-m", "train"]):
        done = python("-m", "dali_run.compat", *how, "a", "-b", path=tmp_path)
        assert (done.stdout.strip(), done.returncode) == (SAID, 5), done.stderr
    (tmp_path / "first.py").write_text("import dali_run.compat\n" + PROGRAM)
    done = python("first.py", "a", "-b", path=tmp_path)
    assert (done.stdout.strip(), done.returncode) == (SAID, 5), done.stderr


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
        "        assert e.name in ('jax', 'torch'), e  # what DALI needs there, too\n"
        "        continue\n"
        "    if module.__name__.startswith('nvidia.dali.'):\n"
        "        try: module.Thing\n"
        "        except ImportError as e: assert str(e).startswith(f'nvidia.dali.{name}.Thing: DALI has it'), e\n"
        "        else: raise AssertionError(name)\n"
        "try: from nvidia.dali.sysconfig import get_lib_dir\n"
        "except ImportError as e: print(e)\n"
        "try: import nvidia.dali.nothing\n"
        "except ModuleNotFoundError as e: print(e)\n"
    )
    said = python("-c", program).stdout.splitlines()
    assert said[0].startswith("nvidia.dali.sysconfig.get_lib_dir: DALI has it, dali_run has not")
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


@pytest.mark.parametrize("arguments", [[], ["-h"], ["-m"], ["none.py"]])
def test_usage(arguments: list[str], tmp_path: Path) -> None:
    done = python("-m", "dali_run.compat", *arguments, path=tmp_path)
    assert done.returncode == (0 if arguments == ["-h"] else 2)
    assert ("usage" in done.stdout + done.stderr) or "no program none.py" in done.stderr
