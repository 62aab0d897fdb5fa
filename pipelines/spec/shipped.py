"""Specs that come with dali-run: wherever the path of a spec is taken, they go by their names."""

from __future__ import annotations

import os
import re
from pathlib import Path

from ...ops.base import nearest
from ...ops.errors import SpecError

FOLDER = Path(__file__).parents[2] / "configs"


def shipped() -> dict[str, Path]:
    """The specs by their names, sorted."""
    return {path.stem: path for path in sorted(FOLDER.glob("*.yaml"))}


def shipped_spec(name: str) -> Path:
    """The spec that comes with dali-run as ``name``. Raises SpecError with the nearest names."""
    known = shipped()
    if name not in known:
        raise SpecError(f"no spec comes with dali-run as {name!r}{nearest(name, known)}; "
                        f"there are: {', '.join(known)}")  # fmt: skip
    return known[name]


def known_spec(path: str | os.PathLike[str]) -> Path:
    """``path``; where nothing is there and a spec that comes with dali-run is meant (``quickstart``, or
    ``configs/quickstart.yaml`` as the documentation writes it), that one."""
    here = Path(path)
    named = re.fullmatch(r"(?:configs/)?(\w+)(?:\.yaml)?", os.fsdecode(path))
    return here if named is None or here.exists() else shipped().get(named[1], here)


def text_of(path: Path) -> str:
    """A spec to start from, without the line that names the schema beside it for editors: it is copied elsewhere."""
    return re.sub(r"^# yaml-language-server:[^\n]*\n", "", path.read_text(encoding="utf-8"))


def summary(path: Path) -> str:
    """The first sentence of a spec's leading comment."""
    head = re.match(r"(?:#[^\n]*\n)*", text_of(path))
    text = " ".join(line.lstrip("# ") for line in (head[0] if head else "").splitlines())
    return re.split(r"(?<=\.)\s", text, maxsplit=1)[0].removeprefix("Shows ").rstrip(".")
