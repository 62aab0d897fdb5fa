"""README, tutorial and guides: every command, spec and program in them is run, page by page, on small sample data.

```sh          lines are run; a comment `# ends with 3` says another exit code
```yaml        with `# file: NAME` as its first line is that file; so is ```python
```python      else is run, too; the blocks of a page are one program. `# prints X` behind a line: the block prints X
```text        below a block of commands: lines that these print; `...` stands for anything
<!-- not run: why -->   before a block: commands are only parsed, programs only compiled
"""

from __future__ import annotations

import ast
import json
import re
import shlex
import shutil
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
import typer
import yaml

from dali_run.cli import main as cli
from dali_run.pipelines.spec.build import load_spec
from dali_run.pipelines.tools.sample_data import make_sample_data
from docs.contents import CONTENTS, toctrees
from docs.operators_page import FAMILIES

from .kit.files.videos import make_video
from .kit.jobs.read_back import read_by_the_field

ROOT = Path(__file__).parents[1]
PAGES = [
    ROOT / "README.md",
    *(ROOT / "docs" / f"{page}.md" for page in ("tutorial", "json", "dynamic-mode", "transforms", "serving")),
    *sorted((ROOT / "docs" / "guides").glob("*.md")),
]
NEEDS = {"video": "av", "speech": "soundfile", "transforms": "torch"}
"""Optional packages without which a page cannot be run."""


@dataclass(frozen=True)
class Block:
    kind: str
    text: str
    not_run: str

    @property
    def file(self) -> str:
        found = re.match(r"# file: (\S+)\n", self.text)
        return found[1] if found else ""


def blocks(page: Path) -> Iterator[Block]:
    pattern = r"(?:^<!-- not run: ([^\n]*) -->\n)?^```(\w+)\n(.*?)^```$"
    for reason, kind, text in re.findall(pattern, page.read_text(), re.M | re.S):
        yield Block(kind, text, reason)


@pytest.fixture(scope="module")
def sample_data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("guides") / "data"
    make_sample_data(folder, 24)  # as the tutorial does
    if find_spec("av") is not None:
        (folder / "video" / "a").mkdir(parents=True)
        make_video(folder / "video" / "a" / "x.mp4", 40)
    return folder


@pytest.mark.filterwarnings("ignore:unclosed file:ResourceWarning")  # webdataset leaves archives to the collector
@pytest.mark.parametrize("page", PAGES, ids=lambda p: p.stem)
def test_pages_can_be_followed(
    page: Path, sample_data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: Any
) -> None:
    if page.stem in NEEDS:
        pytest.importorskip(NEEDS[page.stem])
    monkeypatch.chdir(tmp_path)
    (tmp_path / "configs").symlink_to(ROOT / "configs")
    if page.stem != "tutorial":  # it makes its own
        shutil.copytree(sample_data, tmp_path / "data")
    names: dict[str, Any] = {"__name__": "__main__"}
    printed = ""
    for block in blocks(page):
        if block.file:
            file = tmp_path / block.file
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_text(block.text.partition("\n")[2])
            if block.kind == "yaml" and "graph:" in block.text and "plugins:" not in block.text:
                load_spec(file)
        elif block.kind == "sh":
            printed = "".join(run_line(line, bool(block.not_run), capfd) for line in block.text.splitlines())
        elif block.kind == "text":
            for line in block.text.splitlines():
                assert_printed(line, printed)
        elif block.kind == "python":
            code = compile(block.text, str(page), "exec")
            if not block.not_run:
                capfd.readouterr()
                exec(code, names)
                printed = capfd.readouterr().out
                for line in re.findall(r"# prints (.*)", block.text):
                    assert_printed(line, printed)
        else:
            assert block.kind == "yaml" or page.stem == "many-machines"  # run by tests/test_many_machines.py
            if block.kind == "yaml":
                yaml.safe_load(block.text)
    for manifest in tmp_path.glob("out*/**/manifest.json"):
        header = json.loads((manifest.parent / "journal.jsonl").read_text().partition("\n")[0])
        write = header["write"]
        read_by_the_field({"write": write, "outputs": write["fields"]}, manifest.parent)


def assert_printed(line: str, printed: str) -> None:
    """Assert that ``printed`` has the words of ``line``; `...` stands for any text, and line breaks do not count."""
    pattern = ".*".join(map(re.escape, " ".join(line.split()).split("...")))
    assert re.search(pattern, " ".join(printed.split())), f"{line}\nis not printed:\n{printed}"


