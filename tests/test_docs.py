"""Documentation: generated pages are up to date, links lead somewhere, commands exist, the shown operator works."""

from __future__ import annotations

import ast
import json
import re
import shlex
import subprocess
import sys
import tomllib
from collections.abc import Callable, Iterator
from functools import cache
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import typer
import yaml
from PIL import Image

from dali_run.cli import main as cli
from dali_run.ops.base import operators
from dali_run.ops.errors import REJECT_CODES
from dali_run.pipelines.plugins import load_operators, load_plugin
from dali_run.pipelines.spec.build import load_spec
from docs import operator_pictures, operators_page, python_page

from .kit.emulated_lane import EmulatedLane
from .kit.operators import apply, batch_of, operator

ROOT = Path(__file__).parents[1]
GLOBS = ("*.md", "docs/**/*.md", "*/README.md", "*/NOTES.md")
PAGES = sorted(p for glob in GLOBS for p in ROOT.glob(glob) if not p.relative_to(ROOT).parts[0].startswith("."))


def ids(paths: list[Path]) -> list[str]:
    return [str(p.relative_to(ROOT)) for p in paths]


def test_generated_pages_are_up_to_date() -> None:
    done = subprocess.run([sys.executable, "docs/generate.py", "--check"], cwd=ROOT, capture_output=True, text=True,
                          check=False, env={"PYTHONPATH": str(ROOT), "PATH": ""})  # fmt: skip
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("folder", ["ops", "pipelines", "writers"])
def test_maps_of_folders_name_files_that_are_there(folder: str) -> None:
    """Those at the heads of the pages, up to the first heading below."""
    head = (ROOT / folder / "README.md").read_text().partition("\n## ")[0]
    found = {p.name for p in (ROOT / folder).rglob("*.py")}
    named = set(re.findall(r"(?<![\w*])[a-z][a-z0-9_]*\.py\b", head))
    assert named, folder
    assert named <= found, f"{folder}/README.md names {sorted(named - found)}"


@pytest.mark.parametrize("page", PAGES, ids=ids(PAGES))
def test_links_lead_somewhere(page: Path) -> None:
    """Files are there, and so are the headings that links name."""
    for target, _, anchor in re.findall(r"\]\(([^)#\s]*)(#([^)\s]*))?\)", without_code(page.read_text())):
        if target.startswith("http"):
            continue
        file = page.parent / target if target else page
        assert file.exists(), f"{page.name} links to {target}"
        if anchor and file.suffix == ".md":
            assert anchor in anchors(file), f"{page.name} links to {target}#{anchor}"


def without_code(text: str) -> str:
    """The prose of a page: what looks like a link in code is none."""
    text = re.sub(r"^```.*?^```$", "", text, flags=re.M | re.S)
    return "\n".join(line for line in text.splitlines() if not line.startswith("    "))


@cache
def anchors(page: Path) -> set[str]:
    """The names that headings have in links, by GitHub's rules, which MyST follows."""
    found: set[str] = set()
    for heading in re.findall(r"^#+ (.*)$", re.sub(r"^```.*?^```$", "", page.read_text(), flags=re.M | re.S), re.M):
        plain = re.sub(r"\[([^]]*)\]\([^)]*\)", r"\1", heading)
        name = re.sub(r"[^\w\- ]", "", plain.lower()).strip().replace(" ", "-")
        again = next(i for i in range(1000) if (f"{name}-{i}" if i else name) not in found)
        found.add(f"{name}-{again}" if again else name)
    return found


def test_ci_builds_the_site_strictly() -> None:
    """Sphinx is not among the packages of the tests: CI builds the site after them, and a warning fails it."""
    makefile = (ROOT / "Makefile").read_text()
    asked = re.findall(r"^ *make ([a-z-]+)(?: [&#].*)?$", (ROOT / ".ci" / "run").read_text(), re.M)
    assert asked == ["setup", "lint", "test", "release", "site"]
    assert all(re.search(rf"^{target}:", makefile, re.M) for target in asked)
    (command,) = re.findall(r"^\t.*-m sphinx (.*)$", makefile, re.M)
    assert {"-W", "--keep-going"} <= set(command.split())
    conf = (ROOT / "docs" / "conf.py").read_text()
    assert "nitpicky = True" in conf
    suppressed = re.search(r"^suppress_warnings = (.*)$", conf, re.M)
    assert suppressed is not None
    assert ast.literal_eval(suppressed[1]) == ["myst.header", "misc.highlighting_failure"]  # links are none of them


