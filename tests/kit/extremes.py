"""Call every operator with numbers that no user intends: huge, negative, not finite; as constants, and per sample.

An operator may reject them when it is created, when shapes are inferred, or for the sample; or return a result. It must
not raise anything else, hang, crash, or take memory outside of the budget (`Context.empty` counts; it is limited here).

    python -m tests.kit.extremes [--first N] [--few] [OPERATOR ...]

writes lines of JSON: one before each call, and one per fault. A call that takes more than `HANG` seconds ends the
process; --first continues after it. --few uses the numbers that found most faults.
"""

from __future__ import annotations

import argparse
import faulthandler
import io
import json
import math
import os
import resource
import sys
import traceback
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any, get_args, get_origin

import numpy as np

from dali_run.ops.base import Operator, Parameter, Spec, operators, outputs_of, parameters, strip_optional
from dali_run.ops.batch import Batch, Samples, host_empty
from dali_run.ops.context import Context
from dali_run.ops.errors import DaliRunError
from dali_run.ops.types import from_numpy
from dali_run.pipelines.plugins import load_operators
from dali_run.readers.base import Reader
from dali_run.readers.external_source import ProgramInput

from .operators import of_example, operator

INTEGERS = (-(2**62), -(2**31), -1, 0, 2**24, 2**31 - 1, 2**31, 2**32 + 5, 2**40, 2**62, 2**63 - 1, 2**63, 2**64)
FLOATS = (math.nan, math.inf, -math.inf, -1.0, 0.0, 1e-45, 2.0**24, 2.0**31, 2.0**40, 2.0**62, 3e38, 1e300, -1e300)
FEW = ("nan", "inf", "-1", "-1.0", str(2**31), str(2**62), str(2**63 - 1), str(2.0**40), "3e+38", "1e-45")
"""The numbers of --few."""
OUTPUT = 1 << 25
"""Largest number of bytes that the outputs of a call may take."""
ELSE = 3 << 29
"""Largest number of bytes that the process may take in addition to its memory at the start."""
N = 3
HANG = 60


def _numbers(parameter: Parameter) -> tuple[type, int] | None:
    """Return the type of numbers that a parameter takes, and how many (0: one, not in a list); None if none."""
    for option in [strip_optional(parameter.type), *get_args(strip_optional(parameter.type))]:
        if option in (int, float):
            return option, 0
        if get_origin(option) is tuple and get_args(option)[0] in (int, float):
            inner = get_args(option)
            return inner[0], 2 if inner[-1] is ... else len(inner)
    return None


def _encoded(name: str) -> list[bytes]:
    from PIL import Image

    random = np.random.default_rng(1)
    found = []
    for i in range(N):
        file = io.BytesIO()
        if "audio" in name:
            import soundfile

            soundfile.write(file, random.random(900 + i).astype(np.float32) - 0.5, 8000, format="WAV", subtype="PCM_16")
        else:
            Image.fromarray(random.integers(0, 255, (230 + i, 240, 3), np.uint8)).save(file, "JPEG")
        found.append(file.getvalue())
    return found


def _inputs(name: str) -> Iterator[list[Batch]]:
    """Yield batches that an operator may take as its first input, likely ones first."""
    random, samples = np.random.default_rng(3), Samples.numbered(N)

    def of(shape: tuple[int, ...], dtype: str, layout: str = "", scale: float = 1.0) -> list[np.ndarray]:
        return [(random.random(shape) * scale).astype(dtype) for _ in range(N)]

    if "decoders" in name or "peek" in name:
        yield [Batch.from_list([np.frombuffer(b, np.uint8) for b in _encoded(name)], "", samples)]
    for shape, dtype, layout, scale in (
        ((11, 9, 3), "uint8", "HWC", 255), ((11, 9, 3), "float32", "HWC", 1), ((3, 8, 9, 3), "uint8", "FHWC", 255),
        ((), "int32", "", 4), ((300,), "float32", "", 1), ((257, 9), "float32", "ft", 1), ((4, 4), "float32", "", 1),
        ((5, 2), "float32", "", 1), ((4,), "int64", "", 3), ((11, 9, 1), "int32", "HWC", 2),
        ((12, 10), "uint8", "HW", 255), ((226, 230, 3), "uint8", "HWC", 255),
    ):  # fmt: skip
        yield [Batch.from_list(of(shape, dtype, layout, scale), layout, samples)]
    boxes = Batch.from_list(
        [np.sort(b.reshape(-1, 2, 2), 1).reshape(-1, 4) for b in of((4, 4), "float32")], "", samples
    )
    labels = Batch.from_list(of((4,), "int32", "", 5), "", samples)
    yield [boxes, labels]


