"""The package's folders, the links to them and what is packaged are the same set."""

from __future__ import annotations

import ast
import re
import tomllib
import warnings
from pathlib import Path

import pytest
from hypothesis.errors import HypothesisWarning

from dali_run.ops.dali_names import FOLDERS as FOLDERS_OF_OPS
from tests import ratchets

ROOT = Path(__file__).parents[1]
FOLDERS = ("cli", "configs", "ops", "pipelines", "readers", "writers")
CONFIG = tomllib.loads((ROOT / "pyproject.toml").read_text())


def held() -> list[Path]:
    """Every file of the package, below the root."""
    found = [p for folder in (*FOLDERS, "dali_run") for p in (ROOT / folder).rglob("*") if p.is_file()]
    return [p.relative_to(ROOT) for p in found if "__pycache__" not in p.parts and not p.name.startswith(".")]


def test_links_lead_to_the_root_folders() -> None:
    for folder in FOLDERS:
        link = ROOT / "dali_run" / folder
        assert link.is_symlink()
        assert link.readlink() == Path("..") / folder
        assert (ROOT / folder / "__init__.py").is_file()


def packages() -> set[str]:
    """The packages that the build finds by pyproject.toml's own rules."""
    from setuptools import find_packages

    rules = CONFIG["tool"]["setuptools"]["packages"]["find"]
    assert rules["namespaces"] is False
    return set(find_packages(str(ROOT), include=rules["include"]))


def test_every_folder_with_code_is_packaged() -> None:
    folders = {p.parent for p in held() if p.suffix == ".py"}
    assert packages() == {".".join(p.parts if p.parts[0] == "dali_run" else ("dali_run", *p.parts)) for p in folders}


def test_every_file_beside_code_is_packaged_too() -> None:
    patterns = CONFIG["tool"]["setuptools"]["package-data"]
    for path in held():
        if path.parts[0] in FOLDERS and path.suffix not in (".py", ".md"):
            inside = {k: v for k, v in patterns.items() if k in ("*", "dali_run." + path.parts[0])}
            found = [p for rules in inside.values() for p in rules]
            assert any(path.match(p) or path.match(p.replace("**/", "")) for p in found), f"{path} misses in the wheel"


def test_folders_are_rooms_that_a_person_can_keep_apart() -> None:
    """At most 25 modules each, each saying in one line what belongs there, none called as one of DALI's namespaces."""
    for folder in {p.parent for p in held() if p.suffix == ".py" and p.parts[0] in FOLDERS}:
        modules = [p for p in (ROOT / folder).glob("*.py") if p.name != "__init__.py"]
        assert len(modules) <= 25, folder
        first = ast.get_docstring(ast.parse((ROOT / folder / "__init__.py").read_text()))
        assert first, f"{folder}/__init__.py needs a docstring"
        assert folder.parts[0] != "ops" or not {*folder.parts[1:]} & {"encoders", *FOLDERS_OF_OPS}, folder


def test_the_versions_agree() -> None:
    from dali_run.version import __version__

    changes = (ROOT / "CHANGELOG.md").read_text()
    assert changes.count(f"\n## [{__version__}]") == 1


def test_docstrings_say_what_a_thing_is_and_do_not_ask() -> None:
    """They start with the thing itself ("The rows that ..."), never with "What ..." or "Who ..."."""
    asking = re.compile(r'^\s*[rf]?"""(What|Who)\b.*', re.M)
    folders = (*FOLDERS, "dali_run", "tests", "benchmarks", "docs")
    found = [
        f"{path.relative_to(ROOT)}: {match.group().strip()}"
        for folder in folders
        for path in sorted((ROOT / folder).rglob("*.py"))
        for match in asking.finditer(path.read_text())
    ]
    assert not found, "\n".join(found)


