"""Measurements in processes of their own: a benchmark runs its own file with ``--child``, which answers with JSON."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]


def run_apart(script: str, arguments: Mapping[str, Any], path: str | None = None) -> dict[str, Any]:
    """The answer of ``script`` to ``arguments``, with the project and ``path`` to import from; ``error`` holds the last
    lines of one that fails."""
    paths = filter(None, [str(ROOT), os.environ.get("PYTHONPATH"), path])
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(paths)}
    command = [sys.executable, script, "--child", json.dumps(arguments)]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    if done.returncode:
        return {"error": done.stderr.strip().splitlines()[-3:]}
    result: dict[str, Any] = json.loads(done.stdout.strip().splitlines()[-1])
    return result


def answer(asked: str, measures: Mapping[str, Callable[..., Any]]) -> None:
    """Print what one of ``measures``, that which ``what`` of the asked arguments names, gives for the others."""
    arguments = json.loads(asked)
    print(json.dumps(measures[arguments.pop("what")](**arguments)))
