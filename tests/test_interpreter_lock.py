"""Python's lock is free while libraries and loops work: threads of one process use all cores.

A call is made with the switch interval at hours, so that another thread runs only while the call has released the
lock. That thread looks at the processor time of the calling thread at each of its steps. The longest stretch between
two steps is what the call worked with the lock held. It is a share of the call's own processor time, not of a clock's.
"""

from __future__ import annotations

import ast
import io
import sys
import threading
import time
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image, features

from dali_run.ops.batch import Batch, Samples
from dali_run.ops.compiled.listed import loops
from dali_run.ops.context import Context
from dali_run.pipelines.plugins import find_operator, load_operators
from dali_run.writers.bytes.checksums import Checksums
from tests.kit.files.videos import make_video
from tests.kit.readers import fetch, open_reader

load_operators()

ROOT = Path(__file__).parents[1]

HOLDS = {
    "decode jpeg2000": "Pillow's OpenJPEG; `isolation: auto` runs it in processes of its own, as all but JPEG",
}
"""All library calls that work with the lock held, each with its reason and what jobs do about it."""

SHORT_LOOPS = {
    "ops.codecs.encoders_plan_cpu": "*",
    "ops.codecs.jpeg.baseline_cpu": "regions",
    "ops.codecs.jpeg.header": "decoded_shapes foreseen refused summarise",
    "ops.copies.strided_plan_cpu": "*",
    "ops.images.resampling.plan_cpu": "*",
    "readers.fetch.extents_cpu": "files_of lay_out",
    "readers.file_cpu": "places",
    "readers.records.example_checks_cpu": "numbers sift texts",
    "readers.tfrecord_cpu": "sift",
    "writers.bytes.frames_cpu": "add_entries lay_out lie_within",
}
"""All listed loops that hold the lock, by module. Each takes microseconds for a batch; to have the lock again takes
longer where other threads want it, and each release costs all of them."""

MOST = 0.5
"""Share of a call's processor time that it may hold the lock at a stretch: the Python around the libraries' calls."""
FEATURES = {"image": {"shape": [], "dtype": "string"}}

ATTEMPTS, FEW = 200, 8
"""Where other programs take the cores, the two threads rarely run at a time."""

Call = Callable[[], object]


def held(call: Call) -> float:
    """The longest stretch of ``call`` with the lock held, as a share of its processor time."""
    clock, stretches, ready, done = time.pthread_getcpuclockid(threading.get_ident()), [0.0], threading.Event(), []

    def look() -> None:
        ready.set()
        before = time.clock_gettime(clock)
        while not done:
            time.sleep(0)  # releases the lock; to have it again is a step
            now = time.clock_gettime(clock)
            stretches[0] = max(stretches[0], now - before)
            before = now

    looking = threading.Thread(target=look)
    looking.start()
    ready.wait()
    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e4)
    try:
        time.sleep(0.001)  # the other thread has begun
        stretches[0], began = 0.0, time.thread_time()
        call()
        took = time.thread_time() - began
        time.sleep(0)
        time.sleep(0.001)
    finally:
        sys.setswitchinterval(interval)
        done.append(True)
        looking.join()
    return min(1.0, stretches[0] / took)


def least(call: Call, attempts: int) -> float:
    """The least share that was measured, until it is small enough."""
    call()  # compiles and imports
    share = 1.0
    for _ in range(attempts):
        share = min(share, held(call))
        if share < MOST:
            break
    return share


def test_what_the_measure_says_of_python_and_of_a_library() -> None:
    assert least(lambda: sum(range(500_000)), FEW) > MOST
    shuffled = np.random.default_rng(0).permutation(1 << 20)
    assert least(lambda: np.sort(shuffled), ATTEMPTS) < MOST


# -- pictures ---------------------------------------------------------------------------------------------------------


