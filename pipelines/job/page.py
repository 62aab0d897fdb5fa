"""The page of a run: its report, the samples that were looked at, the command and the spec."""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from ...ops.errors import DaliRunError
from ..show.html import Origin, html_report
from ..spec.shipped import known_spec
from .look import Look

_LONGEST = 200_000
"""Bytes of a spec that are shown."""


def run_page(
    report: Mapping[str, Any], look: Look | None, command: Sequence[str], spec: Path, overrides: Mapping[str, Any]
) -> str:
    """The page. Pictures are there only where this process wrote the samples."""
    origin = Origin(shlex.join(command), _text_of(spec), overrides)
    return html_report(report, look.seen() if look is not None else None, origin)


def _text_of(spec: Path) -> str:
    """The spec's text; nothing for what is no text."""
    try:
        with known_spec(spec).open("rb") as file:
            return file.read(_LONGEST).decode()
    except (OSError, UnicodeDecodeError, DaliRunError):
        return ""
