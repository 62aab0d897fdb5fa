"""Specs that are part of dali-run: their names are accepted wherever a spec's path is."""

from __future__ import annotations

import os
import re
from pathlib import Path

from ...ops.base import nearest
from ...ops.errors import SpecError

FOLDER = Path(__file__).parents[2] / "configs"


def shipped() -> dict[str, Path]:
    """Return the paths of the specs that are part of dali-run, by name, sorted."""
    return {path.stem: path for path in sorted(FOLDER.glob("*.yaml"))}


def shipped_spec(name: str) -> Path:
    """Return the path of ``name``, a spec that is part of dali-run. Raises SpecError with the nearest names."""
    known = shipped()
    if name not in known:
        raise SpecError(f"dali-run has no spec named {name!r}{nearest(name, known)}; "
                        f"available: {', '.join(known)}")  # fmt: skip
    return known[name]


def known_spec(path: str | os.PathLike[str]) -> Path:
    """Return ``path``. If there is no such file, but it names a spec that is part of dali-run (``quickstart``, or
    ``configs/quickstart.yaml`` as in the documentation), return the path of that spec."""
    file = Path(path)
    named = re.fullmatch(r"(?:configs/)?(\w+)(?:\.yaml)?", os.fsdecode(path))
    return file if named is None or file.exists() else shipped().get(named[1], file)


def text_of(path: Path) -> str:
    """Return the text of a spec for use as a template. The comment for editors that points to the schema is removed,
    because the text will be copied to a place without that file."""
    return re.sub(r"^# yaml-language-server:[^\n]*\n", "", path.read_text(encoding="utf-8"))


def summary(path: Path) -> str:
    """Return the first sentence of a spec's leading comment."""
    head = re.match(r"(?:#[^\n]*\n)*", text_of(path))
    text = " ".join(line.lstrip("# ") for line in (head[0] if head else "").splitlines())
    return re.split(r"(?<=\.)\s", text, maxsplit=1)[0].removeprefix("Shows ").rstrip(".")