@cache
def photo(side: int = 1200) -> np.ndarray:
    rng = np.random.default_rng(0)
    small = rng.integers(0, 256, (side // 20, side // 20, 3), np.uint8)
    return np.asarray(Image.fromarray(small).resize((side, side), Image.Resampling.BICUBIC))


def batch(items: list[np.ndarray], layout: str = "") -> Batch:
    return Batch.from_list(items, layout, Samples.numbered(len(items)))


def operator(name: str, inputs: list[np.ndarray], layout: str = "", **arguments: Any) -> Call:
    """A call of the CPU kernel of an operator for a batch."""
    op = find_operator(name)(**arguments)
    op.check()
    whole = batch(inputs, layout)

    def call() -> None:
        ctx = Context(op, "cpu", whole.samples)
        op.cpu(ctx, whole)
        assert not ctx.rejects, ctx.rejects[0].message

    return call


def saved(kind: str, **options: Any) -> np.ndarray:
    file = io.BytesIO()
    Image.fromarray(photo()).save(file, kind, **options)
    return np.frombuffer(file.getvalue(), np.uint8)


PICTURES: dict[str, tuple[str, dict[str, Any]]] = {
    "jpeg": ("JPEG", {"quality": 90}), "progressive jpeg": ("JPEG", {"progressive": True}), "png": ("PNG", {}),
    "webp": ("WEBP", {}), "lossless webp": ("WEBP", {"lossless": True}),
    "tiff": ("TIFF", {"compression": "tiff_lzw"}), "jpeg2000": ("JPEG2000", {}), "avif": ("AVIF", {}),
}  # fmt: skip


def decoding(kind: str) -> Call:
    name, options = PICTURES[kind]
    return operator("decoders.image", [saved(name, **options)])


def encoding(**arguments: Any) -> Call:
    return operator("encoders.image", [photo()], "HWC", **arguments)


# -- sounds and videos ------------------------------------------------------------------------------------------------


@cache
def sound(kind: str) -> np.ndarray:
    import soundfile

    file = io.BytesIO()
    seconds = 250 if kind == "WAV" else 25  # the others take ten times as long
    samples = np.random.default_rng(0).normal(0, 0.1, (16_000 * seconds, 1)).astype(np.float32)
    soundfile.write(file, samples, 16_000, format=kind)
    return np.frombuffer(file.getvalue(), np.uint8)


def waves() -> list[np.ndarray]:
    return [np.random.default_rng(0).normal(0, 0.1, (400_000, 1)).astype(np.float32)]


def video(folder: Path) -> Call:
    make_video(folder / "v.mp4", 40, size=(480, 640))
    return operator("decoders.video", [np.fromfile(folder / "v.mp4", np.uint8)])


# -- records ----------------------------------------------------------------------------------------------------------


def checksums(_: Path) -> Call:
    data = np.zeros(16 << 20, np.uint8)
    return lambda: Checksums().extend(data)


def reading(folder: Path) -> Call:
    """A batch of a TFRecord file, with its checksums."""
    from tfrecord.writer import TFRecordWriter

    writer = TFRecordWriter(str(folder / "a.tfrecord"))
    for _ in range(20):
        writer.write({"image": (bytes(1 << 20), "byte")})
    writer.close()
    reader = find_operator("readers.tfrecord")(path=str(folder / "a.tfrecord"), features=FEATURES)
    source = open_reader(reader)
    return lambda: fetch(reader, source, range(20))


CALLS: dict[str, Callable[[Path], Call]] = {
    **{f"decode {kind}": lambda _, kind=kind: decoding(kind) for kind in PICTURES},
    "encode jpeg": lambda _: encoding(),
    "encode jpeg, optimised": lambda _: encoding(optimize=True),
    "encode jpeg, fast": lambda _: encoding(quality=90, fast_dct=True),
    "encode png": lambda _: encoding(format="png"),
    "encode webp": lambda _: encoding(format="webp"),
    "encode lossless webp": lambda _: encoding(format="webp", quality=100),
    **({"encode avif": lambda _: encoding(format="avif", speed=9)} if features.check("avif") else {}),
    **{f"decode {k}": lambda _, k=k: operator("decoders.audio", [sound(k)]) for k in ("WAV", "FLAC", "OGG", "MP3")},
    "encode flac": lambda _: operator("encoders.audio", waves(), "TC", format="flac", sample_rate=16_000.0),
    "resample": lambda _: operator("audio_resample", waves(), "TC", in_rate=16_000.0, out_rate=22_050.0),
    "decode video": video,
    "checksums": checksums,
    "read tfrecord": reading,
}  # fmt: skip


@pytest.mark.parametrize("name", CALLS)
def test_the_lock_is_free(name: str, tmp_path: Path) -> None:
    share = least(CALLS[name](tmp_path), FEW if name in HOLDS else ATTEMPTS)
    if name in HOLDS:
        assert share >= MOST, f"{name} does not hold the lock: take it out of HOLDS"
    else:
        assert share < MOST, f"{name} holds the lock for {share:.0%} of its time at a stretch"


# -- loops ------------------------------------------------------------------------------------------------------------


def aliases(tree: ast.Module) -> set[str]:
    """Names that a module gives to a decorator that releases the lock, `jit` for most."""
    assigned = (node for node in tree.body if isinstance(node, ast.Assign))
    return {ast.unparse(node.targets[0]) for node in assigned if "nogil=True" in ast.unparse(node.value)}


def holding(path: Path) -> Iterator[str]:
    """Compiled functions that Python may call, and that hold the lock."""
    tree = ast.parse(path.read_text())
    free = aliases(tree)
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and node.level == 1 and node.module is not None:
            home = path.with_name(f"{node.module}.py")
            free |= aliases(ast.parse(home.read_text())) if home.is_file() else set()
    for node in ast.walk(tree):
        for decorator in node.decorator_list if isinstance(node, ast.FunctionDef) else ():
            text = ast.unparse(decorator)
            if "jit" in text and text.split("(")[0] not in free and "nogil=True" not in text:
                yield node.name


def test_compiled_loops_release_the_lock_unless_they_are_short() -> None:
    called: dict[str, set[str]] = {}
    for loop in loops():
        called.setdefault(loop.module, set()).add(loop.function)
    for module, functions in called.items():
        found = set(holding(ROOT.joinpath(*module.split(".")).with_suffix(".py"))) & functions
        listed = SHORT_LOOPS.get(module, "")
        assert found == (functions if listed == "*" else set(listed.split())), module
