"""A misspelt keyword of any Python function is answered in Python's words, with the name that was meant."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from pathlib import Path

import pytest

import dali_run
from dali_run import dynamic as nd
from dali_run import fn, load_spec, ops, pipeline_def, run_job
from dali_run.pipelines.graph.legacy_names import class_name
from dali_run.pipelines.python.functions import known_arguments, names

ROOT = Path(__file__).parents[3]
QUICKSTART = str(ROOT / "configs" / "quickstart.yaml")


@pipeline_def(batch_size=1, num_threads=1, device_id=None)
def of_size(size: int) -> object:
    return fn.constant(idata=[size])


@pipeline_def(batchsize=1, num_threads=1, device_id=None)
def misspelt() -> object:
    return fn.constant(idata=[1])


ENTRIES: dict[str, list[tuple[Callable[[], object], str]]] = {
    "run_job": [
        (lambda: run_job(QUICKSTART, outt="there"), "run_job(outt=...): there is no such argument, and the spec has no "
                                                    "variable 'outt'; did you mean out?"),
        (lambda: run_job(QUICKSTART, limitt=3), "did you mean limit?"),
        (lambda: run_job({"version": 1, "vars": {"images": "."}}, imagse="x"), "did you mean images?"),
        (lambda: run_job(QUICKSTART, {"pipeline.batchsize": 3}),
         "run_job(overrides={'pipeline.batchsize': ...}): the spec has no variable or section named "
         "'pipeline.batchsize'; did you mean pipeline.batch_size"),
        (lambda: run_job(QUICKSTART, {"pipeline.batch_size": "many"}), "run_job(overrides={'pipeline.batch_size': "),
    ],
    "load_spec": [
        (lambda: load_spec(QUICKSTART, batchsize=3), "load_spec has no argument 'batchsize', nor has Pipeline; "
                                                     "did you mean batch_size or batching?"),
        (lambda: load_spec(QUICKSTART, data="x"), "it is a variable of the spec, so pass overrides={'data': ...}"),
        (lambda: load_spec(QUICKSTART, {"outt": "x"}), "load_spec(overrides={'outt': ...}): the spec has no variable"),
    ],
    "Server": [
        (lambda: dali_run.Server(QUICKSTART, batchsize=3), "'batchsize', nor has Pipeline; did you mean batch_size"),
    ],
    "Pipeline": [
        (lambda: dali_run.Pipeline(1, 1, None, batchsize=3), "'batchsize'; did you mean batch_size or batching?"),
        (lambda: dali_run.Pipeline(1, 1, None, memori="1 GiB"), "'memori'; did you mean memory?"),
    ],
    "pipeline_def": [
        (lambda: of_size(siz=3), "of_size() has no argument 'siz', nor has Pipeline; did you mean size?"),
        (lambda: of_size(3, num_thread=2), "did you mean num_threads?"),
        (misspelt, "misspelt() has no argument 'batchsize', nor has Pipeline; did you mean batch_size or batching?"),
    ],
}  # fmt: skip


def test_all_entries_that_take_any_keyword_are_here() -> None:
    def takes_any(value: object) -> bool:
        try:
            kinds = {p.kind for p in inspect.signature(value).parameters.values()}  # type: ignore[arg-type]
        except (TypeError, ValueError):
            return False
        return inspect.Parameter.VAR_KEYWORD in kinds

    public = [name for name in dir(dali_run) if not name.startswith("_") and callable(getattr(dali_run, name))]
    assert {name for name in public if takes_any(getattr(dali_run, name))} <= set(ENTRIES)


@pytest.mark.parametrize(("call", "words"), [row for rows in ENTRIES.values() for row in rows])
def test_entries(call: Callable[[], object], words: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)  # nothing is to be run, here or anywhere
    with pytest.raises((TypeError, dali_run.SpecError)) as raised:
        call()
    assert words in str(raised.value)
    assert "--set" not in str(raised.value)
    assert ":1:1" not in str(raised.value)
    assert not list(tmp_path.iterdir())


def lookup(root: object, dotted: str) -> Callable[..., object]:
    for part in dotted.split("."):
        root = getattr(root, part)
    assert callable(root)
    return root


def test_operators() -> None:
    """As classes: each with a letter of its longest argument's name left out. And as functions."""
    tried = 0
    for name in names():
        cls = lookup(ops, class_name(name))
        known = sorted((a for a in known_arguments(name) if len(a) > 4), key=lambda a: (len(a), a))
        if not known or "function" in inspect.signature(cls).parameters:
            continue
        right = known[-1]
        with pytest.raises(KeyError, match=r"has no argument .*did you mean") as raised:
            cls(**{right[:2] + right[3:]: 1})
        assert right in str(raised.value), name
        tried += 1
    assert tried > 100
    with pytest.raises(KeyError, match="'interp_typ'; did you mean interp_type"), dali_run.Pipeline(1, 1, None):
        fn.resize(fn.constant(idata=[1]), interp_typ=1)
    with pytest.raises(TypeError, match="'interp_typ'; did you mean interp_type"):
        nd.resize(nd.as_tensor([[1]]), interp_typ=1)
