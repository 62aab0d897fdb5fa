"""Doctor: report of what this machine supports, and what to install for the rest. It changes nothing and never raises,
whatever is missing."""

from __future__ import annotations

import importlib.metadata
import importlib.util
import os
import platform
import resource
import shutil
import sys
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal

from ...ops.gpu.driver import GpuDriver, driver
from ...version import __version__
from ..cores import usable_cores
from ..wording import size

Status = Literal["ok", "note", "missing", "warning"]
"""State of a part of the machine. ok; note: works, but slower or with limits; missing: an optional part; warning: needs
repair."""


@dataclass(frozen=True, slots=True)
class Finding:
    """One fact that ``doctor`` found about the machine."""

    area: str
    what: str
    status: Status
    value: str
    remedy: str = ""
    """Instruction for the user; empty if nothing is needed."""


def examine() -> dict[str, Any]:
    """Return all findings as data for JSON: ``{"findings": [...], "remedies": [...]}``."""
    findings: list[Finding] = []
    for probe in (_python, _packages, _cpu, _memory, _codecs, _gpu, _compiled, _folders):
        findings += _guarded(probe)
    return {
        "version": __version__,
        "findings": [asdict(f) for f in findings],
        "remedies": list(dict.fromkeys(f.remedy for f in findings if f.remedy)),
    }


def _guarded(probe: Callable[[], Iterator[Finding]]) -> list[Finding]:
    """Return the findings of ``probe``. If ``probe`` raises an exception, the last finding describes the exception,
    because doctor must work on a broken machine."""
    findings: list[Finding] = []
    try:
        findings.extend(probe())
    except Exception as e:
        findings.append(Finding(probe.__name__.strip("_"), "examination", "warning", f"broke: {type(e).__name__}: {e}"))
    return findings


# -- software ---------------------------------------------------------------------------------------------------------


def _python() -> Iterator[Finding]:
    yield Finding("software", "dali-run", "ok", __version__)
    yield Finding("software", "Python", "ok", f"{platform.python_version()} at {sys.executable}")
    yield Finding("software", "system", "ok", f"{platform.system()} {platform.release()} {platform.machine()}")


def version_of(package: str) -> str:
    """Return the installed version of a distribution; empty if it is not installed."""
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return ""


_CORE = ("numpy", "numba", "pillow", "simplejpeg", "pyyaml", "lmdb", "typer", "rich")
OPTIONAL = {
    "imagecodecs": ("JPEG XL, and 16-bit color in TIFF and JPEG 2000", "formats"),
    "pillow-heif": ("HEIC", "formats"),
    "soundfile": ("audio", "media"),
    "soxr": ("resampling of audio with the results of soxr and librosa", "media"),
    "av": ("videos", "media"),
    "pyarrow": ("Parquet files", "parquet"),
    "array-record": ("ArrayRecord files", "array-record"),
    "pylance": ("Lance data sets", "lance"),
    "fsspec": ("data at URLs, with s3fs, gcsfs or adlfs for the store", "remote"),
    "ray": ("jobs on a Ray cluster (--on ray)", "ray"),
    "opencv-python-headless": ("optical_flow if no GPU has an engine for it", "flow"),
}
"""Optional packages, without those for GPUs: the purpose of each, and the extra of dali-run that installs it."""
_SAME = {"opencv-python-headless": ("opencv-python", "opencv-contrib-python", "opencv-contrib-python-headless")}
"""For a package, other packages with the same modules that can be installed instead."""


def _packages() -> Iterator[Finding]:
    for package in _CORE:
        if version := version_of(package):
            yield Finding("packages", package, "ok", version)
        else:
            yield Finding("packages", package, "warning", "not installed", "pip install --force-reinstall dali-run")
    for package, (use, extra) in OPTIONAL.items():
        if version := next(filter(None, map(version_of, (package, *_SAME.get(package, ())))), ""):
            yield Finding("packages", package, "ok", f"{version}: {use}")
        else:
            yield Finding("packages", package, "missing", f"for {use}", f"pip install 'dali-run[{extra}]'")


# -- the machine ------------------------------------------------------------------------------------------------------

_SIMD = ("sse4_2", "avx2", "avx512f", "avx512bw", "asimd", "sve")


