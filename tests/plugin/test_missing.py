"""Plugins whose framework is not installed say what to install."""

from __future__ import annotations

import sys
from importlib import import_module

import pytest


@pytest.mark.parametrize(
    ("plugin", "package", "install"),
    [
        ("dali_run.plugin.pytorch", "torch", "'dali-run[torch]'"),
        ("dali_run.plugin.jax", "jax", "'dali-run[jax]'"),
        ("dali_run.plugin.tf", "tensorflow", "tensorflow"),
        ("dali_run.plugin.paddle", "paddle", "paddlepaddle"),
        ("dali_run.dynamic.pytorch.nodes", "torchdata", "torchdata"),
    ],
)
def test_a_missing_framework_is_named(plugin: str, package: str, install: str, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in sys.modules if name.startswith((plugin, f"{package}."))]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, package, None)
    with pytest.raises(ModuleNotFoundError) as e:
        import_module(plugin)
    assert "is not installed" in str(e.value)
    assert str(e.value).endswith(f"pip install {install}")
