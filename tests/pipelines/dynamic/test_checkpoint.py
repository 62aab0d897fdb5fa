"""Checkpoint and EvalMode beside DALI 2.4: what each call gives, or the exception that it raises, as DALI has it."""

import json
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import dali_run.dynamic as ndd
from dali_run.dynamic.checkpoint import Checkpoint


def reader() -> ndd.Reader:
    return ndd.readers.File(files=["a.jpg", "b.jpg"])


def rng(seed: int = 1) -> ndd.random.RNG:
    return ndd.random.RNG(seed=seed)


def with_ops(*pairs: tuple[str | None, Any]) -> Checkpoint:
    made = Checkpoint()
    for name, op in pairs:
        made.register(op, name)
    return made


def collected() -> Checkpoint:
    made = with_ops(("a", rng()))
    made.collect()
    return made


def loaded(text: str | None = None) -> Checkpoint:
    made = Checkpoint()
    made.deserialize(collected().serialize() if text is None else text)
    return made


def after(made: Checkpoint, *calls: Callable[[Checkpoint], Any]) -> Any:
    return [call(made) for call in calls][-1]


STATE = collected().get_state("a")
GENERATOR = rng()
CASES: list[tuple[Any, Callable[[], Any]]] = [
    (0, lambda: len(Checkpoint())),
    ([1, True, False, False, ("g",)], lambda: after(with_ops(("g", rng())), lambda c: [
        len(c), "g" in c, "h" in c, 3 in c, c.names])),
    (["__op_0", "__op_1", "__op_2"], lambda: (lambda c: [
        c.register(rng()), c.register(rng()), c.register(reader())])(Checkpoint())),
    ("a", lambda: after(with_ops(("a", GENERATOR)), lambda c: c.register(GENERATOR))),
    (RuntimeError, lambda: after(with_ops(("a", GENERATOR)), lambda c: c.register(GENERATOR, "b"))),
    ("a", lambda: after(with_ops(("a", rng())), lambda c: c.register(rng(), "a"))),
    (TypeError, lambda: after(with_ops(("a", rng())), lambda c: c.register(reader(), "a"))),
    (ValueError, lambda: Checkpoint().register(rng(), "")),
    (ValueError, lambda: Checkpoint().register(rng(), "__op_1")),
    (RuntimeError, lambda: collected().register(rng(), "b")),
    (RuntimeError, lambda: collected().register(rng())),
    ([True, False, "RNG"], lambda: after(collected(), lambda c: [
        c.is_complete, c.is_loaded, c._states["a"].type_name])),
    (None, lambda: with_ops(("a", rng())).get_state("a")),
    (KeyError, lambda: Checkpoint().get_state("a")),
    ([["states", "version"], 2, "RNG"], lambda: (lambda s: [sorted(s), s["version"], s["states"]["a"]["type"]])(
        json.loads(collected().serialize()))),
    (RuntimeError, lambda: Checkpoint().serialize()),
    *((ValueError, lambda text=text: loaded(text)) for text in (
        "[]", "{}", "x", '{"version":1,"states":{}}', '{"version":2,"states":[]}', '{"version":2,"states":{"a":3}}',
        '{"version":2,"states":{"a":{"state":"1","type":3}}}')),
    ([True, False, 0, "a"], lambda: after(loaded(), lambda c: [
        c.is_loaded, c.is_complete, len(c), c.register(rng(7), "a")])),
    (KeyError, lambda: loaded().register(rng(7), "b")),
    (TypeError, lambda: loaded().register(reader(), "a")),
    (KeyError, lambda: loaded().register(rng())),
    (TypeError, lambda: Checkpoint().set_state("a", "x", op_type=3)),
    (KeyError, lambda: collected().set_state("z", "x")),
    ("a", lambda: after(Checkpoint(), lambda c: c.set_state("a", STATE, op_type="RNG"),
                        lambda c: c.register(rng(5), "a"))),
    (TypeError, lambda: after(Checkpoint(), lambda c: c.set_state("a", "x", op_type="Other"),
                              lambda c: c.register(rng(5), "a"))),
    (RuntimeError, lambda: after(Checkpoint(), lambda c: c.set_state("a", "x"), Checkpoint.collect)),
    (RuntimeError, lambda: after(Checkpoint(), lambda c: c.set_state("a", "x"), Checkpoint.restore)),
    (None, lambda: with_ops(("a", rng())).restore()),
    (RuntimeError, lambda: after(with_ops(("a", rng()), ("b", rng())), lambda c: c.set_state("a", STATE),
                                 Checkpoint.restore)),
    (["sub/c_000.json", "sub/c_001.json", "sub/c_001.json"], lambda: after(collected(), lambda c: [
        c.save("sub/c_{seq:03d}.json"), c.save("sub/c_{seq:03d}.json"), Checkpoint().load("sub/c_{seq:03d}.json")])),
    (ValueError, lambda: collected().save("plain.json")),
    (ValueError, lambda: collected().save("p{x}.json")),
    (ValueError, lambda: collected().save("p{seq}{seq}.json")),
    (RuntimeError, lambda: Checkpoint().save("p{seq}.json")),
    (FileNotFoundError, lambda: Checkpoint().load("q{seq}.json")),
    (ValueError, lambda: Checkpoint().load("q.json")),
    ([0, False, ()], lambda: after(collected(), Checkpoint.clear, lambda c: [len(c), c.is_complete, c.names])),
]  # fmt: skip


@pytest.mark.parametrize(("wanted", "call"), CASES, ids=range(len(CASES)))
def test_as_dali(wanted: Any, call: Callable[[], Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    if isinstance(wanted, type):
        with pytest.raises(wanted):
            call()
    else:
        assert call() == wanted


def test_modes_belong_to_a_thread() -> None:
    seen = [ndd.EvalMode.current()]
    with ndd.EvalMode.sync_cpu:
        with ndd.EvalMode.deferred:
            seen.append(ndd.EvalMode.current())
            thread = threading.Thread(target=lambda: seen.append(ndd.EvalMode.current()))
            thread.start()
            thread.join()
        seen.append(ndd.EvalMode.current())
    assert [mode.name for mode in seen] == ["eager", "deferred", "eager", "sync_cpu"]
