"""JSON texts that users, other programs and damaged files give: the one parser, which raises ValueError alone."""

from __future__ import annotations

import json
from typing import Any


def parse_json(text: str | bytes) -> Any:
    """Parse a JSON text (UTF-8 if it is bytes) and return its value. Raises ValueError if it is not JSON, or if it is
    nested more deeply than Python's parser allows (about 1,000 levels)."""
    try:
        return json.loads(text)
    except RecursionError:
        raise ValueError("it is nested too deeply") from None