@pytest.mark.parametrize("page", PAGES, ids=ids(PAGES))
def test_commands_and_make_targets_exist(page: Path) -> None:
    commands = {module.NAME for module in cli.COMMANDS} | {"--install-completion"}
    targets = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.M))
    text = page.read_text()
    for used in re.findall(r"(?:^\s*|`)dali-run ([a-z-]+)", text, re.M):
        assert used in commands, f"{page.name} names dali-run {used}"
    for used in re.findall(r"(?:^ {4}|`)make ([a-z-]+)", text, re.M):
        assert used in targets, f"{page.name} names make {used}"


@pytest.mark.parametrize("page", [p for p in PAGES if p.name != "CHANGELOG.md"], ids=lambda p: str(p.relative_to(ROOT)))
def test_options_of_commands_exist(page: Path) -> None:
    """In all commands that stand on lines of their own. Those of the tutorial and the guides are run (test_guides)."""
    group: Any = typer.main.get_command(cli.app)
    text = page.read_text().replace("\\\n", " ")
    for line in re.findall(r"^(?:    |\S*`?)?(?:srun [^\n]*?)?(dali-run [a-z][^\n]*)$", text, re.M):
        if "`" in line or "[OPTIONS]" in line:
            continue
        for command in re.split(r"&&|\||;", re.split(r"\s+#|\s>", line)[0]):
            if not re.match(r"\s*dali-run [a-z]", command):
                continue
            words = shlex.split(command)
            known = group.get_command(None, words[1])
            left = known.make_parser(known.context_class(known, info_name=words[1])).parse_args(args=words[2:])[1]
            assert not left, f"{page.name}: {line}: too many arguments"


def test_pages_that_code_names_exist() -> None:
    """Help texts and messages among them."""
    folders = ("cli", "pipelines", "ops", "readers", "writers", "docs", "dali_run")
    files = [f for folder in folders for f in (ROOT / folder).rglob("*.py")]
    named = {page for f in files for page in re.findall(r"\b(?:docs|ops)/[\w./-]+\.md\b", f.read_text())}
    assert len(named) > 3
    assert not [page for page in named if not (ROOT / page).exists()]


def test_results_of_benchmarks_are_cited() -> None:
    """By a page, or by the tables that `make docs` fills."""
    cited = "".join(p.read_text() for p in [*PAGES, ROOT / "docs" / "figures.py"])
    files = [p for p in (ROOT / "benchmarks" / "results").rglob("*") if p.is_file()]
    assert len(files) > 3
    assert not [p.name for p in files if p.name not in cited and p.stem not in cited], (
        "no page cites these: remove them"
    )


def test_everything_public_says_what_it_is() -> None:
    """Fields, arguments, properties and methods on the page of the Python API."""
    rows = re.findall(r"^\| `(.*)` \|(.*)\|$", (ROOT / "docs" / "python.md").read_text(), re.M)
    assert len(rows) > 250
    assert not [name for name, text in rows if not text.strip()]
    assert not [name for name, _ in rows if "Annotated" in name]
    listed = [name for names in python_page.SECTIONS.values() for name in names]
    assert not [name for name in listed if name.startswith(("dali_run.pipelines.", "dali_run.cli."))]


def imported_by_users() -> Iterator[tuple[str, str, str]]:
    """Page or file, module and name of all imports of dali_run in the documentation; the name is empty for a module.
    READMEs of the folders, which are for changes in them, are not included."""
    programs = [p for p in (ROOT / "docs" / "examples").rglob("*.py") if "build" not in p.parts]
    texts = {p: re.findall(r"```python\n(.*?)```", p.read_text(), re.S) for p in PAGES if p.name != "python.md"}
    texts = {p: found for p, found in texts.items() if p.name != "README.md" or p.parent == ROOT}
    texts |= {p: [p.read_text()] for p in programs}
    for p in (ROOT / "docs" / "notebooks").glob("*.ipynb"):
        cells = json.loads(p.read_text())["cells"]
        texts[p] = ["".join(c["source"]) for c in cells if c["cell_type"] == "code"]
    for path, found in texts.items():
        for node in (n for text in found for n in ast.walk(ast.parse(text))):
            if isinstance(node, ast.Import):
                yield from ((str(path), a.name, "") for a in node.names if a.name.startswith("dali_run"))
            elif isinstance(node, ast.ImportFrom) and (node.module or "").startswith("dali_run."):
                yield from ((str(path), str(node.module), a.name) for a in node.names)


def test_the_documentation_imports_public_names_only() -> None:
    """Names of `dali_run`, and names of its five folders that the page of the Python API describes."""
    public = [python_page.find(name) for names in python_page.SECTIONS.values() for name in names]
    folders = ("cli", "pipelines", "ops", "readers", "writers")
    imports = list(imported_by_users())
    assert len(imports) > 20
    private = [
        f"{path}: {module} {name}"
        for path, module, name in imports
        if module.split(".")[1:2] and module.split(".")[1] in folders and module != "dali_run.ops"
        and not (name and any(getattr(import_module(module), name) is p for p in public))
    ]  # fmt: skip
    assert not private, "describe these on docs/python.md (docs/python_page.py), or use other names"


