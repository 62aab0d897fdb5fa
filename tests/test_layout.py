"""The package's folders, the links to them and what is packaged are the same set."""

from __future__ import annotations

import tomllib
from pathlib import Path

ROOT = Path(__file__).parents[1]
FOLDERS = ("cli", "ops", "pipelines", "readers", "writers")
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


def test_every_folder_with_code_is_packaged() -> None:
    packages = set(CONFIG["tool"]["setuptools"]["packages"])
    mapped = CONFIG["tool"]["setuptools"]["package-dir"]
    folders = {p.parent for p in held() if p.suffix in (".py", ".cu", ".cuh")}
    names = {".".join(p.parts if p.parts[0] == "dali_run" else ("dali_run", *p.parts)) for p in folders}
    assert names == packages
    for package, folder in mapped.items():
        assert (ROOT / folder).is_dir(), package


def test_every_file_beside_code_is_packaged_too() -> None:
    patterns = CONFIG["tool"]["setuptools"]["package-data"]["*"]
    for path in held():
        if path.parts[0] in FOLDERS and path.suffix not in (".py", ".md"):
            assert any(path.match(p) for p in patterns), f"{path} would be missing from the wheel"


def test_the_versions_agree() -> None:
    from dali_run.version import __version__

    changes = (ROOT / "CHANGELOG.md").read_text()
    assert f"## [{__version__}]" in changes or "## [Unreleased]" in changes
