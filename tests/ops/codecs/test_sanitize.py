"""`make sanitize`: what it hands to compute-sanitizer, and how it ends. The tool itself needs a GPU."""

from __future__ import annotations

import contextlib
import os
import re
import runpy
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from PIL import Image

from dali_run.ops.codecs.jpeg import cuda as jpeg_gpu
from dali_run.ops.gpu.lane import Lane

from ...kit.fake_cupy import faked

BENCHMARKS = Path(__file__).parents[3] / "benchmarks"
SCRIPT = BENCHMARKS / "data" / "sanitize.py"
FAKE = """\
import sys
from pathlib import Path
log = Path(__file__).with_name("log")
log.write_text((log.read_text() if log.exists() else "") + " ".join(sys.argv[1:]) + "\\n")
sys.exit(86 if "memcheck" in sys.argv and "--bad" in sys.argv and COMPLAINS else 0)
"""


@pytest.mark.parametrize("complains", [False, True])
def test_both_tools_see_all_files_and_a_complaint_is_the_exit_code(tmp_path: Path, complains: bool) -> None:
    fake = tmp_path / "compute-sanitizer"
    fake.write_text(f"#!{sys.executable}\n{FAKE.replace('COMPLAINS', str(complains))}")
    fake.chmod(0o755)
    command = [sys.executable, SCRIPT, "good", "--bad", "bad", "--mutations", "77"]
    environment = {**os.environ, "PATH": f"{tmp_path}:{os.environ['PATH']}"}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == complains, done.stderr
    assert ("memcheck complains" in done.stdout) == complains
    lines = (tmp_path / "log").read_text().splitlines()
    assert [line.split()[1] for line in lines] == ["memcheck"] * 7 + ["racecheck"] * 7
    assert all("--error-exitcode 86" in line and "--apart" in line for line in lines)
    counts = [line.split("--mutate ")[1:] for line in lines]
    assert counts == [[], [], ["77"], ["7"], ["7"], ["7"], ["3"]] * 2
    scripts = [Path(next(word for word in line.split() if word.endswith(".py"))).name for line in lines]
    others = ["jpeg2000_on_gpu.py", "png_on_gpu.py", "tiff_on_gpu.py", "webp_gpu.py"]
    assert scripts == [*["gpu_jpeg.py"] * 3, *others] * 2


@pytest.mark.parametrize("right", [True, False])
@pytest.mark.parametrize("script", ["jpeg2000_on_gpu.py", "png_on_gpu.py", "tiff_on_gpu.py", "webp_gpu.py"])
def test_what_it_runs_compares_with_the_cpu(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], script: str, right: bool
) -> None:
    """On the kernels as g++ compiles them. Ends with 1 where a picture is not what the CPU makes of the file."""
    colours = [Image.radial_gradient("L"), Image.linear_gradient("L"), Image.new("L", (256, 256))]
    Image.merge("RGB", colours).resize((90, 70)).save(tmp_path / "one.jpg")
    count = {"jpeg2000_on_gpu.py": "40", "png_on_gpu.py": "40", "tiff_on_gpu.py": "40", "webp_gpu.py": "12"}[script]
    monkeypatch.setattr(sys, "argv", [script, str(tmp_path), "--apart", "--mutate", count])
    if not right:
        omitted = ("planes_unfilter", "planes_add_up", "vp8_pixels", "jpeg2000_wavelet")

        def without(launch: Any) -> Any:
            def some(lane: Lane, source: str, kernel: str, *rest: Any) -> None:
                if kernel not in omitted:
                    launch(lane, source, kernel, *rest)

            return some

        for name in ("launch", "launch_beside"):
            monkeypatch.setattr(Lane, name, without(getattr(Lane, name)))
    with faked(memory=True):
        import cupy

        monkeypatch.setattr(cupy.cuda, "set_allocator", lambda _: None, raising=False)
        with contextlib.ExitStack() as stack:
            if not right:
                stack.enter_context(pytest.raises(SystemExit))
            runpy.run_path(str(SCRIPT.with_name(script)), run_name="__main__")
    printed = capsys.readouterr().out
    assert ("different from the CPU: []" in printed) == right
    assert int(re.findall(r"(\d+) accepted", printed)[0]) > 1


@pytest.mark.parametrize("right", [True, False])
def test_what_it_runs_compares_with_pillow(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], right: bool
) -> None:
    """On the kernels as g++ compiles them. Ends with 1 where a picture is not what Pillow makes of the file."""
    good, bad = tmp_path / "good", tmp_path / "bad"
    for folder in (good, bad):
        folder.mkdir()
        colours = [Image.radial_gradient("L"), Image.linear_gradient("L"), Image.new("L", (256, 256))]
        Image.merge("RGB", colours).resize((90, 70)).save(folder / "one.jpg")
    (bad / "two.jpg").write_bytes((bad / "one.jpg").read_bytes()[:-90])
    options = ["--lanes", "", "--apart", "--batch", "16", "--small", "8", "--mutate", "24", "--bad", str(bad)]
    monkeypatch.setattr(sys, "argv", ["gpu_jpeg.py", str(good), *options])
    sizes = {name: value for name, value in vars(jpeg_gpu).items() if name.isupper() and isinstance(value, int)}
    if not right:
        made = jpeg_gpu.pixel_output
        monkeypatch.setattr(jpeg_gpu, "pixel_output", lambda plan, **how: made(plan, jpeg_gpu.BGR, **how))
    with faked(memory=True):
        import cupy

        monkeypatch.setattr(cupy.cuda, "set_allocator", lambda _: None, raising=False)
        monkeypatch.setattr(cupy.cuda.runtime, "getDeviceProperties", lambda _: {"name": b"none"}, raising=False)
        with contextlib.ExitStack() as stack:
            if not right:
                stack.enter_context(pytest.raises(SystemExit))
            runpy.run_path(str(BENCHMARKS / "jpeg" / "gpu_jpeg.py"), run_name="__main__")
    printed = capsys.readouterr().out
    assert ("bad file: 1 accepted and exact, 1 rejected, []" in printed) == right
    assert "mutation: " in printed
    assert sizes.items() <= vars(jpeg_gpu).items(), "kernels of later tests are compiled with the sources' sizes"


def test_without_the_tool_it_says_where_it_comes_from(tmp_path: Path) -> None:
    environment = {"PATH": str(tmp_path), "CUDA_HOME": str(tmp_path), "CUDA_PATH": str(tmp_path)}
    done = subprocess.run(
        [sys.executable, SCRIPT, "good"], env=environment, capture_output=True, text=True, check=False
    )
    assert done.returncode == 1
    assert "CUDA toolkit" in done.stderr