def test_the_changelog_names_every_command() -> None:
    changes = (ROOT / "CHANGELOG.md").read_text()
    for module in cli.COMMANDS:
        assert f"`{module.NAME}`" in changes or f"`dali-run {module.NAME}`" in changes


MAX_LINES = {
    "README.md": 150, "CHANGELOG.md": 80, "CONTRIBUTING.md": 100, "benchmarks/NOTES.md": 150,
    "ops/README.md": 200, "pipelines/README.md": 100, "writers/README.md": 90, "docs/index.md": 45,
    "docs/install.md": 90, "docs/tutorial.md": 120, "docs/choosing.md": 90, "docs/troubleshooting.md": 120,
    "docs/audio.md": 80, "docs/video.md": 85, "docs/transforms.md": 120, "docs/dynamic-mode.md": 170,
    "docs/dali-differences.md": 160, "docs/versions.md": 60, "docs/architecture.md": 100, "docs/security.md": 60,
    "docs/reliability.md": 160, "docs/start-up.md": 65, "docs/performance.md": 130, "docs/serving.md": 60,
    "docs/performance/gpu.md": 150, "docs/performance/operators.md": 180, "docs/guides/curate.md": 420,
    "docs/explanations/determinism.md": 40, "docs/explanations/memory.md": 70, "docs/guides/training.md": 120,
    "docs/guides/many-machines.md": 150, "docs/guides/measuring.md": 90, "docs/guides/faster.md": 80,
    "docs/guides/s3.md": 70, "docs/formats.md": 230, "docs/spec.md": 230,
}  # fmt: skip
"""Lines that a page may have. A guide without an entry may have 60; generated pages have no limit."""
GENERATED = {"json.md", "python.md", "commands.md", "parity.md", "package.md", "findings.md"}
"""Pages without a limit: generated ones, and the one whose rows grow with what is found."""


@pytest.mark.parametrize("page", PAGES, ids=ids(PAGES))
def test_pages_are_short_and_state_the_present(page: Path) -> None:
    """How something came to be is in the commits, what was tried in benchmarks/NOTES.md."""
    name, text = str(page.relative_to(ROOT)), page.read_text()
    most = MAX_LINES.get(name, 60 if page.parent.name == "guides" else None)
    assert most is None or len(text.splitlines()) <= most
    known = page.name in GENERATED or page.parent.name in ("operators", "plugin-package", "codecs") or most is not None
    assert known or page.parent == ROOT, "give the page a limit in MAX_LINES"
    if page.name not in ("CHANGELOG.md", "NOTES.md", "findings.md"):
        told = re.findall(HISTORY, " ".join(without_code(text).split()))
        assert not told, "state what is, not what was"


def test_rates_are_written_from_results() -> None:
    """By `make docs`, out of benchmarks/results. The page on limits inside a job cites its files itself."""
    pages = [p for p in PAGES if p.name not in ("package.md", "NOTES.md", "gpu.md")]
    found = {p: re.sub(r"<!-- figures: .*?<!-- end of", "", p.read_text(), flags=re.S) for p in pages}
    rates = r"[\d.,]*\d (?:images|clips|frames|files|samples)/s|[\d.,]*\d times (?:DALI|as fast)|\b\d+\.\d+x\b"
    assert not [f"{p.name}: {rate}" for p, text in found.items() for rate in re.findall(rates, text)]


HISTORY = r"since then|[(,;:.] ?[Ii]t was\b|\bas it was\b|before that\b|is reached(?! first)|is missed|\bUTC\b"
"""Words by which a page tells its history. Help texts and docstrings are in pages that `make docs` writes."""


IMAGES = [np.arange(60, dtype=np.uint8).reshape(5, 4, 3) * 4, np.full((1, 1, 3), 101, np.uint8)]
EXAMPLES: dict[str, tuple[dict[str, int], Callable[[np.ndarray[Any, Any]], np.ndarray[Any, Any]]]] = {
    "thumbnail": ({"size": 3}, lambda image: image[:3, :3][::-1]),
    "solarize": ({"threshold": 100}, lambda image: np.where(image > 100, 255 - image, image)),
    "posterize": ({"bits": 3}, lambda image: image & 0b11100000),
}