def test_what_tests_share_is_in_the_kit() -> None:
    """No module below tests/ imports from a test module: what two of them need has a name that says what it is, in a
    room of tests/kit, or is a fixture of a conftest.py."""
    found = []
    for path in sorted((ROOT / "tests").rglob("*.py")):
        own = path.relative_to(ROOT).with_suffix("").parts
        for node in ast.walk(ast.parse(path.read_text())):
            named: list[str] = []
            if isinstance(node, ast.ImportFrom):
                base = [*own[: len(own) - node.level], *(node.module or "").split(".")] if node.level else [node.module]
                named = [*".".join(filter(None, base)).split("."), *(name.name for name in node.names)]
                if named[0] != "tests":
                    continue
            elif isinstance(node, ast.Import):
                named = [part for name in node.names if name.name.startswith("tests.") for part in name.name.split(".")]
            if any(part.startswith("test_") for part in named):
                found.append(f"{'/'.join(own)}.py:{node.lineno}")
    assert not found, "\n".join(found)


def test_the_kit_has_rooms() -> None:
    for folder in [ROOT / "tests" / "kit", *(ROOT / "tests" / "kit").rglob("*/")]:
        assert len(list(folder.glob("*.py"))) <= 25, folder


def test_benchmarks_import_one_another_by_their_full_names() -> None:
    """A module called by its bare name is found only while it lies in the folder of the script that is run."""
    files = [p for p in (ROOT / "benchmarks").rglob("*.py") if p.stem != "__init__"]
    own = {p.stem for p in files}
    for path in files:
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.ImportFrom) and node.level == 0 and node.module:
                assert node.module.partition(".")[0] not in own, f"{path.relative_to(ROOT)}:{node.lineno}"
            elif isinstance(node, ast.Import):
                bare = [name.name for name in node.names if name.name.partition(".")[0] in own]
                assert not bare, f"{path.relative_to(ROOT)}:{node.lineno}"


def test_measures_of_the_source_only_fall(capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("grimp")
    assert ratchets.main([]) == 0, capsys.readouterr().err


def test_module_state_is_what_functions_change() -> None:
    text = """
table = {1: 2}
filled = {}
items = []
unset = 0
seen: dict[int, int] = {}
order = OrderedDict[str, int]()
def use(items):
    global unset
    unset = table[1]
    seen[1] = 2
    order.move_to_end("a")
    items.append(1)
class Local:
    def method(self):
        filled = {}
        self.order.clear()
"""
    assert ratchets.changed(ast.parse(text)) == {"unset", "seen", "order"}


def test_classes_named_after_terms_of_the_glossary_have_their_meaning() -> None:
    """A public class whose name is a term, or its plural, is named in the term's row; every named class exists, and no
    term has more than one row per meaning. (Types of --json and of modules that mirror other libraries are exempt.)"""
    page = (ROOT / "docs" / "architecture.md").read_text().split("## Glossary")[1]
    rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in page.splitlines() if line[:2] == "| "]
    terms = {term: classes for term, _, classes in rows[1:]}
    assert len(terms) == len(rows) - 1 <= 40
    named = {(name, path) for classes in terms.values() for entry in classes.split("; ") if entry
             for name, paths in [entry.strip("`").split("` in ")] for path in paths.split(", ")}  # fmt: skip
    words = {term.split(" (")[0].title().replace(" ", "") for term in terms}
    exempt = ("pipelines/tools/json_output/", "pipelines/dynamic/readers.py", "ops/libraries/")
    found = set()
    for place, tree in ratchets.modules().items():
        for name in [n.name for n in tree.body if isinstance(n, ast.ClassDef)]:
            is_term = (name in words or name.removesuffix("s") in words) and not place.startswith(exempt)
            if is_term or (name, place) in named:
                found.add((name, place))
    missing, absent = sorted(found - named), sorted(named - found)
    assert not missing, f"classes that the glossary of docs/architecture.md does not name: {missing}"
    assert not absent, f"classes that the glossary names and that do not exist: {absent}"


def test_the_warning_that_hypothesis_gives_on_python_3_14_is_no_error() -> None:
    """Every process of `make test` would fail in its first test of Hypothesis."""
    text = "It looks like `register_random` was passed an object that could be garbage collected immediately after"
    warnings.warn(text, HypothesisWarning, stacklevel=1)
