"""Fixtures of all tests: real data where it is beside the checkout, and the GPU that may be there or not."""

from __future__ import annotations

import gc
import os
import random
import secrets
import shutil
import signal
import sys
import threading
from collections.abc import Iterator
from importlib.util import resolve_name
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from hypothesis import HealthCheck, settings

ROOT = Path(__file__).parents[1]
SHARED = ROOT.parent / "shared" / "data"
# A test fails for the change that broke it: not for its draw, nor for a machine that is busy.
_PATIENT = {"deadline": None, "suppress_health_check": [HealthCheck.too_slow]}
settings.register_profile("fixed", derandomize=True, **_PATIENT)  # type: ignore[arg-type]
settings.register_profile("explore", print_blob=True, **_PATIENT)  # type: ignore[arg-type]
PROFILE = os.environ.get("HYPOTHESIS_PROFILE", "fixed")
settings.load_profile(PROFILE)
DEMAND_GPU = os.environ.get("DALI_RUN_DEMAND_GPU") == "1"
EMULATE_GPU = os.environ.get("DALI_RUN_EMULATE_GPU") == "1"
KERNELS: dict[str, list[Any]] = {}
"""Every `Kernels` that was made, by the module it stands for: to look for them took 2 to 5 ms a patch."""
IN_ROOT = set(os.listdir(ROOT))
CACHES = {".hypothesis", ".pytest_cache", ".mypy_cache", "__pycache__", ".coverage", ".benchmarks"}