@pytest.mark.parametrize("name", EXAMPLES)
def test_operators_of_the_readme_work_as_they_are_printed(name: str, tmp_path: Path) -> None:
    """As plugins, on the CPU, and their CUDA kernels where they have them."""
    texts = [part.split("```")[0] for part in (ROOT / "ops" / "README.md").read_text().split("```python\n")[1:]]
    (code,) = [t for t in texts if f'name="{name}"' in t]
    plugin = tmp_path / f"{name}.py"
    plugin.write_text(code)
    load_plugin(str(plugin))
    arguments, expected = EXAMPLES[name]
    op, batch = operator(name, **arguments), batch_of(IMAGES, "HWC")
    for lane in [None, EmulatedLane()] if "gpu" in op.stages else [None]:
        out, rejects = apply(op, batch, lane=lane)
        assert not rejects
        for sample, image in zip(out, IMAGES, strict=True):
            np.testing.assert_array_equal(sample, expected(image))


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


def test_every_image_operator_has_a_picture() -> None:
    """Or a reason why not; and every picture shows something, in a few kilobytes."""
    assert not operator_pictures.missing(), "give them a step in docs/operator_pictures.py, then: make docs"
    load_operators()
    assert set(operator_pictures.WITHOUT) <= operators().keys() - operator_pictures.steps().keys()
    files = sorted(operator_pictures.FOLDER.iterdir())
    assert [p.stem for p in files] == sorted(operator_pictures.steps())
    assert max(p.stat().st_size for p in files) < 20_000
    assert sum(p.stat().st_size for p in files) < 1_500_000
    folder = ROOT / "docs" / "operators"
    assert sorted(p.stem for p in folder.iterdir()) == sorted(["index", *operators_page.FAMILIES])
    index, width = (folder / "index.md").read_text(), operator_pictures.WIDTH
    for path in files:
        shown = f"(../pictures/operators/{path.name})"
        assert shown in index
        assert shown in (folder / f"{operators_page.family_of(path.stem)}.md").read_text()
        assert not operator_pictures.is_stale(path.stem)
        with Image.open(path) as image:
            pixels = np.asarray(image).astype(np.int16)
        assert np.abs(pixels[:, :width] - pixels[:, -width:]).mean() > 4, f"{path.name} shows no difference"


@pytest.mark.parametrize("name", ["brightness", "crop", "erase", "flip", "transpose"])
def test_pictures_are_what_the_operators_make(name: str) -> None:
    """Means of 8 x 8 pixels, because JPEG and its versions change single ones."""
    with Image.open(operator_pictures.path_of(name)) as image:
        stored = np.asarray(image.reduce(8)).astype(np.int16)
    assert np.abs(stored - np.asarray(operator_pictures.strip(name).reduce(8))).max() <= 20


def test_tests_that_the_page_of_findings_names_exist() -> None:
    page = (ROOT / "docs" / "findings.md").read_text()
    file, named = "", 0
    for place, function in re.findall(r"`((?:[\w/]+\.py|-))(?:::(\w+))?`", page):
        file = file if place == "-" else place
        assert not function or f"def {function}(" in (ROOT / "tests" / file).read_text(), f"{file}::{function}"
        named += 1
    rows = [line for line in page.splitlines() if line.startswith("| ") and not line.startswith("| found")]
    assert 0 < len(rows) <= named
    assert all(re.search(r"`(make [\w-]+|[\w/-]+(\.py)?(::\w+)?)`", line) for line in rows)


def test_files_that_the_page_of_reliability_names_exist() -> None:
    page = (ROOT / "docs" / "reliability.md").read_text()
    rows = re.findall(r"^\| .* \| `(\w+/[\w/.]+)` \|$", page, re.M)
    assert len(rows) > 15
    assert not [path for path in rows if not (ROOT / path).exists()]


def test_the_guide_to_faster_jobs_has_every_bottleneck() -> None:
    source = (ROOT / "pipelines" / "job" / "report.py").read_text()
    named = set(re.findall(r"Bottleneck: ((?:[\w']+ )*[\w']+)", source))
    assert len(named) > 6
    rows = re.findall(r"^\| ([^|]+) \|", (ROOT / "docs" / "guides" / "faster.md").read_text(), re.M)
    assert not [name for name in named if not any(row.startswith(name) for row in rows)]


def test_the_page_on_installing_has_every_extra() -> None:
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    page = (ROOT / "docs" / "install.md").read_text()
    assert not [e for e in extras if f"`{e}`" not in page and e not in ("test", "docs", "browser", "lint")]
    named = {e for text in map(Path.read_text, PAGES) for group in re.findall(r"dali-run\[([\w,-]+)\]", text)
             for e in group.split(",")}  # fmt: skip
    assert len(named) > 4
    assert named <= set(extras), "extras that pyproject.toml does not have"


def test_troubleshooting_has_a_remedy_for_every_reject_code() -> None:
    rows = re.findall(r"^\| (`[a-z_`, ]+`) \|", (ROOT / "docs" / "troubleshooting.md").read_text(), re.MULTILINE)
    codes = [code for row in rows for code in re.findall(r"`([a-z_]+)`", row)]
    assert sorted(set(codes) - {"doctor"}) == sorted(REJECT_CODES)
