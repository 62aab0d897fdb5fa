"""A wheel with compiled code: loops of packs give the bytes that loops compiled on the spot give; wheels are whole."""

from __future__ import annotations

import base64
import csv
import hashlib
import io
import json
import os
import subprocess
import sys
import zipfile
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from dali_run.ops.batch import Batch, Samples
from dali_run.ops.compiled import binaries, listed, store, target
from dali_run.ops.compiled.times import Times
from dali_run.ops.gpu import lane
from dali_run.pipelines.cores import usable_cores
from dali_run.pipelines.plugins import load_operators
from dali_run.pipelines.tools import cuda_images
from docs.compiled_wheel import add_to_wheel, loops_for
from tests.kit.long import long_only
from tests.kit.operators import apply, operator

PROJECT = Path(__file__).parents[1]
JOB = """
import hashlib, json, sys
from pathlib import Path
import numpy as np
import dali_run.fn as fn
from dali_run import pipeline_def
from dali_run.ops.compiled import store, times
store.PACKS = Path(sys.argv[1])

picture = np.random.default_rng(1).integers(0, 256, (40, 50, 3), np.uint8)

@pipeline_def(batch_size=4, num_threads=1, device_id=None, seed=3)
def chain():
    images = fn.external_source(lambda: [picture] * 4)
    return (fn.gaussian_blur(images, sigma=1.7), fn.random.uniform(range=[0.0, 1.0]), fn.random.coin_flip())

pipe = chain()
pipe.build()
digest = hashlib.sha256()
for output in pipe.run():
    for sample in output:
        digest.update(np.ascontiguousarray(np.asarray(sample)).tobytes())
print(json.dumps({"digest": digest.hexdigest(), "compiled": times.times.compiled, "loaded": times.times.loaded}))
"""


def run(packs: Path, cache: Path, **more: str) -> dict[str, Any]:
    environment = {"PYTHONPATH": str(PROJECT), "NUMBA_CACHE_DIR": str(cache), "XDG_CACHE_HOME": str(cache), **more}
    script = (
        JOB if cache.name == "own" else "import dali_run.ops.compiled.store as s\ns.checkout = lambda: False\n" + JOB
    )
    done = subprocess.run([sys.executable, "-c", script, str(packs)], capture_output=True, text=True, check=False,
                          timeout=280, env={**os.environ, **environment})  # fmt: skip
    assert done.returncode == 0, done.stderr
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return found


@pytest.mark.skipif(not target.levels(), reason="needs an x86-64 processor of level 2 at least")
@long_only
def test_packs_give_the_same_bytes_as_compiling(tmp_path: Path) -> None:
    """For every level that this processor has; of filters whose products and sums LLVM may join, where it can."""
    recorded = tmp_path / "recorded"
    alone = run(tmp_path, tmp_path / "own", DALI_RUN_RECORD_LOOPS=str(recorded))
    assert alone["compiled"] + alone["loaded"] > 3
    wanted = list(dict.fromkeys(map(listed.of_line, recorded.read_text().splitlines())))
    level = target.levels()[0]
    pack = tmp_path / "packs" / store.pack_name(level)
    assert loops_for(level, pack, tmp_path / "work", wanted) == len(wanted)
    packed = run(pack.parent, tmp_path / "empty")
    assert packed["digest"] == alone["digest"]
    assert (packed["compiled"], packed["loaded"]) == (0, alone["compiled"] + alone["loaded"])


def test_a_wheel_with_packs_is_whole(tmp_path: Path) -> None:
    plain = tmp_path / "dali_run-1.0-py3-none-any.whl"
    info = "dali_run-1.0.dist-info"
    with zipfile.ZipFile(plain, "w") as wheel:
        wheel.writestr("dali_run/__init__.py", "pass\n")
        wheel.writestr(f"{info}/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n\n")
        wheel.writestr(f"{info}/RECORD", "stale")
    made = add_to_wheel(plain, tmp_path / "out", {"dali_run/ops/compiled/packs/a.pack": b"code" * 100})
    version = f"cp{sys.version_info[0]}{sys.version_info[1]}"
    assert made.name == f"dali_run-1.0-{version}-none-manylinux2014_x86_64.whl"
    assert [p.name for p in made.parent.iterdir()] == [made.name]
    with zipfile.ZipFile(made) as wheel:
        rows = list(csv.reader(io.StringIO(wheel.read(f"{info}/RECORD").decode())))
        assert sorted(row[0] for row in rows) == sorted(wheel.namelist())
        for name, digest, size in rows[:-1]:
            content = wheel.read(name)
            right = base64.urlsafe_b64encode(hashlib.sha256(content).digest()).rstrip(b"=").decode()
            assert (digest, size) == (f"sha256={right}", str(len(content)))
        tags = wheel.read(f"{info}/WHEEL").decode().splitlines()
        assert f"Tag: {version}-none-manylinux2014_x86_64" in tags
        assert "Root-Is-Purelib: false" in tags
        assert "Tag: py3-none-any" not in tags


