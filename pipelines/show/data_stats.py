"""Tables for the terminal with the statistics of a data set, for `dali-run stats`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from rich.console import Group, RenderableType
from rich.text import Text

from ..wording import count, duration, rate, size
from .tables import table

_MOST_CLASSES, _MOST_REJECTS = 10, 20
_COLUMNS = ("", "least", "5 %", "median", "95 %", "most", "mean")
_KEYS = ("min", "p5", "median", "p95", "max", "mean")


def stats_view(stats: Mapping[str, Any]) -> RenderableType:
    """Return statistics of a data set (from `data_stats` or `spec_stats`) as text and tables for about one screen."""
    parts: list[RenderableType] = [_headline(stats)]
    spreads: list[Sequence[str]] = []
    lines: list[str] = []
    for name, facts in (stats.get("fields") or stats.get("outputs") or {}).items():
        if facts["what"] == "bytes":
            spreads.append(_spread(f"{name}: bytes", facts["sizes"], size))
            formats = ", ".join(f"{n:,} {kind}" for kind, n in facts["formats"].items())
            lines.append(f"{name}: {size(facts['bytes'])}{', ' * bool(formats)}{formats}")
        elif facts["what"] == "number" and facts.get("counts"):
            lines.append(_classes(name, facts))
        elif facts["what"] == "number":
            spreads.append(_spread(name, facts["spread"]))
        else:
            lines += _arrays(name, facts)
            spreads += [_spread(f"{name}: axis {k}", axis) for k, axis in enumerate(facts["extents"])]
    images, sounds = stats.get("images"), stats.get("sounds")
    if images:
        spreads += [_spread(key, images[key]) for key in ("width", "height", "shorter", "longer", "pixels")]
        lines.append(f"mean of R, G, B: {_numbers(images['mean'])}; deviation: {_numbers(images['std'])} (of 0 to 1)")
    if sounds:
        spreads.append(_spread("seconds", sounds["seconds"], lambda v: f"{v:.2f}"))
        rates = ", ".join(f"{n:,} of {r} Hz" for r, n in sounds["sample_rates"].items())
        lines.append(f"{duration(sounds['total_seconds'])} of audio; {rates}")
    if rows := [row for row in spreads if row]:
        parts += [Text(), table(_COLUMNS, rows, numbers=_COLUMNS[1:], dispensable=("5 %", "95 %", "mean"))]
    parts += [Text(), *map(Text, lines)] if lines else []
    return Group(*parts, *_chosen(stats), *_damaged(stats))


def _headline(stats: Mapping[str, Any]) -> Text:
    line = Text(str(stats["target"]), "bold")
    how = ", chosen at random" if stats["chosen_at_random"] and stats["kind"] != "spec" else ""
    line.append(f": {stats['kind']}, {count(stats['samples'], 'sample')}{how}", "default")
    line.append(f", in {duration(stats['seconds'])} ({rate(stats['samples_per_second'])})", "dim")
    return line


def _spread(name: str, facts: Mapping[str, float] | None, shown: Any = None) -> Sequence[str]:
    if facts is None:
        return ()
    shown = shown or (lambda v: f"{v:,.0f}" if abs(v) >= 100 or float(v).is_integer() else f"{v:.4g}")
    return [name, *(shown(facts[key]) for key in _KEYS)]


def _classes(name: str, facts: Mapping[str, Any]) -> str:
    counts: Mapping[int, int] = facts["counts"]
    names = facts.get("names") or {}
    by_frequency = sorted(counts, key=lambda k: -counts[k])
    named = [f"{names.get(k) or k} ({counts[k]:,})" for k in by_frequency[:_MOST_CLASSES]]
    more = f", and {len(counts) - _MOST_CLASSES:,} more" if len(counts) > _MOST_CLASSES else ""
    fewest, most = facts["fewest"], facts["most"]
    each = f"{fewest:,} to {most:,} times" if fewest != most else "once" if fewest == 1 else f"{fewest:,} times"
    return f"{name}: {count(len(counts), 'value')}, {each} each: {', '.join(named)}{more}"


def _arrays(name: str, facts: Mapping[str, Any]) -> list[str]:
    if "mean" not in facts:
        return [f"{name}: {facts['dtype']}, nothing finite"]
    text = (f"{name}: {facts['dtype']}, from {_numbers([min(facts['min'])])} to {_numbers([max(facts['max'])])}; "
            f"mean {_numbers(facts['mean'])}; deviation {_numbers(facts['std'])}")  # fmt: skip
    return [text + f"; {count(facts['not_finite'], 'sample')} not finite" * bool(facts["not_finite"])]


def _numbers(values: Sequence[float]) -> str:
    return ", ".join(f"{v:.4g}" for v in values)


def _chosen(stats: Mapping[str, Any]) -> list[RenderableType]:
    """Return lines of text about which samples a spec leaves out, and how many come from each data set of a mixture."""
    parts = [Text(f"{name} leaves out {count(n, 'sample')}") for name, n in stats.get("left_out", {}).items()]
    for reader, counts in stats.get("mixtures", {}).items():
        parts.append(Text(f"{reader} mixes {', '.join(f'{n:,} of {name}' for name, n in counts.items())}"))
    return [*parts]


def _damaged(stats: Mapping[str, Any]) -> list[RenderableType]:
    if not stats["rejects"]:
        return [Text("\nEverything decodes", "green")]
    causes = ", ".join(f"{n:,} {code}" for code, n in stats["codes"].items())
    rows = [[r["key"], r["code"], r["message"]] for r in stats["rejects"][:_MOST_REJECTS]]
    more = len(stats["rejects"]) - len(rows)
    parts: list[RenderableType] = [
        Text(f"\n{count(stats['corrupt'], 'sample')} cannot be used: {causes}", "yellow"),
        table(("sample", "why", "meaning"), rows),
    ]
    return [*parts, Text(f"and {more:,} more (--json has all)")] if more else parts
