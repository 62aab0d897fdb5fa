"""Write the HTML page of a run: its report, a few samples, the command and the spec. Called by the command line."""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from ...ops.errors import DaliRunError
from ..show.html import Origin, html_report
from ..spec.shipped import known_spec
from .look import Look

_MAX_SPEC_BYTES = 200_000
"""Maximum size in bytes of a spec that the page shows."""


def run_page(
    report: Mapping[str, Any], look: Look | None, command: Sequence[str], spec: Path, overrides: Mapping[str, Any]
) -> str:
    """Return a page about a finished job as HTML. It shows samples only if this process wrote them and kept some
    (``look``)."""
    origin = Origin(shlex.join(command), _text_of(spec), overrides)
    return html_report(report, look.seen() if look is not None else None, origin)


def _text_of(spec: Path) -> str:
    """Return the text of the spec file; empty if the file is not text."""
    try:
        with known_spec(spec).open("rb") as file:
            return file.read(_MAX_SPEC_BYTES).decode()
    except (OSError, UnicodeDecodeError, DaliRunError):
        return ""