def _special(name: str) -> tuple[dict[str, Any], list[Batch]] | None:
    """Return arguments and inputs for an operator whose example needs inputs that `_inputs` does not make."""
    random, samples = np.random.default_rng(5), Samples.numbered(N)

    def of(make: Any, layout: str = "") -> Batch:
        return Batch.from_list([np.asarray(make(i)) for i in range(N)], layout, samples)

    images = of(lambda i: random.integers(0, 255, (20 + i, 24, 3), np.uint8), "HWC")
    boxes = of(lambda i: np.float32([[0.1, 0.1, 0.5, 0.6], [0.3, 0.2, 0.9, 0.8]]))
    labels = of(lambda i: np.int32([1, 2]))
    if name == "bbox_rotate":
        return {"angle": 20.0, "input_shape": [100, 120]}, [boxes, labels]
    if name == "decoders.inflate":  # LZ4: twelve literal bytes
        return {"shape": [3, 4]}, [of(lambda i: np.uint8([0xC0, *range(12)]))]
    if name == "encoded_as":
        return {"shorter": 230}, [of(lambda i: np.frombuffer(_encoded(name)[i], np.uint8))]
    if name == "experimental.warp_perspective":
        return {"matrix": [1.0, 0.1, 2.0, 0.0, 0.9, 1.0, 0.001, 0.0, 1.0], "size": [15.0, 16.0]}, [images]
    if name == "optical_flow":
        return {}, [of(lambda i: random.integers(0, 255, (3, 16, 16 + i, 3), np.uint8), "FHWC")]
    if name == "permute_batch":
        return {"indices": [1, 2, 0]}, [images]
    if name == "random_crop_generator":
        return {}, [of(lambda i: np.int64([40 + i, 50, 3]))]
    if name in ("reductions.std_dev", "reductions.variance"):
        return {"axes": [0, 1]}, [images, of(lambda i: np.float32([[[90.0, 99.0, 120.0]]]))]
    if name == "roi_random_crop":
        return {"crop_shape": [5, 6], "roi_start": [1, 2], "roi_end": [9, 12], "in_shape": [20, 24]}, []
    if name == "ssd_random_crop":
        return {}, [images, boxes, labels]
    if name == "video_cuts":
        import tempfile

        from .files.videos import make_video

        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "v.mkv"
            make_video(path, 8, "libvpx-vp9")
            data = np.frombuffer(path.read_bytes(), np.uint8)
        return {"seconds": 0.1}, [of(lambda i: data)]
    return None


def _cut_apart(op: Any, inputs: list[Batch]) -> list[Any]:
    """Call an operator that splits samples, as the engine does: for the number of items, then for their views."""
    counts = op.counts(inputs[0])
    assert (counts >= 0).all(), f"numbers of parts are negative: {counts.tolist()}"
    assert (counts <= np.maximum(inputs[0].shapes[:, 0], 1)).all(), f"more parts than items: {counts.tolist()}"
    owner = np.repeat(np.arange(N), counts)
    part = np.concatenate([np.arange(c) for c in counts.tolist()]).astype(np.int32)
    for made in op.parts(inputs, owner, part, Samples.numbered(len(owner))):
        sizes = made.shapes.astype(object).prod(axis=1) if made.ndim else np.ones(len(made), object)
        for i, size in enumerate(sizes):
            assert size == 0 or 0 <= made.offsets[i] <= len(made.data) - size, "a part lies outside of the data"
    return []