def _cpu() -> Iterator[Finding]:
    info = _text("/proc/cpuinfo")
    model = next((line.split(":", 1)[1].strip() for line in info.splitlines() if line.startswith("model name")), "")
    cores = usable_cores()
    yield Finding("cpu", "model", "ok", model or platform.processor() or platform.machine())
    limited = "" if cores == os.cpu_count() else f" of {os.cpu_count()} (affinity or container limit)"
    yield Finding("cpu", "usable cores", "ok", f"{cores}{limited}; num_threads: auto uses them")
    words = set(info.split())
    found = [name for name in _SIMD if name in words]
    if found:
        yield Finding("cpu", "SIMD", "ok", " ".join(found))
    elif info:
        yield Finding("cpu", "SIMD", "note", "none of " + " ".join(_SIMD) + ": decoding and resizing will be slow")


def _memory() -> Iterator[Finding]:
    amounts = dict(line.split(":", 1) for line in _text("/proc/meminfo").splitlines() if ":" in line)
    if "MemTotal" in amounts:
        total, free = (int(amounts[k].split()[0]) * 1024 for k in ("MemTotal", "MemAvailable"))
        yield Finding("memory", "host", "ok", f"{size(total)}, {size(free)} available")
    group = _text("/sys/fs/cgroup/memory.max").strip()
    if group.isdigit():
        yield Finding("memory", "container limit", "ok", size(int(group)))
    locked = resource.getrlimit(resource.RLIMIT_MEMLOCK)[0]
    yield Finding("memory", "lockable (ulimit -l)", "ok", "unlimited" if locked < 0 else size(locked))
    files = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    few = 0 <= files < 1024
    yield Finding("memory", "open files (ulimit -n)", "warning" if few else "ok",
                  "unlimited" if files < 0 else str(files), "raise it: ulimit -n 4096" if few else "")  # fmt: skip


def _codecs() -> Iterator[Finding]:
    from PIL import features

    if importlib.util.find_spec("simplejpeg"):
        yield Finding("codecs", "JPEG", "ok", f"libjpeg-turbo through simplejpeg {version_of('simplejpeg')}")
    for name, feature in (("JPEG (Pillow)", "jpg"), ("PNG", "zlib"), ("WebP", "webp"), ("TIFF", "libtiff"),
                          ("JPEG 2000", "jpg_2000")):  # fmt: skip
        if features.check(feature):
            turbo = feature == "jpg" and features.version("libjpeg_turbo")
            version = f"libjpeg-turbo {turbo}" if turbo else str(features.version(feature) or "yes")
            yield Finding("codecs", name, "ok", version)
        else:
            yield Finding("codecs", name, "missing", "this Pillow was built without it",
                          "pip install --force-reinstall --only-binary :all: pillow")  # fmt: skip


# -- the GPU ----------------------------------------------------------------------------------------------------------


def _gpu() -> Iterator[Finding]:
    gpu_driver = driver()
    if gpu_driver is None or not gpu_driver.gpus:
        what = "no NVIDIA driver" if gpu_driver is None else "a driver, but no GPU that may be used"
        yield Finding("gpu", "driver", "note", f"{what}: device: auto runs on the CPU")
        return
    yield Finding("gpu", "driver", "ok", f"runs CUDA up to {gpu_driver.cuda[0]}.{gpu_driver.cuda[1]}")
    for i, gpu in enumerate(gpu_driver.gpus):
        capability = ".".join(map(str, gpu.compute_capability))
        yield Finding("gpu", f"GPU {i}", "ok", f"{gpu.name}, {size(gpu.memory_bytes)}, compute capability {capability}")
    yield from _cupy(gpu_driver)
    yield from _nvjpeg(gpu_driver)
    yield from _nvdec()
    yield from _flow_engine()
    yield from _uploads()


def _cupy(gpu_driver: GpuDriver) -> Iterator[Finding]:
    remedy = (
        f"pip install 'dali-run[{gpu_driver.extra}]'"
        if gpu_driver.extra
        else "update the driver: CUDA 12 is the oldest"
    )
    try:
        import cupy
    except Exception as e:  # a broken CuPy raises many types of exceptions
        value = "not installed" if isinstance(e, ModuleNotFoundError) else f"cannot be loaded: {e}"
        yield Finding("gpu", "CuPy", "missing", value, remedy)
        return
    runtime = cupy.cuda.runtime.runtimeGetVersion()
    yield Finding("gpu", "CuPy", "ok", f"{cupy.__version__}, CUDA runtime {runtime // 1000}.{runtime % 1000 // 10}")
    if runtime // 1000 > gpu_driver.cuda[0]:
        yield Finding("gpu", "CUDA", "warning", "CuPy was built for a newer CUDA than the driver runs", remedy)
    try:
        major, minor = cupy.cuda.nvrtc.getVersion()
        cupy.RawKernel('extern "C" __global__ void probe(int* a) { *a = 1; }', "probe").compile()
        yield Finding("gpu", "NVRTC", "ok", f"{major}.{minor}: compiles kernels")
    except Exception as e:
        yield Finding("gpu", "NVRTC", "warning", f"cannot compile kernels: {e}", remedy)


