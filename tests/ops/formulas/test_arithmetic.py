"""expr: DALI's own results for every type and operator, broadcasting of ragged batches, and the generated CUDA."""

from __future__ import annotations

import ctypes
import json
import shutil
import subprocess
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from dali_run.ops.base import Spec
from dali_run.ops.batch import Batch, Samples
from dali_run.ops.context import Context
from dali_run.ops.errors import SpecError
from dali_run.ops.formulas import expression
from dali_run.ops.formulas.arithmetic import Expr
from dali_run.ops.formulas.expression_cuda import source
from dali_run.ops.types import DALIDataType, from_numpy
from tests.kit.ops.formulas import batch, calculate

GOLDEN = json.loads((Path(__file__).parents[2] / "golden" / "arithmetic.json").read_text())
CUDA = Path(__file__).parents[3] / "ops" / "cuda"


def case_inputs(case: dict[str, Any]) -> dict[str, np.ndarray]:
    return {n: np.array(GOLDEN["values"][t], t) for n, t in case["inputs"].items()}


def tolerance(text: str, dtype: np.dtype) -> float:
    """Functions of libm differ by units in the last place; everything else is exact."""
    inexact = (
        any(f + "(" in text for f in ("sqrt", "cbrt", "sin", "atan", "log", "tanh", "atan2", "pow")) or "**" in text
    )
    return 4 * float(np.finfo(dtype).eps) if inexact and dtype.kind == "f" else 0.0


def same(got: np.ndarray, want: np.ndarray, text: str, context: Any) -> None:
    assert got.dtype == want.dtype, context
    np.testing.assert_allclose(got, want, rtol=tolerance(text, want.dtype), atol=0, err_msg=str(context))


@pytest.mark.parametrize("types", sorted({tuple(c["inputs"].values()) for c in GOLDEN["cases"]}), ids="-".join)
def test_results_are_those_of_dali(types: tuple[str, ...]) -> None:
    cases = [c for c in GOLDEN["cases"] if tuple(c["inputs"].values()) == types]
    assert cases
    for case in cases:
        inputs = [batch(v) for v in case_inputs(case).values()]
        if case.get("refused"):
            with pytest.raises(SpecError):
                calculate(case["expr"], *inputs)
            continue
        got = calculate(case["expr"], *inputs)
        same(got.sample(0), np.array(case["values"], case["dtype"]), case["expr"], case)


def test_infer_says_what_the_kernel_gives() -> None:
    for case in GOLDEN["cases"][::7]:
        specs = [Spec((4,), from_numpy(t)) for t in case["inputs"].values()]
        if case.get("refused"):
            with pytest.raises(SpecError):
                Expr(expr=case["expr"]).infer(*specs)
        else:
            assert Expr(expr=case["expr"]).infer(*specs) == Spec((4,), from_numpy(case["dtype"])), case


