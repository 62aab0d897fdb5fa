"""The list of loops, types in words, packs, targets: what compiling ahead goes by."""

from __future__ import annotations

import inspect
from importlib import import_module
from pathlib import Path

import numba
import numpy as np
import pytest
from numba import types
from numba.core import ir
from numba.core.compiler import run_frontend
from numba.core.targetconfig import TargetConfig
from numba.core.typing import npydecl

from dali_run.ops.compiled import ahead, listed, numba_cache, numba_speed, store, target
from dali_run.ops.compiled.signatures import in_words, of_words
from dali_run.ops.compiled.stamp import PACKAGE, stamp

RECORD = np.dtype([("a", "<i4"), ("b", "<f4", (3,)), ("c", [("d", "<i8"), ("e", "u1")], (2,))])


@pytest.mark.parametrize(
    "value",
    [np.zeros(3, np.uint8), np.zeros((2, 3)).T, np.zeros((4, 4), np.float32)[::2, ::2], np.uint16(3), 4, 2.5, True,
     None, (1, 2.0), (1, 2, 3), np.zeros(2, RECORD), np.frombuffer(b"12345678", np.uint8),
     np.zeros(3, np.dtype([("a", "u1"), ("b", "<i4")], align=True)), np.zeros(3, bool)],
    ids=lambda v: str(getattr(v, "dtype", v)) + str(getattr(v, "shape", "")),
)  # fmt: skip
def test_types_are_told_in_words(value: object) -> None:
    kind = numba.typeof(value)
    words = in_words(kind)
    assert words is not None
    assert of_words(words) == kind


def test_what_has_no_words_is_left_out() -> None:
    assert in_words(types.unicode_type) is None
    assert in_words(types.UniTuple(types.unicode_type, 2)) is None
    with pytest.raises(ValueError, match="no type"):
        of_words("string")


def test_listed_loops_are_there() -> None:
    """A loop that was renamed would be missed by nobody: it would be compiled in front of the user again."""
    for module in sorted({loop.module for loop in listed.loops()}):
        import_module(f"{PACKAGE}.{module}")
    known = [
        loop for loop in listed.loops() if (f"{PACKAGE}.{loop.module}", loop.function) not in numba_cache.state.defined
    ]
    assert not known, "record the list anew (ops/compiled/listed.py)"
    for loop in listed.loops():
        function = numba_cache.function_of(numba_cache.state.defined[f"{PACKAGE}.{loop.module}", loop.function])
        taken = len(inspect.signature(function).parameters)
        assert taken == len(loop.types), f"{loop.function} of {loop.module} takes other arguments: record the list anew"
        assert numba_cache.key_of(function, tuple(map(of_words, loop.types))) == numba_cache.key_in_words(loop)
        assert numba_cache.file_of(function).resolve() == ahead.file_of(loop.module).resolve()


def test_a_pack_gives_what_it_was_given(tmp_path: Path) -> None:
    file = tmp_path / "x.pack"
    entries = {"f(int64)": ("1" * 32, b"one"), "g(bool)": ("2" * 32, b"two" * 1000)}
    store.write_pack(file, entries)
    pack = store.Pack(file)
    assert len(pack) == 2
    for key, (made_from, content) in entries.items():
        assert pack.find(key, made_from) == content
        assert pack.find(key, "3" * 32) is None
    assert pack.find("h()", "1" * 32) is None


def test_stamps_change_with_what_compiled_code_is_made_of(tmp_path: Path) -> None:
    (tmp_path / "a.py").write_text("import numba\nfrom .b import f\nfrom . import (\n    c,\n)\n")
    (tmp_path / "b.py").write_text("import numba\nfrom .d import X\n")
    for name in "cde":
        (tmp_path / f"{name}.py").write_text("X = 1\n")
    found = set()
    for name in ("", "a", "b", "c", "d", "e"):
        if name:
            with (tmp_path / f"{name}.py").open("a") as file:
                file.write("# more\n")
        stamp.cache_clear()
        found.add(stamp(tmp_path / "a.py"))
    stamp.cache_clear()
    assert len(found) == 5  # all but e
    assert stamp(tmp_path / "gone.py") == ""


def test_levels_of_processors(monkeypatch: pytest.MonkeyPatch) -> None:
    from llvmlite import binding
    from numba import config

    def levels(features: str, name: str | None = None) -> tuple[str, ...]:
        target.levels.cache_clear()
        monkeypatch.setattr(binding, "get_host_cpu_features", lambda: dict.fromkeys(features.split(), True))
        monkeypatch.setattr(config, "CPU_NAME", name)
        return target.levels()

    v2, v3 = target.LEVELS["x86-64-v2"], target.LEVELS["x86-64-v3"]
    monkeypatch.setattr("platform.machine", lambda: "x86_64")
    try:
        assert levels(v2) == ("x86-64-v2",)
        assert levels(v3) == ("x86-64-v3", "x86-64-v2")
        assert levels(v3.replace("avx2", "")) == ("x86-64-v2",)
        assert levels("sse2") == levels(v3, "generic") == levels(v3, "skylake") == ()
        assert levels(v3, "x86-64-v2") == ("x86-64-v2",)
        monkeypatch.setattr("platform.machine", lambda: "aarch64")
        assert levels(v3) == ()
    finally:
        target.levels.cache_clear()


def test_variables_of_statements_are_those_that_numba_lists(monkeypatch: pytest.MonkeyPatch) -> None:
    """`numba_speed` lists them faster. With another order or number, Numba would compile something else."""
    hooked = [(TargetConfig, "__eq__"), (TargetConfig, "__hash__"), (ir.Inst, "_rec_list_vars"),
              (npydecl, "ufunc_find_matching_loop")]  # fmt: skip
    for owner, name in hooked:
        assert getattr(owner, name).__module__.startswith("numba."), "a user's process has Numba as it is"
        monkeypatch.setattr(owner, name, getattr(owner, name))
    numba_speed.install()
    assert {getattr(owner, name).__module__ for owner, name in hooked} == {numba_speed.__name__}

    def of(value: object) -> list[object]:
        if isinstance(value, ir.Var):
            return [value]
        inner = value.__dict__ if isinstance(value, ir.Inst) else value
        inner = value._kws if isinstance(value, ir.Expr) else inner
        parts = inner.values() if isinstance(inner, dict) else inner if isinstance(inner, list | tuple) else ()
        return [name for part in parts for name in of(part)]

    def loop(x, y=2):  # type: ignore[no-untyped-def]
        total = {0: x, 1: [x, (y, x)]}
        for k in range(x):
            total[k + 1] = max(x, y, k)
            print(k, total, f"{x}{y}")
        return total[0][1:x], [v + 1 for v in y]

    statements = [s for block in run_frontend(loop).blocks.values() for s in block.body]
    assert len(statements) > 30
    for statement in statements:
        assert statement.list_vars() == of(statement)
