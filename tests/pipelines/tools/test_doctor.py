"""The doctor on machines that are not this one: GPUs, drivers and libraries are pretended."""

from __future__ import annotations

import re
import sys
import tomllib
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from dali_run.ops.codecs.jpeg import nvjpeg
from dali_run.ops.compiled import binaries, store
from dali_run.ops.errors import DeviceError
from dali_run.ops.gpu import registered
from dali_run.ops.gpu.driver import Gpu, GpuDriver
from dali_run.ops.sequences import nvofa
from dali_run.pipelines.show.terminal import doctor_view
from dali_run.pipelines.tools import cuda_images, doctor
from tests.kit.fake_cupy import faked
from tests.kit.fake_kvikio import installed
from tests.kit.fake_nvofa import faked_engine

ROOT = Path(__file__).parents[3]
H200 = Gpu("NVIDIA H200", 141 << 30, (9, 0))


def findings(area: str) -> dict[str, dict[str, Any]]:
    return {f["what"]: f for f in doctor.examine()["findings"] if f["area"] == area}


@pytest.fixture
def no_cupy(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "cupy", None)  # importing it raises ImportError


def pretend(monkeypatch: pytest.MonkeyPatch, found: GpuDriver | None) -> None:
    monkeypatch.setattr(doctor, "driver", lambda: found)


class Library:
    """An nvJPEG of some version."""

    path = "/lib/libnvjpeg.so"

    def __init__(self, *version: int) -> None:
        self.version = version


class NoEngines:
    def __init__(self, backend: nvjpeg.Backend) -> None:
        raise nvjpeg.NvJpegError("nvjpegCreateEx", 6)


class SevenEngines:
    def __init__(self, backend: nvjpeg.Backend) -> None:
        pass

    def engines(self) -> int:
        return 7

    def close(self) -> None:
        pass


@pytest.mark.parametrize(
    ("cuda", "extra"), [((12, 4), "cuda12"), ((13, 0), "cuda13"), ((14, 1), "cuda13"), ((11, 8), "")]
)
def test_the_extra_follows_the_driver(cuda: tuple[int, int], extra: str) -> None:
    assert GpuDriver(cuda, (H200,)).extra == extra
    assert GpuDriver(cuda, ()).extra == ""


def test_without_a_driver_the_gpu_is_a_note(monkeypatch: pytest.MonkeyPatch) -> None:
    for found in (None, GpuDriver((13, 0), ())):
        pretend(monkeypatch, found)
        gpu = findings("gpu")
        assert list(gpu) == ["driver"]
        assert gpu["driver"]["status"] == "note"
        assert "CPU" in gpu["driver"]["value"]


@pytest.mark.usefixtures("no_cupy")
def test_a_gpu_without_cupy_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing() -> None:
        raise DeviceError("nvJPEG was not found; install it")

    pretend(monkeypatch, GpuDriver((12, 8), (H200, H200)))
    monkeypatch.setattr(nvjpeg, "library", missing)
    gpu = findings("gpu")
    assert gpu["GPU 1"]["value"] == "NVIDIA H200, 141 GiB, compute capability 9.0"
    assert gpu["CuPy"]["status"] == gpu["nvJPEG"]["status"] == "missing"
    assert doctor.examine()["remedies"].count("pip install 'dali-run[cuda12]'") == 1