def _shaped(batch: Batch) -> Spec:
    return Spec((None,) * batch.ndim, from_numpy(batch.dtype), batch.layout)


def _bounded(n: int, dtype: Any) -> Any:
    if n < 0 or n * np.dtype(dtype).itemsize > OUTPUT:
        raise _TooLargeError(f"{n} of {dtype}")
    return host_empty(n, dtype)


class _TooLargeError(MemoryError):
    """Stand-in for an exhausted memory budget, at which the engine rejects the sample."""


def _call(op: Any, inputs: list[Batch], args: dict[str, Batch]) -> list[Any]:
    """Call the cpu kernel. Return its rejects. Raises AssertionError if its outputs are not batches of the samples."""
    samples = inputs[0].samples if inputs else Samples.numbered(N)
    if op.name == "split_samples":
        return _cut_apart(op, inputs)
    ctx = Context(op, "cpu", samples, args=args, allocate=_bounded, seed=3)
    try:
        results = outputs_of(op.kernel("cpu")(ctx, *inputs))
    except _TooLargeError:
        return ctx.rejects
    for batch in results:
        assert len(batch) == len(samples), "another number of samples"
        assert (batch.shapes >= 0).all(), f"a shape is negative: {batch.shapes.tolist()}"
        sizes = batch.shapes.astype(object).prod(axis=1) if batch.ndim else np.ones(len(batch), object)
        for i, size in enumerate(sizes):
            assert size == 0 or 0 <= batch.offsets[i] <= len(batch.data) - size, "a sample lies outside of the data"
    return ctx.rejects