def run_line(line: str, parse_only: bool, capfd: Any) -> str:
    """Run one line of a page, and return what it prints; or see that its options exist."""
    command, _, comment = line.partition("  # ")
    words = shlex.split(command)
    if "dali-run" not in words:
        assert words[0] == "echo", f"{line}: what should this do?"
        assert subprocess.run(command, shell=True, check=True)
        return ""
    arguments = words[words.index("dali-run") + 1 :]
    if parse_only:
        group: Any = typer.main.get_command(cli.app)
        known = group.get_command(None, arguments[0])
        context = known.context_class(known, info_name=arguments[0])
        assert not known.make_parser(context).parse_args(args=arguments[1:])[1], f"{line}: too many arguments"
        return ""
    if ">" in arguments:
        at = arguments.index(">")
        assert cli.main(arguments[:at]) == 0
        Path(arguments[at + 1]).write_text(capfd.readouterr().out)
        return ""
    expected = re.search(r"ends with (\d+)", comment)
    code = cli.main(arguments)
    told = capfd.readouterr()
    assert code == (int(expected[1]) if expected else 0), f"{line}\n{told.out}\n{told.err}"
    return str(told.out + told.err)


@pytest.mark.parametrize("page", PAGES, ids=lambda p: p.stem)
def test_pages_name_the_packages_that_their_programs_import(page: Path) -> None:
    """Beyond the dependencies of dali-run: by its extra, or in a sentence on the package. Programs that are not run say
    what they need."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    own = {
        *sys.stdlib_module_names,
        "dali_run",
        "PIL",
        "yaml",
        *(re.match(r"\w+", d)[0] for d in project["dependencies"]),
    }
    trees = [ast.parse(b.text) for b in blocks(page) if b.kind == "python" and not b.not_run]
    nodes = [n for tree in trees for n in ast.walk(tree)]
    names = {a.name for n in nodes if isinstance(n, ast.Import) for a in n.names}
    names |= {str(n.module) for n in nodes if isinstance(n, ast.ImportFrom)}
    text = page.read_text()
    for name in {n.partition(".")[0] for n in names} - own:
        assert re.search(rf"\[{name}\]|package {name}\b|pip install {name}\b", text), (
            f"{page.name}: say how to install {name}"
        )


def test_the_job_of_the_ci_guide_is_one() -> None:
    (block,) = [b for b in blocks(ROOT / "docs" / "guides" / "ci.md") if b.file]
    steps = yaml.safe_load(block.text)["jobs"]["specs"]["steps"]
    group: Any = typer.main.get_command(cli.app)
    lines = [line.strip() for s in steps for line in s.get("run", "").splitlines() if "dali-run " in line]
    assert len(lines) == 4
    for line in lines:
        words = line.partition("dali-run ")[2].split()
        if "specs/*.yaml" not in line:
            known = group.get_command(None, words[0])
            assert not known.make_parser(known.context_class(known)).parse_args(args=words[1:])[1], line


def test_the_pre_commit_hook_is_the_command() -> None:
    (hook,) = yaml.safe_load((ROOT / ".pre-commit-hooks.yaml").read_text())
    assert hook["entry"] == "dali-run validate"
    assert hook["id"] in (ROOT / "docs" / "guides" / "ci.md").read_text()
    assert cli.main([*hook["entry"].split()[1:], str(ROOT / "configs" / "quickstart.yaml")]) == 0


def test_notebooks_run_and_show_what_is_stored(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(ROOT / "docs"))
    from notebook import run  # type: ignore[import-not-found]  # docs/notebook.py

    monkeypatch.chdir(tmp_path)
    for path in (ROOT / "docs" / "notebooks").glob("*.ipynb"):
        stored = json.loads(path.read_text())
        made = run(stored)
        for cell, before in zip(made["cells"], stored["cells"], strict=True):
            shown = [sorted(o.get("data", {"text": 0})) for o in cell.get("outputs", [])]
            assert shown == [sorted(o.get("data", {"text": 0})) for o in before.get("outputs", [])], (
                f"{path.name}: run docs/notebook.py"
            )
        kinds = [k for c in made["cells"] for o in c.get("outputs", []) for k in o.get("data", {})]
        assert kinds.count("text/html") >= 4


def test_the_contents_name_pages_that_are_there() -> None:
    """Each once, and the first page links to them. `make site` lists pages without a place after the others."""
    listed = [name for pages in CONTENTS.values() for name in pages]
    assert len(listed) == len(set(listed))
    assert len(listed) > 30
    files = {n: [f for s in (".md", ".ipynb") if (f := ROOT / "docs" / f"{n}{s}").exists()] for n in listed}
    assert not [name for name, found in files.items() if not found]
    index = (ROOT / "docs" / "index.md").read_text()
    assert "toctree" not in index, "docs/conf.py adds the contents when it builds the site"
    linked = {target.rpartition(".")[0] for target in re.findall(r"\]\(([^)#]+)\)", index)}
    assert not [name for name in listed if name not in linked and not re.search("README|CHANGELOG|^operators/", name)]
    assert [n for n in listed if n.startswith("operators/")] == [
        "operators/index",
        *map("operators/{}".format, FAMILIES),
    ]
    assert toctrees(["other"]).count("```{toctree}") == len(CONTENTS) + 1
