"""Documentation: generated pages are up to date, links lead somewhere, commands exist, the shown operator works."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import yaml

from dali_run.cli import main as cli
from dali_run.ops.base import find
from dali_run.ops.batch import Batch, Samples
from dali_run.ops.context import Context
from dali_run.pipelines.plugins import load_plugin
from dali_run.pipelines.spec.build import load_spec

ROOT = Path(__file__).parents[1]
PAGES = sorted([*ROOT.glob("*.md"), *ROOT.glob("docs/*.md"), *ROOT.glob("*/README.md")])


def ids(paths: list[Path]) -> list[str]:
    return [str(p.relative_to(ROOT)) for p in paths]


def test_generated_pages_are_up_to_date() -> None:
    done = subprocess.run([sys.executable, "docs/generate.py", "--check"], cwd=ROOT, capture_output=True, text=True,
                          check=False, env={"PYTHONPATH": str(ROOT), "PATH": ""})  # fmt: skip
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("page", PAGES, ids=ids(PAGES))
def test_links_lead_somewhere(page: Path) -> None:
    for target in re.findall(r"\]\(([^)#]+)(?:#[^)]*)?\)", page.read_text()):
        if not target.startswith("http"):
            assert (page.parent / target).exists(), f"{page.name} links to {target}"


@pytest.mark.parametrize("page", PAGES, ids=ids(PAGES))
def test_commands_and_make_targets_exist(page: Path) -> None:
    commands = {module.NAME for module in cli.COMMANDS} | {"--install-completion"}
    targets = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.M))
    text = page.read_text()
    for used in re.findall(r"(?:^\s*|`)dali-run ([a-z-]+)", text, re.M):
        assert used in commands, f"{page.name} names dali-run {used}"
    for used in re.findall(r"(?:^ {4}|`)make ([a-z-]+)", text, re.M):
        assert used in targets, f"{page.name} names make {used}"


def test_the_readme_and_the_changelog_name_every_command() -> None:
    readme, changes = (ROOT / "README.md").read_text(), (ROOT / "CHANGELOG.md").read_text()
    for module in cli.COMMANDS:
        assert f"| `dali-run {module.NAME}" in readme
        assert f"`{module.NAME}`" in changes or f"`dali-run {module.NAME}`" in changes


def test_readmes_of_folders_take_two_screens() -> None:
    for folder in ("ops", "pipelines"):
        assert len((ROOT / folder / "README.md").read_text().splitlines()) <= 100


def test_the_operator_of_the_readme_works_as_a_plugin(tmp_path: Path) -> None:
    code = (ROOT / "ops" / "README.md").read_text().split("```python\n")[1].split("```")[0]
    plugin = tmp_path / "solarize.py"
    plugin.write_text(code)
    load_plugin(str(plugin))
    op = find("solarize")(threshold=100)
    images = [np.arange(24, dtype=np.uint8).reshape(2, 4, 3) * 10, np.full((1, 1, 3), 101, np.uint8)]
    batch = Batch.from_list(images, "HWC", Samples.numbered(2))
    out = op.kernel("cpu")(Context(op=op, stage="cpu", samples=batch.samples), batch)
    for sample, image in zip(out, images, strict=True):
        np.testing.assert_array_equal(sample, np.where(image > 100, 255 - image, image))


def test_specs_in_the_pages_are_right(tmp_path: Path) -> None:
    """Whole specs are loaded; single steps and sections are at least YAML that the schema of a step takes."""
    readme = (ROOT / "README.md").read_text()
    spec = tmp_path / "spec.yaml"
    spec.write_text(readme.split("```yaml\n")[1].split("```")[0])
    assert list(load_spec(spec).graph.outputs) == ["jpg", "cls"]


def test_steps_in_the_spec_page_build(tmp_path: Path) -> None:
    page = (ROOT / "docs" / "spec.md").read_text()
    before = [{"op": "readers.file", "file_root": ".", "out": ["jpegs", "labels"]},
              {"op": "decoders.image", "in": "jpegs", "out": "images"},
              {"op": "random.coin_flip", "out": "flag"}]  # fmt: skip
    blocks = [b for b in re.findall(r"(?:^    .*\n)+", page, re.M) if b.lstrip().startswith("- ")]
    assert len(blocks) >= 4
    for block in blocks:
        spec = tmp_path / "spec.yaml"
        steps = [*before, *yaml.safe_load(block)]
        spec.write_text(yaml.safe_dump({"version": 1, "graph": steps, "outputs": ["images"]}))
        load_spec(spec)