def _usual(cls: type[Operator]) -> tuple[Any, list[Batch]] | None:
    """Return the operator of the example in the documentation of ``cls``, and inputs that it accepts."""
    special = _special(cls.name)
    try:
        op = of_example(cls) if special is None else operator(cls.name, **special[0])
    except DaliRunError:  # arguments that the example takes as inputs are missing
        return None
    if special is not None:
        candidates: list[list[Batch]] = [special[1]]
    elif not cls.inputs[0] and not cls.inputs[1]:
        candidates = [[]]
    else:
        candidates = [g for given in _inputs(cls.name) for g in (given * max(1, cls.inputs[0] // len(given)),)]
        candidates += [[]] if not cls.inputs[0] else []
    for given in candidates:
        if not cls.inputs[0] <= len(given) <= cls.inputs[1]:
            continue
        try:
            op.infer(*map(_shaped, given))
            if not _call(op, given, {}):
                return op, given
        except Exception:  # it accepts other inputs
            continue
    return None


def cases(cls: type[Operator]) -> Iterator[tuple[str, Any, bool]]:
    """Yield the arguments to test, their values, and whether the values are passed per sample."""
    for name, parameter in parameters(cls).items():
        found = _numbers(parameter)
        if found is None or parameter.arg.ignored or parameter.arg.deprecated:
            continue
        kind, length = found
        for value in INTEGERS if kind is int else FLOATS:
            yield name, [value] * length if length else value, False
            if length == 2:
                yield name, [1, value], False
            if parameter.arg.per_sample and (kind is float or -(2**63) <= value < 2**63):
                yield name, [value] * length if length else value, True


def _too_large(op: Any, outputs: Any, inputs: list[Batch]) -> bool:
    """Return whether the engine would reject the samples for their size, before the kernel is called."""
    foreseen = op.estimate_memory("cpu", *inputs)
    if foreseen is not None:
        return bool((foreseen[0].astype(float) * 8 + foreseen[1] > OUTPUT).any())
    shapes = [o.shape for o in (outputs if isinstance(outputs, tuple) else (outputs,))]
    return any(s is not None and None not in s and 8 * math.prod(s) > OUTPUT for s in shapes)


def _given(value: Any, samples: Samples, odd: int = 1) -> Batch:
    """Return an argument input that has usual values, except for sample ``odd``."""
    unusual = np.array(value, np.float32 if isinstance(np.ravel(value)[0], float) else np.int64)
    usual = np.ones_like(unusual)
    return Batch.from_list([unusual if i == odd else usual for i in range(N)], "", samples)


def one(cls: type[Operator], usual: tuple[Any, list[Batch]], name: str, value: Any, per_sample: bool) -> str:
    """Make one call. Return the problem; empty if the operator rejects the value or gives a result."""
    example, inputs = usual
    given = {p: getattr(example, p) for p in parameters(cls) if example.is_set(p) and p != name}
    samples = inputs[0].samples if inputs else Samples.numbered(N)
    try:
        if per_sample:
            op, args = operator(cls.name, [name], **given), {name: _given(value, samples)}
        else:
            op, args = operator(cls.name, **given, **{name: value}), {}
        outputs = op.infer(*map(_shaped, inputs))
        if _too_large(op, outputs, inputs):
            return ""
    except DaliRunError:
        return ""
    except ValueError as e:  # raised by `coerce`, and reported with the argument's name
        return "" if traceback.extract_tb(e.__traceback__)[-1].filename.endswith("ops/base.py") else _told(e)
    except Exception as e:
        return _told(e)
    try:
        with warnings.catch_warnings(record=True) as warned:
            warnings.simplefilter("always")
            rejects = _call(op, inputs, args)
    except DaliRunError:
        return ""
    except Exception as e:
        return _told(e)
    if per_sample and any(r.slot != 1 for r in rejects):
        others = {r.slot for r in _call(op, inputs, {name: _given(value, samples, odd=-1)})}
        if {r.slot for r in rejects} - others - {1}:
            return f"refuses samples {[r.slot for r in rejects]}, where only 1 is odd: {rejects[0].message}"
    noisy = [w for w in warned if "invalid value encountered in cast" in str(w.message)]
    return f"{noisy[0].message} ({noisy[0].filename}:{noisy[0].lineno})" if noisy else ""


def _told(e: Exception) -> str:
    last = traceback.extract_tb(e.__traceback__)[-1]
    ours = [f for f in traceback.extract_tb(e.__traceback__) if "/dali_run/" in f.filename][-1:]
    return f"{type(e).__name__}: {e} ({', '.join(f'{f.filename}:{f.lineno}' for f in [*ours, last])})"


def main() -> None:
    """Make one call after the other in this process; a call that hangs ends the process."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("operators", nargs="*", help="all by default")
    parser.add_argument("--first", type=int, default=0, help="cases to leave out")
    parser.add_argument("--few", action="store_true", help="fewer numbers")
    asked = parser.parse_args()
    faulthandler.enable()
    load_operators()
    status = dict(line.split(":", 1) for line in Path("/proc/self/status").read_text().splitlines())
    size = int(status["VmSize"].split()[0]) * 1024
    resource.setrlimit(resource.RLIMIT_AS, (size + ELSE, size + ELSE))
    number = 0
    for name, cls in operators().items():
        if asked.operators and name not in asked.operators:
            continue
        if (
            "cpu" not in cls.stages
            or name.startswith("_")
            or not cls.example
            or issubclass(cls, (Reader, ProgramInput))
        ):
            continue
        usual, untried = None, False
        for argument, value, per_sample in cases(cls):
            number += 1
            last = value[-1] if isinstance(value, list) else value
            if number <= asked.first or untried or (asked.few and str(last) not in FEW):
                continue
            usual = usual or _usual(cls)
            if usual is None:
                say("FAULT", name, "takes none of the inputs: add some to `_special`")
                untried = True
                continue
            say(number, name, argument, repr(value), per_sample)
            faulthandler.dump_traceback_later(HANG, exit=True)
            fault = one(cls, usual, argument, value, per_sample)
            faulthandler.cancel_dump_traceback_later()
            if fault:
                say("FAULT", name, argument, repr(value), per_sample, fault)
    sys.stdout.flush()
    os._exit(0)  # with so little memory, threads of libraries may never end


def say(*what: Any) -> None:
    sys.stdout.write(json.dumps(what) + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    main()