def _nvjpeg(gpu_driver: GpuDriver) -> Iterator[Finding]:
    from ...ops.codecs.jpeg import nvjpeg
    from ...ops.errors import DeviceError

    try:
        library = nvjpeg.library()
    except DeviceError as e:
        remedy = f"pip install 'dali-run[{gpu_driver.extra}]'" if gpu_driver.extra else ""
        yield Finding("gpu", "nvJPEG", "missing", f"{str(e).split(';')[0]}; JPEGs are decoded on the CPU", remedy)
        return
    version = ".".join(map(str, library.version))
    if library.version < (13, 0, 0):
        # NVIDIA security bulletin 5661: CVE-2025-23272..23275, memory errors on hostile files.
        yield Finding("gpu", "nvJPEG", "warning",
                      f"{version} has known memory errors on hostile files (CVE-2025-23272 to 23275), fixed in 13.0.0",
                      "decode untrusted JPEGs with device: cpu, or use a driver for CUDA 13 and pip install "
                      "'dali-run[cuda13]'")  # fmt: skip
    else:
        yield Finding("gpu", "nvJPEG", "ok", f"{version} at {library.path}")
    try:
        decoder = nvjpeg.Decoder(nvjpeg.Backend.HARDWARE)
        yield Finding("gpu", "JPEG engines", "ok", f"{decoder.engines()} hardware decoders")
        decoder.close()
    except nvjpeg.NvJpegError as e:
        yield Finding("gpu", "JPEG engines", "note", f"none ({e}): JPEGs are decoded on the GPU's cores")


def _nvdec() -> Iterator[Finding]:
    if version := version_of("PyNvVideoCodec"):
        yield Finding("gpu", "NVDEC", "ok", f"videos, by PyNvVideoCodec {version}")
    else:
        yield Finding("gpu", "NVDEC", "missing", "PyNvVideoCodec is not installed: videos are decoded on the CPU",
                      "pip install 'dali-run[video-gpu]'")  # fmt: skip


def _flow_engine() -> Iterator[Finding]:
    from ...ops.errors import DeviceError
    from ...ops.gpu.lane import Lane
    from ...ops.sequences import nvofa

    try:
        lane = Lane(0)
    except DeviceError:  # CuPy's finding has the reason
        return
    try:
        with lane:
            engine = nvofa.engine(0, lane.context)
        least, most = (" x ".join(map(str, size)) for size in (engine.min_size, engine.max_size))
        yield Finding("gpu", "optical flow engine", "ok",
                      f"output_grid {', '.join(map(str, engine.grids))}, images of {least} to {most}")  # fmt: skip
    except nvofa.NoEngineError as e:
        yield Finding("gpu", "optical flow engine", "note", f"{e}: optical_flow is computed on the host")
    finally:
        lane.close()


def _uploads() -> Iterator[Finding]:
    """Yield findings about reading files into GPU memory: from the page cache by the GPU itself, and through
    page-locked host memory."""
    from ...ops.gpu.registered import probe, why_not_locked

    if importlib.util.find_spec("cupy") is None:
        return
    reason = probe(0)
    if reason:
        yield Finding("gpu", "files in the page cache", "note", f"{reason}: the host reads records of containers")
    else:
        yield Finding("gpu", "files in the page cache", "ok", "are read by the GPU itself (pipeline.upload)")
    why = why_not_locked(0)
    value = f"{why}: the driver allocates it, which takes longer" if why else "is registered"
    yield Finding("gpu", "page-locked memory", "note" if why else "ok", value)
    yield from _direct_storage()


def _direct_storage() -> Iterator[Finding]:
    """Yield a finding about reading arrays into GPU memory: whether kvikio is installed and uses GPUDirect Storage."""
    from ...ops.gpu import direct_storage as kvikio

    what = "arrays read into GPU memory"
    if reason := kvikio.unavailable_reason():
        yield Finding("gpu", what, "missing", f"{reason}: the CPU reads for readers.numpy with device: gpu",
                      kvikio.REMEDY)  # fmt: skip
        return
    version, mode = version_of("kvikio-cu13") or version_of("kvikio-cu12") or "of unknown version", kvikio.mode()
    if mode == kvikio.DIRECT:
        yield Finding("gpu", what, "ok", f"by kvikio {version}, {mode}")
    else:
        yield Finding("gpu", what, "note", f"by kvikio {version}, {mode}: no GPUDirect Storage on this system")