# -- CUDA -------------------------------------------------------------------------------------------------------------


_CACHED: Any = (
    lane._image, lane._load, lane._module, binaries._pack, binaries.majors, binaries.there_are_any,
)  # fmt: skip


@pytest.fixture
def cuda_pack(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """A pack of gather.cu, whose images say what they are; the stamp of the source."""
    made_from = binaries.digest((lane.SOURCES / "gather.cu").read_text(), lane.SOURCES)
    kinds = [*(f"sm_{a}" for a in binaries.ARCHITECTURES), f"ptx_{binaries.PTX}"]
    entries = {binaries.key("", kind, made_from): (made_from, binaries.entry(kind.encode(), "")) for kind in kinds}
    store.write_pack(tmp_path / binaries.pack_name(13), entries)
    monkeypatch.setattr(store, "PACKS", tmp_path)
    for cached in _CACHED:
        cached.cache_clear()
    return made_from


IMAGES = {
    75: "", 80: "sm_80", 86: "sm_86", 87: "sm_86", 89: "sm_89", 90: "sm_90", 100: "sm_100", 103: "sm_100",
    110: "ptx_80", 120: "sm_120", 121: "sm_120", 130: "ptx_80",
}  # fmt: skip


@pytest.mark.parametrize(("capability", "kind"), IMAGES.items())
def test_gpus_get_the_image_that_runs_on_them(cuda_pack: str, capability: int, kind: str) -> None:
    found = binaries.find(cuda_pack, "", capability, 13)
    assert found == ((kind.encode(), "") if kind else None)
    assert binaries.find("0" * 32, "", capability, 13) is None
    assert binaries.find(cuda_pack, "", capability, 12) is None


@pytest.mark.parametrize(
    ("there", "runtime", "driver", "order"),
    [
        ((13,), 13, 13, (13,)), ((13,), 12, 13, (13,)), ((13,), 12, 12, ()), ((12,), 13, 13, (12,)),
        ((12, 13), 12, 13, (12, 13)), ((12, 13), 13, 13, (13, 12)), ((12, 13), 12, 12, (12,)), ((), 13, 13, ()),
    ],
)  # fmt: skip
def test_images_are_chosen_by_the_driver(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, there: tuple[int, ...], runtime: int, driver: int,
    order: tuple[int, ...],
) -> None:  # fmt: skip
    """The driver takes images of its version of CUDA and of those before, whichever CuPy was made for."""
    for version in there:
        store.write_pack(tmp_path / binaries.pack_name(version), {})
    monkeypatch.setattr(store, "PACKS", tmp_path)
    binaries.majors.cache_clear()
    try:
        assert binaries.majors(runtime, driver) == order
    finally:
        binaries.majors.cache_clear()


@pytest.mark.usefixtures("cuda_pack")
@pytest.mark.parametrize("cupy_for", [12, 13])
def test_kernels_come_from_images_where_the_driver_takes_them(monkeypatch: pytest.MonkeyPatch, cupy_for: int) -> None:
    class DriverError(Exception):
        pass

    class Module:
        refuses = False

        def load(self, image: bytes) -> None:
            if self.refuses:
                raise DriverError
            self.image = image

        def get_function(self, name: str) -> tuple[bytes, str]:
            return self.image, name

    class Device:
        compute_capability = "90"

        def __init__(self, index: int) -> None:
            pass

        def __enter__(self) -> None:
            pass

        def __exit__(self, *exc: object) -> None:
            pass

    cupy = SimpleNamespace(
        cuda=SimpleNamespace(
            Device=Device,
            runtime=SimpleNamespace(runtimeGetVersion=lambda: 1000 * cupy_for, driverGetVersion=lambda: 13000),
            function=SimpleNamespace(Module=Module), driver=SimpleNamespace(CUDADriverError=DriverError),
        ),
        RawModule=lambda **_: SimpleNamespace(get_function=lambda name: ("NVRTC", name)),
    )  # fmt: skip
    monkeypatch.setitem(sys.modules, "cupy", cupy)
    monkeypatch.setattr(lane, "OnGpu", Device)
    lane._module.cache_clear()
    counts = Times()
    monkeypatch.setattr(lane, "times", counts)
    try:
        assert lane.load("gather.cu", "gather") == (b"sm_90", "gather")
        assert (counts.images, list(counts.nvrtc)) == (1, [])
        assert lane.load("tables.cu", "equalize") == ("NVRTC", "equalize")  # in no pack
        assert (counts.images, list(counts.nvrtc)) == (1, ["tables.cu"])
        for cached in (lane._image, lane._load):
            cached.cache_clear()
        monkeypatch.setattr(Module, "refuses", True)
        assert lane.load("gather.cu", "gather") == ("NVRTC", "gather")
        assert (counts.images, sorted(counts.nvrtc)) == (1, ["gather.cu", "tables.cu"])
    finally:
        for cached in _CACHED:
            cached.cache_clear()


@pytest.mark.parametrize("source", sorted({source for source, _ in binaries.listed()}))
def test_listed_kernels_are_in_their_sources(source: str) -> None:
    text = (lane.SOURCES / source).read_text()
    for listed_source, kernel in binaries.listed():
        if listed_source == source:
            assert not kernel or f" {kernel.partition('<')[0]}(" in text or f"({kernel.partition('<')[0]}" in text, (
                kernel
            )


def test_a_change_of_what_is_included_is_seen(tmp_path: Path) -> None:
    (tmp_path / "a.cuh").write_text('#include "b.cuh"\n')
    (tmp_path / "b.cuh").write_text("1")
    before = binaries.digest('#include "a.cuh"', tmp_path)
    (tmp_path / "b.cuh").write_text("2")
    binaries.digest.cache_clear()
    assert binaries.digest('#include "a.cuh"', tmp_path) != before


def test_images_that_are_there_are_not_compiled_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Unless their source, or the compiler, is another one."""
    compiled: list[str] = []

    class Here:
        def __init__(self, processes: int, mp_context: object) -> None:
            pass

        def __enter__(self) -> Here:
            return self

        def __exit__(self, *exc: object) -> None:
            pass

        def map(self, work: Any, tasks: Any, chunksize: int) -> Any:
            return map(work, tasks)

    def image(library: str, text: str, kernel: str, kind: str, folder: Path | None) -> tuple[bytes, str]:
        compiled.append(f"{kernel} {kind}")
        return f"{kernel} of {len(text)}".encode(), kernel

    made_by, sources = ["13.0"], {"a.cu": "a", "b.cu": "b"}
    monkeypatch.setattr(cuda_images, "ProcessPoolExecutor", Here)
    monkeypatch.setattr(cuda_images, "image", image)
    monkeypatch.setattr(cuda_images, "_version", lambda library: made_by[0])
    monkeypatch.setattr(cuda_images, "everything", lambda: [("a.cu", ""), ("b.cu", "blur<float>")])
    monkeypatch.setattr(cuda_images, "text_of", lambda source: (sources[source], None))
    monkeypatch.setattr(cuda_images, "digest_of", lambda source: binaries.digest(sources[source]))

    def made() -> list[str]:
        compiled.clear()
        counts = list(cuda_images.compile_pack(tmp_path / binaries.pack_name(13), "libnvrtc.so.13", [90], 1))
        assert counts[-1] == (4, 4)
        return sorted(compiled)

    everything = [" ptx_80", " sm_90", "blur<float> ptx_80", "blur<float> sm_90"]
    assert made() == everything
    assert made() == []
    sources["b.cu"] = "another"
    assert made() == everything[2:]
    made_by[0] = "13.1"
    assert made() == everything

    def refuses(library: str, text: str, kernel: str, kind: str, folder: Path | None) -> tuple[bytes, str]:
        if kind == "sm_90" and kernel:
            raise cuda_images.CompileError("no such thing in JIT mode")
        return image(library, text, kernel, kind, folder)

    made_by[0] = "13.2"
    monkeypatch.setattr(cuda_images, "image", refuses)
    with pytest.raises(cuda_images.CompileError, match=r"^b\.cu blur<float> for sm_90: no such thing in JIT mode$"):
        made()
    monkeypatch.setattr(cuda_images, "image", image)
    assert made() == ["blur<float> sm_90"]  # the others were kept
    monkeypatch.setattr(store, "PACKS", tmp_path)
    binaries._pack.cache_clear()
    try:
        assert cuda_images.without_image(90, [13]) == []
        assert cuda_images.without_image(90, [12]) == ["a.cu", "b.cu blur<float>"]
        sources["a.cu"] = "changed"
        assert cuda_images.without_image(90, [12, 13]) == ["a.cu"]
    finally:
        binaries._pack.cache_clear()


@pytest.mark.gpu(emulated=False)
def test_every_listed_kernel_compiles_by_the_nvrtc_that_cupy_has_here(tmp_path: Path) -> None:
    """nvcc, and NVRTCs of other versions, accept what this one may refuse; with images nothing is compiled at run time,
    and nobody would see it."""
    import cupy

    cupy.cuda.nvrtc.getVersion()  # loads the library
    maps = Path("/proc/self/maps").read_text().splitlines()
    libraries = sorted({line.split()[-1] for line in maps if "libnvrtc.so" in line})
    if not libraries:
        pytest.skip("NVRTC is part of another library here")
    capability = int(cupy.cuda.Device(0).compute_capability)
    counts = list(cuda_images.compile_pack(tmp_path / "pack", libraries[0], [capability], usable_cores()))
    assert counts[-1] == (len(cuda_images.everything()) * 2,) * 2


@pytest.mark.gpu(emulated=False)
def test_images_run_on_this_gpu_and_nothing_is_compiled(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Made by the NVRTC that CuPy has here, of a kernel and of a template's instance."""
    import cupy

    cupy.cuda.nvrtc.getVersion()  # loads the library
    maps = Path("/proc/self/maps").read_text().splitlines()
    libraries = sorted({line.split()[-1] for line in maps if "libnvrtc.so" in line})
    if not libraries:
        pytest.skip("NVRTC is part of another library here")
    load_operators()
    capability = int(cupy.cuda.Device(0).compute_capability)
    wanted = [("color.cu", ""), ("noise.cu", "gaussian<unsigned char>")]
    monkeypatch.setattr(cuda_images, "everything", lambda: wanted)
    monkeypatch.setattr(binaries, "ARCHITECTURES", (capability,))
    version = cupy.cuda.runtime.driverGetVersion() // 1000
    folder = tmp_path / "packs"
    for _ in cuda_images.compile_pack(folder / binaries.pack_name(version), libraries[0], [capability], 2):
        pass
    pictures = np.random.default_rng(5).integers(0, 256, (3, 40, 50, 3), np.uint8)
    batch = Batch.from_list(list(pictures), "HWC", Samples.numbered(3))
    grey = operator("color_space_conversion", image_type="RGB", output_type="GRAY")
    noise = operator("noise.gaussian", stddev=20.0)

    def results() -> list[np.ndarray]:
        gpu = lane.Lane()
        with gpu:
            made = [apply(op, gpu.to_device(batch), lane=gpu, seed=3)[0] for op in (grey, noise)]
            made = [gpu.to_host(one) for one in made]
            gpu.synchronize()
        return [np.array(one.sample(k)) for one in made for k in range(3)]

    for cached in _CACHED:
        cached.cache_clear()
    by_nvrtc = results()
    monkeypatch.setattr(store, "PACKS", folder)
    counts = Times()
    monkeypatch.setattr(lane, "times", counts)
    for cached in _CACHED:
        cached.cache_clear()
    try:
        by_images = results()
    finally:
        for cached in _CACHED:
            cached.cache_clear()
    assert (counts.images, counts.nvrtc) == (2, {})
    for a, b in zip(by_nvrtc, by_images, strict=True):
        np.testing.assert_array_equal(a, b)
