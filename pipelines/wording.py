"""Numbers, sizes and times as text for people."""

from __future__ import annotations

import re

CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u2028\u2029\u202a-\u202e\u2066-\u2069]")
"""Pattern of control characters, which act on a terminal or page instead of being displayed."""


def printable(text: str) -> str:
    """Return ``text`` with control characters escaped, so that a file name cannot act on a terminal or page. All text
    from outside is passed through it before it is displayed."""
    return CONTROL.sub(lambda found: found[0].encode("unicode_escape").decode(), text)


def size(nbytes: float) -> str:
    """Return a number of bytes as text with a unit: ``1.4 MiB``."""
    for unit in ("B", "KiB", "MiB", "GiB"):
        if nbytes < 1024:
            return f"{nbytes:.0f} {unit}" if unit == "B" or nbytes >= 100 else f"{nbytes:.1f} {unit}"
        nbytes /= 1024
    return f"{nbytes:.1f} TiB"


def duration(seconds: float) -> str:
    """Return a duration as text: ``1.24 s``, ``3 min 05 s``, ``2 h 07 min``."""
    if seconds < 60:
        return f"{seconds:.2f} s"
    minutes, remaining = divmod(round(seconds), 60)
    if minutes < 60:
        return f"{minutes} min {remaining:02d} s"
    return f"{minutes // 60} h {minutes % 60:02d} min"


def rate(per_second: float | None) -> str:
    """Return a rate as text: ``12,300/s``, ``4.2/s``; a dash for None (not measured)."""
    if per_second is None:
        return "-"
    return f"{per_second:,.0f}/s" if per_second >= 100 else f"{per_second:.1f}/s"


def count(number: int, noun: str) -> str:
    """Return a number with a noun in the right form: ``1 sample``, ``12,000 samples``."""
    return f"{number:,} {noun}" + ("" if number == 1 else "s")