# -- folders ----------------------------------------------------------------------------------------------------------


def _folders() -> Iterator[Finding]:
    home = Path.home()
    cache = Path(os.environ.get("XDG_CACHE_HOME") or home / ".cache")
    folders = {
        "temporary files": (Path(tempfile.gettempdir()), "TMPDIR"),
        "indexes of read-only data": (cache / "dali-run", "XDG_CACHE_HOME"),
        "compiled CUDA code (CuPy)": (Path(os.environ.get("CUPY_CACHE_DIR", home / ".cupy")), "CUPY_CACHE_DIR"),
    }
    for what, (folder, variable) in folders.items():
        nearest = next(p for p in (folder, *folder.absolute().parents) if p.exists())
        if os.access(nearest, os.W_OK):
            yield Finding("folders", what, "ok", f"{folder}, {size(shutil.disk_usage(nearest).free)} free")
        else:
            yield Finding("folders", what, "note", f"{folder} is not writable: recompiled in every run",
                          f"set {variable} to a writable folder")  # fmt: skip


def _compiled() -> Iterator[Finding]:
    """Yield a finding about the source of compiled CPU loops: the installed wheel, a cache folder, or compilation at
    every start."""
    from ...ops.compiled import store, target

    for pack in store.packs():
        yield Finding(
            "compiled code", "CPU kernels of the wheel", "ok", f"{len(pack)} for {pack.path.name.split('-cp')[0]}"
        )
    others = [p.name for p in store.PACKS.glob("x86-64-*.pack")]
    if others and not store.packs() and target.levels():
        made_for = others[0].split("-", 3)[3].removesuffix(".pack")
        numba = made_for.split("-")[1].removeprefix("numba")
        yield Finding("compiled code", "CPU kernels of the wheel", "note",
                      f"for {made_for}, this is {target.versions()}: compiled on this machine instead",
                      f"pip install numba=={numba} (and the Python of the wheel's name) to start at once")  # fmt: skip
    for folder in store.folders():
        nearest = next(p for p in (folder, *folder.absolute().parents) if p.exists())
        if nearest.is_dir() and os.access(nearest, os.W_OK):
            free = size(shutil.disk_usage(nearest).free)
            yield Finding("compiled code", "compiled here", "ok", f"stored in {folder}, {free} free")
            break
    else:
        missing = "" if store.packs() else "; everything is compiled again at every start"
        yield Finding("compiled code", "compiled here", "note", f"cannot be stored: no folder is writable{missing}",
                      "set NUMBA_CACHE_DIR to a writable folder")  # fmt: skip
    yield from _images(driver())


def _images(gpu_driver: GpuDriver | None) -> Iterator[Finding]:
    """Yield a finding about whether the compiled CUDA kernels in the wheel fit this machine's GPUs and CuPy."""
    from ...ops.compiled import binaries, store
    from .cuda_images import everything, without_image

    area, what = "compiled code", "CUDA kernels of the wheel"
    packs = sorted(p.stem for p in store.PACKS.glob("cuda*.pack"))
    if not packs:
        yield Finding(area, what, "note", "none: NVRTC compiles them when first launched")
        return
    versions = binaries.majors(0, gpu_driver.cuda[0]) if gpu_driver is not None else ()
    capabilities = sorted(
        {10 * major + minor for major, minor in (g.compute_capability for g in gpu_driver.gpus)} if gpu_driver else ()
    )
    if not capabilities:
        yield Finding(area, what, "ok", f"{', '.join(packs)}: compute capability "
                      f"{' '.join(f'{a / 10}' for a in binaries.ARCHITECTURES)}, and PTX")  # fmt: skip
    for capability in capabilities:
        missing, all_of_them = without_image(capability, versions), len(everything())
        here = f"{all_of_them - len(missing)} of {all_of_them} for compute capability {capability / 10}"
        value = f"{', '.join(packs)}: {here}"
        if missing:
            yield Finding(area, what, "note", f"{value}; NVRTC compiles the others when first launched",
                          f"make wheel, with CUDA={gpu_driver.cuda[0] if gpu_driver else ''}, from "
                          "these sources")  # fmt: skip
        else:
            yield Finding(area, what, "ok", value)


def _text(path: str) -> str:
    """Return the text of a small system file; empty if it cannot be read."""
    try:
        return Path(path).read_text(errors="replace")
    except OSError:
        return ""
