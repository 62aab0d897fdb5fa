"""Specs that are no specs: each ends in a SpecError with a reason, soon, and nothing of it is executed."""

from __future__ import annotations

import os
import random
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from dali_run.ops.errors import SpecError
from dali_run.pipelines.problems import SpecErrors
from dali_run.pipelines.spec.build import load_spec
from tests.kit.jobs.hostile_specs import mutated, note_event, watched

from ...kit.specs import VALID, load

ROOT = Path(__file__).parents[3]


@pytest.fixture(scope="module")
def watch() -> dict[str, Any]:
    """Records what Python is asked to open, run or import while ``watch["on"]``; audit hooks cannot be removed."""
    sys.addaudithook(note_event)
    return watched


@pytest.mark.parametrize(("folder", "count"), [("yaml_bad", 160), ("json_bad", 60)])
def test_collected_files(folder: str, count: int, shared_data: Path, watch: dict[str, Any], tmp_path: Path) -> None:
    files = sorted(p for p in (shared_data / "corpus" / folder).iterdir() if p.is_file())
    assert len(files) >= count
    load(VALID, tmp_path)  # whatever is imported or listed once is so before
    for file in files:
        with pytest.raises(SpecError):
            load_spec(file)  # warms up what a first error imports, difflib for example
    for file in files:
        watch.update(on=True, events=[])
        began = time.thread_time()
        try:
            with pytest.raises(SpecErrors) as caught:
                load_spec(file)
        finally:
            watch["on"] = False
        assert time.thread_time() - began < 30, file.name  # no measurement: a bomb takes minutes
        assert watch["events"] == [f"open {file}"], file.name
        lines = str(caught.value).splitlines()
        assert lines, file.name
        for line in lines[:50]:
            assert line.startswith(f"{file}:"), file.name
            assert len(line) < 1000, file.name


def test_what_the_watch_sees(watch: dict[str, Any], tmp_path: Path) -> None:
    """A tag that PyYAML's unsafe loaders run: the watch would tell."""
    import yaml

    text = f"!!python/object/apply:os.mkdir ['{tmp_path / 'made'}']"
    watch.update(on=True, events=[])
    yaml.unsafe_load(text)
    watch["on"] = False
    assert any(e.startswith("os.mkdir") for e in watch["events"])
    (tmp_path / "made").rmdir()
    with pytest.raises(SpecErrors, match="tag"):
        load(text, tmp_path)
    assert not (tmp_path / "made").exists()


def test_mutations_of_a_valid_spec_are_valid_or_spec_errors(tmp_path: Path) -> None:
    rng = random.Random(20)
    file = tmp_path / "t.yaml"
    outcomes = {"valid": 0, "refused": 0}
    for _ in range(500):
        content = mutated(VALID, rng)
        file.write_bytes(content if isinstance(content, bytes) else content.encode("utf-8", "surrogatepass"))
        try:
            load_spec(file)
            outcomes["valid"] += 1
        except SpecErrors as e:
            outcomes["refused"] += len(e.problems) > 0
    assert sum(outcomes.values()) == 500, outcomes
    assert min(outcomes.values()) > 20, outcomes


def test_long_chains_need_no_recursion(tmp_path: Path) -> None:
    from dali_run.pipelines.compile.plan import assign_seeds

    steps = "  - {op: example.turn, in: images, count: 1, out: images}\n" * 1500
    text = f"version: 1\ngraph:\n  - {{op: example.make, out: [images, flag]}}\n{steps}outputs: [images]\n"
    built = load(text, tmp_path)
    assert len(built.graph.nodes) == 1501
    assert assign_seeds(built.graph, 1) == {}


def test_checking_a_spec_imports_no_compiler_and_no_gpu() -> None:
    """`validate` must answer at once on a small machine: heavy packages wait for the first batch."""
    script = (
        "import sys; from dali_run.pipelines.spec.build import load_spec; load_spec('configs/imagenet_val.yaml');"
        "heavy = 'numba llvmlite cupy cv2 av torch jax scipy soundfile simplejpeg rich typer'.split();"
        "print([m for m in heavy if m in sys.modules])"
    )
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    done = subprocess.run([sys.executable, "-c", script], cwd=ROOT, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip() == "[]"