@pytest.mark.usefixtures("no_cupy")
@pytest.mark.parametrize(
    ("version", "decoder", "status", "engines"),
    [((12, 4, 0), NoEngines, "warning", "note"), ((13, 0, 0), SevenEngines, "ok", "ok")],
)
def test_an_old_nvjpeg_is_warned_of(
    version: tuple[int, ...], decoder: type, status: str, engines: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    pretend(monkeypatch, GpuDriver((13, 0), (H200,)))
    monkeypatch.setattr(nvjpeg, "library", lambda: Library(*version))
    monkeypatch.setattr(nvjpeg, "Decoder", decoder)
    gpu = findings("gpu")
    assert gpu["nvJPEG"]["status"] == status
    assert ("CVE-2025-23272" in gpu["nvJPEG"]["value"]) == (status == "warning")
    assert gpu["JPEG engines"]["status"] == engines
    assert ("7 hardware" in gpu["JPEG engines"]["value"]) == (engines == "ok")


def test_missing_packages_are_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(doctor, "version_of", lambda package: "" if package in ("numba", "imagecodecs") else "1.0")
    packages = findings("packages")
    assert packages["numba"]["status"] == "warning"
    assert packages["imagecodecs"]["status"] == "missing"
    assert packages["numpy"]["status"] == "ok"
    assert "pip install 'dali-run[formats]'" in doctor.examine()["remedies"]


def test_every_extra_that_brings_something_is_looked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    """All but those of developers and of frameworks, which users bring. docs/install.md lists the same extras."""
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    for_users = extras.keys() - {"test", "lint", "docs", "browser", "torch", "jax"}
    gpu = {"cuda12", "cuda13", "video-gpu", "gds", "gds-cuda12"}  # looked at where there is one
    assert {extra for _, extra in doctor.OPTIONAL.values()} == for_users - gpu
    for package, (_, extra) in doctor.OPTIONAL.items():
        named = [re.sub(r"[-_]", "-", requirement) for requirement in extras[extra]]
        assert any(re.match(rf"{re.escape(package)}\b(?!-)", requirement) for requirement in named), package
    install = (ROOT / "docs" / "install.md").read_text().split("## Extras")[1].split("\n## ")[0]
    assert all(f"`{extra}`" in install for extra in for_users)
    monkeypatch.setattr(doctor, "version_of", lambda package: "")
    assert {f"pip install 'dali-run[{extra}]'" for extra in for_users - gpu} <= set(doctor.examine()["remedies"])


def test_another_build_of_opencv_does_as_well(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(doctor, "version_of", lambda package: "5.0" if package == "opencv-python" else "")
    assert findings("packages")["opencv-python-headless"]["status"] == "ok"


def test_what_must_be_repaired_stands_apart_from_what_may_be_installed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(doctor, "version_of", lambda package: "" if package in ("numba", "av") else "1.0")
    monkeypatch.setattr(doctor, "driver", lambda: None)
    with (screen := Console(width=100)).capture() as said:
        screen.print(doctor_view(doctor.examine()))
    repair, install = said.get().split("To do:")[1].split("If you need it:")
    assert repair.split("\n")[1].strip() == "pip install --force-reinstall dali-run"
    assert install.split() == ["pip", "install", "'dali-run[media]'"]


def test_a_broken_machine_is_still_examined(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_: object) -> Any:
        raise RuntimeError("oh")

    for name in ("driver", "version_of", "usable_cores"):
        monkeypatch.setattr(doctor, name, broken)
    monkeypatch.setattr(doctor, "_text", lambda path: "")
    found = doctor.examine()["findings"]
    assert {f["area"] for f in found if "broke: RuntimeError: oh" in f["value"]} >= {"gpu", "packages", "cpu"}
    assert any(f["area"] == "folders" for f in found)


@pytest.mark.gpu(emulated=False)
def test_a_real_gpu_is_found_and_compiles() -> None:
    gpu = findings("gpu")
    assert gpu["GPU 0"]["status"] == gpu["CuPy"]["status"] == gpu["NVRTC"]["status"] == "ok"
    assert gpu["nvJPEG"]["status"] in ("ok", "warning")


def test_the_flow_engine(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing() -> None:
        raise DeviceError("nvJPEG was not found; install it")

    pretend(monkeypatch, GpuDriver((13, 0), (H200,)))
    monkeypatch.setattr(nvjpeg, "library", missing)
    with faked_engine() as engine:
        sys.modules["cupy"].__version__ = "14"  # type: ignore[attr-defined]
        found = findings("gpu")["optical flow engine"]
        assert (found["status"], found["value"]) == ("ok", "output_grid 1, 2, 4, images of 16 x 32 to 8192 x 8192")
        nvofa.forget()
        engine.fail("create", 1)
        found = findings("gpu")["optical flow engine"]
        assert found["status"] == "note"
        assert found["value"].endswith("the engine is not available: optical_flow is computed on the host")


def test_how_containers_come_to_the_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing() -> None:
        raise DeviceError("nvJPEG was not found; install it")

    pretend(monkeypatch, GpuDriver((13, 0), (H200,)))
    monkeypatch.setattr(nvjpeg, "library", missing)
    monkeypatch.setattr(doctor.importlib.util, "find_spec", lambda name: name)
    monkeypatch.setattr(registered, "same_address", registered.same_address.__wrapped__)  # what it found is kept
    with faked() as fake:
        sys.modules["cupy"].__version__ = "14"  # type: ignore[attr-defined]
        gpu = findings("gpu")
        assert gpu["files in the page cache"]["status"] == "ok"
        assert gpu["page-locked memory"]["status"] == "ok"
        assert fake.registrations == 2
        assert fake.registered == {}
        arrays = gpu["arrays read into GPU memory"]
        assert arrays["status"] == "missing"
        assert "pip install" in arrays["remedy"]
        with installed() as kvikio:
            arrays = findings("gpu")["arrays read into GPU memory"]
            assert arrays["status"] == "note"
            assert "compatibility mode: no GPUDirect Storage" in arrays["value"]
        with installed() as kvikio:
            kvikio.has_gds = True
            arrays = findings("gpu")["arrays read into GPU memory"]
            assert arrays["status"] == "ok"
            assert arrays["value"].endswith("GPUDirect Storage")
        fake.attributes[113] = 0
        found = findings("gpu")["files in the page cache"]
        assert found["status"] == "note"
        assert found["value"] == "GPU 0 cannot register read-only memory: the host reads records of containers"
        fake.attributes.clear()
        sys.modules["cupy.cuda.runtime"].hostRegister = fake.unregister  # of another number of arguments
        gpu = findings("gpu")
        assert "cudaHostRegister: " in gpu["files in the page cache"]["value"]
        assert gpu["page-locked memory"]["status"] == "note"
        assert "cudaHostRegister: " in gpu["page-locked memory"]["value"]


@pytest.mark.parametrize(("gap", "state"), [([], "ok"), (["warp.cu warp<float, float>"], "note")])
def test_images_are_counted_for_the_gpu_that_is_here(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, gap: list[str], state: str
) -> None:
    monkeypatch.setattr(store, "PACKS", tmp_path)
    binaries.majors.cache_clear()
    (tmp_path / "cuda13.pack").write_bytes(b"{}\n")
    asked: list[tuple[int, tuple[int, ...]]] = []

    def without_image(capability: int, versions: tuple[int, ...]) -> list[str]:
        asked.append((capability, versions))
        return gap

    monkeypatch.setattr(cuda_images, "without_image", without_image)
    try:
        (found,) = doctor._images(GpuDriver((13, 1), (H200, H200)))
    finally:
        binaries.majors.cache_clear()
    assert asked == [(90, (13,))]
    count = len(cuda_images.everything())
    assert (found.status, found.value.split(";")[0]) == (
        state, f"cuda13: {count - len(gap)} of {count} for compute capability 9.0"
    )  # fmt: skip
    assert bool(found.remedy) == bool(gap)