# -- what DALI leaves undefined, and what it has not ---------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "dtype", "given", "want"),
    [
        ("a // (a - a)", np.int32, [5, -5], [0, 0]),
        ("a % (a - a)", np.uint8, [5, 6], [0, 0]),
        ("a // -1", np.int32, [-(2**31), 4], [-(2**31), -4]),
        ("a % -1", np.int64, [-(2**63), 4], [0, 0]),
        ("a << 33", np.int32, [1, -1], [0, 0]),
        ("a >> 40", np.int32, [1, -1], [0, -1]),
        ("a >> -1", np.int32, [1, -1], [0, -1]),
        ("uint8(a)", np.float32, [-1, 0.5, 1.5, 2.4, 300], [0, 1, 2, 2, 255]),
        ("int64(3000000000) + a", np.int64, [1, 2], [3000000001, 3000000002]),
        ("float16(a)", np.float32, [1.5, 2.5], [1.5, 2.5]),
        ("float(a) * 2", np.float16, [1.5, 2.5], [3, 5]),
        ("bool(a)", np.float32, [0, 0.3, 2], [False, False, True]),
        ("not a", np.int32, [0, 5], [True, False]),
        ("a > 0 and a < 4", np.int32, [0, 3, 5], [False, True, False]),
        ("a < 1 or a > 4", np.int32, [0, 3, 5], [True, False, True]),
    ],
)
def test_rules_of_our_own(text: str, dtype: Any, given: list[float], want: list[float]) -> None:
    got = calculate(text, batch(given, dtype=dtype)).sample(0)
    assert got.tolist() == want


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("a +", "is not an expression"),
        ("a.real", "no attributes"),
        ("a[0:1]", "slice step"),
        ("0 < a < 5", "cannot be chained"),
        ("a if a else a", "`if:` step"),
        ("__import__('os')", "no function '__import__'"),
        ("sqt(a)", "did you mean sqrt"),
        ("max(a)", "max takes 2 arguments, got 1"),
        ("max(a, b=a)", "by position"),
        ("'text'", "is not a number"),
        ("a + 1j", "is not a number"),
        ("a @ a", "MatMult is not allowed"),
        ("a in a", "In is not allowed"),
        ("(a := 1)", "NamedExpr is not allowed"),
        ("lambda: a", "cannot be defined"),
        ("a + zzz", "'zzz' in the expression is not an input"),
        ("a + 2147483648", "int64(...)"),
        ("(" * 300 + "a" + ")" * 300, "not an expression|nested|parsed"),
        ("-" * 3000 + "a", "nested|parsed"),
        ("a" + " + a" * 500, "nested"),
        ("a" * 5000, "longer than"),
        ("a\0", "expression"),
        ("", "is not an expression"),
    ],
)
def test_what_an_expression_may_not_be(text: str, reason: str) -> None:
    with pytest.raises(SpecError, match=reason.replace("(", r"\(").replace(")", r"\)").replace("...", r"\.\.\.")):
        Expr(expr=text).check()


def test_float16_is_refused_with_the_remedy() -> None:
    with pytest.raises(SpecError, match=r"float16 is not supported; convert it first: float\(x\)"):
        Expr(expr="a + 1").infer(Spec((2,), DALIDataType.FLOAT16))


# -- broadcasting ---------------------------------------------------------------------------------------------------

RAGGED = [np.arange(h * w * 3, dtype=np.uint8).reshape(h, w, 3) for h, w in ((2, 3), (4, 1), (2, 3), (0, 5))]


def check_against_numpy(text: str, *lists: list[np.ndarray]) -> None:
    got = calculate(text, *(batch(*arrays) for arrays in lists))
    for i, arrays in enumerate(zip(*lists, strict=True)):
        names = dict(zip("abc", (a.astype(np.float32) for a in arrays), strict=False))
        want = eval(text, {}, names)
        assert got.shapes[i].tolist() == list(want.shape)
        np.testing.assert_array_equal(got.sample(i), want)


def test_ragged_images_with_constants() -> None:
    check_against_numpy("a * 1.5 + 2.0", RAGGED)


def test_ragged_images_with_a_number_each() -> None:
    check_against_numpy("a * b", RAGGED, [np.float32(k) for k in (1, 2, 3, 4)])


def test_ragged_images_with_a_vector_each() -> None:
    vectors = [np.array(v, np.float32) for v in ([1, 2, 3], [0, 1, 0], [2, 2, 2], [1, 1, 1])]
    check_against_numpy("(a - b) * c", RAGGED, vectors, [np.float32(k) for k in (1, 2, 3, 4)])


def test_both_sides_grow() -> None:
    columns = [np.arange(n, dtype=np.float32)[:, None] for n in (2, 3, 3)]
    rows = [np.arange(n, dtype=np.float32) for n in (4, 1, 5)]
    check_against_numpy("a + 10.0 * b", columns, rows)


