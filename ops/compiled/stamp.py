"""Stamps of compiled functions: digests of the sources that their machine code was compiled from."""

from __future__ import annotations

import hashlib
import re
from functools import cache
from pathlib import Path

PACKAGE = __name__.split(".", 1)[0]
ROOT = Path(__file__).resolve().parents[2]
"""Folder of the installed package. In a source checkout, the project's folder: the package has links to its
subfolders."""

_IMPORT = re.compile(r"^\s*from (\.+)([\w.]*) import (\([^)]*\)|[^\n]*)", re.M)
_NAME = re.compile(r"\w+")


@cache
def stamp(file: Path) -> str:
    """Return a digest of a module's source and of the sources of this package that it imports; empty if there is no
    source. Imports of an imported module count only if it contains compiled functions.

    A function is compiled together with the functions that it calls and with constants of other modules. Numba's own
    cache uses only the function's file, and would not notice when these change."""
    seen: dict[Path, bytes] = {}
    todo = [file]
    while todo:
        at = todo.pop()
        if at in seen:
            continue
        try:
            seen[at] = at.read_bytes()
        except OSError:
            return ""
        if b"numba" in seen[at]:
            todo += _imported(at, seen[at].decode(errors="replace"))
    digest = hashlib.sha256()
    for content in sorted(hashlib.sha256(content).digest() for content in seen.values()):
        digest.update(content)
    return digest.hexdigest()[:32]


def _imported(file: Path, text: str) -> list[Path]:
    found = []
    for dots, module, names in _IMPORT.findall(text):
        folder = file.parents[len(dots) - 1].joinpath(*filter(None, module.split(".")))
        places = [folder.with_suffix(".py")] if module else []
        if folder.is_dir():
            places += [folder / f"{name}.py" for name in _NAME.findall(names)]
        found += [place for place in places if place.is_file()]
    return found
