"""Nodes of torchdata's graphs, with torchdata where it is installed, else with a stand-in for its base class."""

from __future__ import annotations

import importlib
import sys
import types
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import dali_run.dynamic as ndd


class BaseNode:
    """As torchdata has it: iterating resets at the start, `state_dict` is the node's state."""

    _going = False

    def __iter__(self) -> Any:
        if not self._going:
            self.reset(None)
        self._going = True
        return self

    def __next__(self) -> Any:
        try:
            return self.next()  # type: ignore[attr-defined]
        except StopIteration:
            self._going = False
            raise

    def reset(self, initial_state: Any = None) -> None:
        self._going = True

    def state_dict(self) -> Any:
        return self.get_state()  # type: ignore[attr-defined]


@pytest.fixture
def nodes(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    try:
        import torchdata.nodes  # noqa: F401
    except ImportError:
        package, stand_in = types.ModuleType("torchdata"), types.ModuleType("torchdata.nodes")
        stand_in.BaseNode = BaseNode  # type: ignore[attr-defined]
        package.nodes = stand_in  # type: ignore[attr-defined]
        monkeypatch.setitem(sys.modules, "torchdata", package)
        monkeypatch.setitem(sys.modules, "torchdata.nodes", stand_in)
    yield importlib.import_module("dali_run.dynamic.pytorch.nodes")
    sys.modules.pop("dali_run.dynamic.pytorch.nodes", None)


@pytest.fixture
def root(tmp_path: Path) -> str:
    for k in range(5):
        np.save(tmp_path / f"{k}.npy", np.arange(k, k + 3))
    return str(tmp_path)


def labels(given: Any) -> list[int]:
    return [int(np.asarray(t)[0]) for t in given["x"].tensors]


def test_graphs(nodes: Any, root: str) -> None:
    def graph() -> Any:
        source = nodes.Reader(ndd.readers.Numpy, batch_size=2, output_names=["x"], file_root=root)
        return nodes.DictMapper(source, lambda x: x * 10, key="x")

    whole = graph()
    epochs = [[labels(x) for x in whole] for _ in range(2)]
    assert epochs == [[[0, 10], [20, 30], [40, 0]], [[10, 20], [30, 40], [0, 10]]]
    begun = graph()
    next(iter(begun))
    state = begun.state_dict()
    later = graph()
    later.reset(state)
    assert [labels(x) for x in later] == epochs[0][1:]
    assert nodes.Reader(ndd.readers.Numpy, batch_size=1, file_root=root).get_metadata()["epoch_size"] == 5


def test_names_of_outputs(nodes: Any, root: str) -> None:
    unnamed = nodes.Reader(ndd.readers.Numpy, batch_size=2, file_root=root)
    with pytest.raises(ValueError, match="has 1 outputs, output_names has 0"):
        next(iter(unnamed))
    usual = nodes.Reader(ndd.readers.File, batch_size=None, file_root=root, file_filters=["*.npy"])
    usual._reader = ndd.readers.File(files=[f"{root}/0.npy"], labels=[7])
    given = next(iter(usual))
    assert list(given) == ["data", "label"]
    assert given["label"].item() == 7


def test_tensors_of_pytorchs(nodes: Any, root: str) -> None:
    torch = pytest.importorskip("torch")
    source = nodes.Reader(ndd.readers.Numpy, batch_size=2, output_names=["x"], file_root=root)
    (found,) = next(iter(nodes.ToTorch(source)))
    assert torch.equal(found, torch.tensor([[0, 1, 2], [1, 2, 3]]))