def test_many_small_samples_take_few_calls(monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither ragged elementwise nor uniform broadcast batches may cost a call a sample."""
    from dali_run.ops.formulas import arithmetic

    calls = []
    plain = arithmetic.evaluate
    monkeypatch.setattr(arithmetic, "evaluate", lambda *a: calls.append(1) or plain(*a))
    ragged = batch(*(np.zeros(i % 5, np.float32) for i in range(1000)))
    calculate("a", ragged)
    calculate("a", batch(*np.zeros((1000, 2, 3), np.float32)), batch(*np.zeros((1000, 3), np.float32)))
    assert len(calls) == 2


def test_gaps_and_overlaps() -> None:
    data = np.arange(20, dtype=np.int32)
    samples = Samples.numbered(3)
    gapped = Batch(data, np.array([10, 0, 2]), np.full((3, 1), 4, np.int32), "", samples)
    got = calculate("a + b", gapped, Batch(data, np.array([5, 5, 6]), np.zeros((3, 0), np.int32), "", samples))
    assert [s.tolist() for s in got] == [[15, 16, 17, 18], [5, 6, 7, 8], [8, 9, 10, 11]]


def test_blocks_do_not_show() -> None:
    values = np.arange(100_003, dtype=np.float32)
    np.testing.assert_array_equal(calculate("a * 3.0 - 1.0", batch(values)).sample(0), values * 3 - 1)


def test_large_samples_with_a_number_each() -> None:
    large = [np.arange(n, dtype=np.float32) for n in (70_001, 131_072, 9)]
    check_against_numpy("a * b + 1", large, [np.float32(k) for k in (2, 3, 4)])
    samples = batch(*large)
    some = samples.take(np.array([1]))
    np.testing.assert_array_equal(calculate("a + b", some, some.take([0])).sample(0), large[1] * 2)


def test_what_does_not_broadcast_is_rejected_alone() -> None:
    rejects: list[Any] = []
    a = batch(np.ones((2, 3), np.float32), np.ones((2, 4), np.float32))
    got = calculate("a + b", a, batch(np.ones(3, np.float32), np.ones(3, np.float32)), rejects=rejects)
    assert [(r.slot, r.code) for r in rejects] == [(1, "bad_shape")]
    assert "2x4 and 3" in rejects[0].message
    np.testing.assert_array_equal(got.sample(0), np.full((2, 3), 2))


def test_empty_batch() -> None:
    none = Batch.allocate(np.empty, np.zeros((0, 3), np.int32), np.uint8, "HWC", Samples.numbered(0))
    got = calculate("a * 2", none)
    assert len(got) == 0
    assert got.dtype == np.int32


def test_layouts() -> None:
    hwc, channels = batch(np.ones((2, 3, 3)), layout="HWC"), batch(np.ones(3), layout="C")
    assert calculate("a + b", channels, hwc).layout == "HWC"
    assert calculate("a + b", batch(1.0), hwc).layout == "HWC"
    with pytest.raises(SpecError, match="layouts HWC and W do not go together"):
        calculate("a + b", hwc, batch(np.ones(3), layout="W"))


def test_infer_shapes() -> None:
    u8 = DALIDataType.UINT8
    op = Expr(expr="a + b")
    assert op.infer(Spec((None, 5, 3), u8, "HWC"), Spec((3,), u8)) == Spec((None, 5, 3), u8, "HWC")
    assert op.infer(Spec((None, 1), u8), Spec((4, 1), u8)) == Spec((4, 1), u8)
    assert op.infer(Spec(None, u8), Spec((4, 1), u8)).shape is None
    with pytest.raises(SpecError, match="shapes 2x3 and 2 do not broadcast"):
        op.infer(Spec((2, 3), u8), Spec((2,), u8))


def test_named_inputs() -> None:
    op = Expr(expr="images - mean", names=("mean", "images"))
    op.check()
    one, two = batch(1.0), batch(5.0)
    assert op.cpu(Context(op, "cpu", one.samples), one, two).sample(0) == 4.0


# -- the generated CUDA, compiled for the host ----------------------------------------------------------------------

HOST = """
#include <cmath>
#define EMULATED
#define __device__
#define __global__
#define __forceinline__ inline
struct Index { unsigned x, y, z; };
static const Index blockIdx{0, 0, 0}, threadIdx{0, 0, 0}, blockDim{1, 1, 1}, gridDim{1, 1, 1};
inline double __longlong_as_double(long long v) { double d; __builtin_memcpy(&d, &v, 8); return d; }
"""


def host_library(texts: list[str], folder: Path) -> ctypes.CDLL:
    """Kernels ``expression_0`` ... as one library: CUDA C++ without intrinsics is C++."""
    whole = HOST + "".join(t.replace("void expression(", f"void expression_{i}(") for i, t in enumerate(texts))
    (folder / "kernels.cpp").write_text(whole)
    subprocess.run(["g++", "-std=c++17", "-O0", "-ffp-contract=off", "-w", "-shared", "-fPIC", f"-I{CUDA}", "-o",
                    "kernels.so", "kernels.cpp"], cwd=folder, check=True)  # fmt: skip
    return ctypes.CDLL(str(folder / "kernels.so"))


@pytest.mark.skipif(shutil.which("g++") is None, reason="needs g++")
def test_generated_kernels_agree_with_dali(tmp_path: Path) -> None:
    cases = [c for c in GOLDEN["cases"] if not c.get("refused")][::3]
    texts = []
    for case in cases:
        dtypes = {n: v.dtype for n, v in case_inputs(case).items()}
        what = expression.typed(expression.parse(case["expr"]), dtypes)
        texts.append(source(what, tuple(dtypes), tuple(dtypes.values()), ["full"] * len(dtypes), 1))
    library = host_library(texts, tmp_path)
    pointer = np.ctypeslib.ndpointer
    start, size = np.zeros(1, np.int64), np.full(1, 4, np.int64)
    for i, case in enumerate(cases):
        inputs = list(case_inputs(case).values())
        want = np.array(case["values"], case["dtype"])
        got = np.empty_like(want)
        kernel = getattr(library, f"expression_{i}")
        kernel.argtypes = [pointer(), pointer(), pointer(), ctypes.c_int] + [pointer()] * (2 * len(inputs))
        kernel(got, start, size, 1, *(x for v in inputs for x in (v, start)))
        same(got, want, case["expr"], case)


class RecordingLane:
    """A lane whose launches run on the host, one block of one thread."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.modes: list[str] = []

    def empty(self, n: int, dtype: Any) -> Any:
        return np.empty(n, dtype)

    def upload(self, *arrays: np.ndarray) -> tuple[np.ndarray, ...]:
        return tuple(np.ascontiguousarray(a) for a in arrays)

    def launch_text(self, text: str, kernel: str, grid: Any, block: int, *args: Any) -> None:
        self.modes.append(text)
        self.folder.mkdir(exist_ok=True)
        run = host_library([text], self.folder).expression_0
        run.argtypes = [ctypes.c_int if np.ndim(a) == 0 else np.ctypeslib.ndpointer() for a in args]
        run(*(int(a) if np.ndim(a) == 0 else a for a in args))


@pytest.mark.skipif(shutil.which("g++") is None, reason="needs g++")
@pytest.mark.parametrize(
    ("text", "others"),
    [
        ("a * 2 - 1", []),
        ("a * b", [[np.float32(k) for k in (1, 2, 3, 4)]]),
        ("(a - b) * c", [[np.arange(3, dtype=np.float32) + k for k in range(4)], [np.int8(k) for k in (1, -2, 3, 4)]]),
        ("bool(a) & (b > 0)", [[np.ones((1, 1), np.float32)] * 4]),
        ("float64(a) / uint8(b)", [[np.ones((1, 3), np.float32)] * 4]),
    ],
)
def test_generated_kernels_broadcast_ragged_batches(text: str, others: list[list[np.ndarray]], tmp_path: Path) -> None:
    batches = [batch(*RAGGED), *(batch(*o) for o in others)]
    op = Expr(expr=text)
    lane = RecordingLane(tmp_path / "kernel")
    got = op.gpu(Context(op, "gpu", batches[0].samples, device=lane), *batches)
    want = calculate(text, *batches)
    assert got.dtype == want.dtype
    np.testing.assert_array_equal(got.shapes, want.shapes)
    np.testing.assert_array_equal(got.data, want.data)


@pytest.mark.gpu(emulated=False)
def test_gpu_agrees_with_the_cpu() -> None:
    from dali_run.ops.gpu.lane import Lane

    with Lane() as lane:
        for case in [c for c in GOLDEN["cases"] if not c.get("refused")][::5]:
            host = [batch(v, v) for v in case_inputs(case).values()]
            op = Expr(expr=case["expr"])
            out = op.gpu(Context(op, "gpu", host[0].samples, device=lane), *map(lane.to_device, host))
            back = lane.to_host(out)
            lane.synchronize()
            same(back.sample(1), np.array(case["values"], case["dtype"]), case["expr"], case)
        ragged = [batch(*RAGGED), batch(*[np.arange(3, dtype=np.float32) + k for k in range(4)])]
        op = Expr(expr="(a - b) * 0.5")
        back = lane.to_host(op.gpu(Context(op, "gpu", ragged[0].samples, device=lane), *map(lane.to_device, ragged)))
        lane.synchronize()
        np.testing.assert_array_equal(back.data, calculate(op.expr, *ragged).data)