@pytest.fixture(scope="session", autouse=True)
def own_state(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Jobs that tests run are not remembered among the user's own; what tests read of stderr is the same whether loops
    were compiled for them or not."""
    from dali_run.ops.compiled.times import messages_to

    os.environ["XDG_STATE_HOME"] = str(tmp_path_factory.mktemp("state"))
    with messages_to(lambda _: None):
        yield


@pytest.fixture(scope="session")
def shared_data() -> Path:
    """The folder of real inputs; the test is skipped where it is absent."""
    if not SHARED.is_dir():
        pytest.skip("needs the folder of real inputs beside the checkout (../shared/data)")
    return SHARED


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    """A Chromium; the test is skipped without it, or without the extra `browser`."""
    playwright = pytest.importorskip("playwright.sync_api")
    with playwright.sync_playwright() as p:
        own = Path(p.chromium.executable_path)
        found = own if own.exists() else shutil.which("chromium") or shutil.which("google-chrome")
        if found is None:
            pytest.skip("there is no Chromium here (python -m playwright install chromium)")
        running = p.chromium.launch(executable_path=str(found), args=["--no-sandbox"])
        yield running
        running.close()


@pytest.fixture(scope="session")
def imagenet(shared_data: Path) -> list[Path]:
    """120 ImageNet JPEGs."""
    return sorted((shared_data / "imagenet_sample").glob("*.JPEG"))


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> None:
    """A pipeline that was given no seed draws one; in a test always the same."""
    if PROFILE == "fixed":
        secrets.randbits = random.Random(item.nodeid).getrandbits


def pytest_configure(config: pytest.Config) -> None:
    """Undo what a process inherits from the shell that began the tests, and patch functions: see below."""
    if folder := os.environ.get("DALI_RUN_RECORD_REACHED"):
        from tests.reached import Recorder

        config.pluginmanager.register(Recorder(Path(folder)))
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:  # begun with "&": processes of tests would be deaf to Ctrl-C
        signal.signal(signal.SIGINT, signal.default_int_handler)
    forget_patches()


def forget_patches() -> None:
    """A patched function of a module is seen, and forgotten, by all that find it through `Kernels`. Those keep what
    they found: a patch would depend on the tests before it, and the tests after it on the patch."""
    from dali_run.ops.kernels import Kernels

    begun = Kernels.__init__

    def begin_and_list(self: Kernels, name: str, package: str | None) -> None:
        begun(self, name, package)
        KERNELS.setdefault(resolve_name(name, package), []).append(self)  # type: ignore[arg-type]

    for found in gc.get_objects():  # of modules that the package imports with its name
        if type(found) is Kernels:
            KERNELS.setdefault(resolve_name(found._name, found._package), []).append(found)
    Kernels.__init__ = begin_and_list  # type: ignore[method-assign]
    patch: Any = pytest.MonkeyPatch
    setattr_, undo = patch.setattr, patch.undo

    def setattr_and_forget(self: Any, *args: Any, **kwargs: Any) -> None:
        setattr_(self, *args, **kwargs)
        if self._setattr:
            target, name, _ = self._setattr[-1]
            forget(target, name)

    def undo_and_forget(self: Any) -> None:
        patched = [(target, name) for target, name, _ in self._setattr]
        undo(self)
        for target, name in patched:
            forget(target, name)

    patch.setattr, patch.undo = setattr_and_forget, undo_and_forget


def forget(target: Any, name: str) -> None:
    """Make every `Kernels` of the module ``target`` find ``name`` anew."""
    if isinstance(target, ModuleType):
        for found in KERNELS.get(target.__name__, ()):
            vars(found).pop(name, None)


@pytest.fixture(autouse=True)
def emulated_gpu(request: pytest.FixtureRequest) -> Iterator[None]:
    """With DALI_RUN_EMULATE_GPU=1 tests marked gpu run on the stand-in for CuPy: two GPUs, slow, but without a GPU."""
    marker = request.node.get_closest_marker("gpu")
    if not EMULATE_GPU or marker is None:
        yield
        return
    from tests.kit.fake_cupy import faked

    with faked(2, memory=True):
        yield
        gc.collect()  # pipelines that a test left are closed by a thread: in here, while there is something to close
        for thread in threading.enumerate():
            if thread.name == "abandoned":
                thread.join(60)


@pytest.fixture(autouse=True)
def kernels_have_images() -> Iterator[None]:
    """A kernel that a test launches without a GPU is on the list of those that the wheel brings images of."""
    yield
    if kit := sys.modules.get("tests.kit.listed_kernels"):
        complaint = kit.complaint()
        assert not complaint, complaint


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    marked = [i for i in items if i.get_closest_marker("gpu")]
    if not marked:
        return
    from dali_run.ops.gpu.lane import gpu_count

    if EMULATE_GPU:  # skipped here: a fixture of a module comes before any of ours
        for item in marked:
            if not all(marker.kwargs.get("emulated", True) for marker in item.iter_markers("gpu")):
                item.add_marker(pytest.mark.skip(reason="needs a real GPU"))
        return
    if gpu_count() or DEMAND_GPU:  # demanded: let them run and fail, so that a broken GPU machine cannot look green
        return
    for item in marked:
        item.add_marker(pytest.mark.skip(reason="no GPU (set DALI_RUN_DEMAND_GPU=1 to fail instead)"))


def pytest_collection_finish() -> None:
    """Tests and modules stay: the garbage collector, which many tests call, need not look through them each time."""
    gc.collect()
    gc.freeze()


def pytest_sessionfinish(session: pytest.Session) -> None:
    if strays():
        session.exitstatus = pytest.ExitCode.TESTS_FAILED


def pytest_unconfigure(config: pytest.Config) -> None:
    """Say at the very end why the run failed although all tests passed: a log that was cut shows its last lines."""
    if not hasattr(config, "workerinput"):
        for line in strays():
            print(f"FAILED: {line}", file=sys.stderr)


def strays() -> list[str]:
    """Traces of tests that reach beyond their place, as sentences."""
    twice = [n for n in ("ops", "readers", "writers", "pipelines", "cli") if n in sys.modules]
    left = set(os.listdir(ROOT)) - IN_ROOT - CACHES
    return [
        *([f"a test imported a second copy of {twice}: import dali_run.<folder> instead"] if twice else []),
        *([f"a test left {sorted(left)} in the project's folder: write below tmp_path"] if left else []),
    ]
