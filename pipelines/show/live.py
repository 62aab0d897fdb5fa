"""Running jobs for the terminal: rates, queues, operators, rejects, memory, and bottlenecks; for `dali-run top` and
`run`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from rich.console import Group, RenderableType
from rich.text import Text

from ..wording import count, duration, rate, size
from .tables import OneScreen, Row, table

_BAR, _SHORT_BAR = 24, 14
_SPARKS = "▁▂▃▄▅▆▇█"
_MOST_SPARKS = 48
_WORDS = {"preparing": "is preparing", "lost": "is lost: its process ended without a message"}


def live_view(status: Mapping[str, Any]) -> RenderableType:
    """Return the present state of one job, as text and tables for one screen."""
    rows = status.get("workers", status.get("operators", []))
    return OneScreen(lambda max_rows: Group(*_lines(status, max_rows)), len(rows))


def _lines(status: Mapping[str, Any], max_rows: int) -> list[RenderableType]:
    by = count(len(status["workers"]), "worker") if "workers" in status else count(status["threads"], "thread") if (
        "threads" in status) else "no worker yet"  # fmt: skip
    head = Text.assemble((str(status["name"] or "job"), "bold"), f" on {status['device']}, {by}",
                         _of_part(status["part"]))  # fmt: skip
    if status["state"] != "running":
        head.append(f"; {state_in_words(status)}", "yellow")
    parts: list[RenderableType] = [head]
    if "done" not in status:
        return parts
    parts += [_progress(status), Text(pace(status)), *_sparks(status["recent_samples_per_second"]), Text()]
    if "workers" in status:
        done, of = status["parts"]
        return [*parts, _workers(status, max_rows), Text(), Text(f"{done:,} of {count(of, 'part')} finished")]
    parts += [_operators(status["operators"], max_rows), _queues(status["queues"]), Text(), Text(_memory(status))]
    if status["state"] == "running":
        parts.append(Text(status["bottleneck"]["sentence"], "bold"))
    return parts


def _workers(status: Mapping[str, Any], max_rows: int) -> RenderableType:
    """Return a table with a line per worker; if there are more than ``max_rows``, only the slowest workers."""
    workers = status["workers"]
    first = sorted(range(len(workers)), key=lambda i: workers[i]["samples_per_second"])[:max_rows]
    fastest = max((w["samples_per_second"] for w in workers), default=0.0) or 1.0
    rows: list[Row] = []
    for i in sorted(first):
        w = workers[i]
        rows.append(
            [
                w["name"],
                w["node"],
                "waits" if w["part"] is None else f"{w['part']:,}",
                rate(w["samples_per_second"]),
                _bar(w["samples_per_second"] / fastest, _SHORT_BAR),
                f"{w['done']:,}",
                f"{w['rejected']:,}",
            ]
        )
    if more := len(workers) - len(first):
        rest = sum(w["samples_per_second"] for i, w in enumerate(workers) if i not in first)
        rows.append([f"{more:,} more", "", "", rate(rest), "", "", ""])
    columns = ("worker", "machine", "part", "speed", "", "read", "rejected")
    dispensable = ("", "rejected", "read") if status["nodes"] > 1 else ("machine", "", "rejected", "read")
    return table(columns, rows, numbers=("part", "speed", "read", "rejected"), dispensable=dispensable)


def live_views(statuses: Sequence[Mapping[str, Any]]) -> RenderableType:
    """Return a view of several jobs, or of the parts of one job, with a row for each that is not finished."""
    rows: list[Row] = []
    finished = [s for s in statuses if s["state"] == "finished"]
    for s in statuses:
        if s in finished:
            continue
        began = "done" in s
        rows.append([
            f"{s['name'] or 'job'}{_of_part(s['part'])}", s["state"],
            f"{s['done'] / max(s['total'], 1):.0%}" if began else "",
            rate(s["samples_per_second"]) if began and s["state"] == "running" else "",
            _left(s) or "", f"{s['rejected']:,}" if began else "",
            held_back(s) if s["state"] == "running" else "", s["output"],
        ])  # fmt: skip
    shown = table(("job", "state", "done", "speed", "left", "rejected", "held back by", "output"), rows,
                  numbers=("done", "speed", "left", "rejected"),
                  dispensable=("held back by", "rejected", "left"))  # fmt: skip
    together = sum(s["samples_per_second"] for s in statuses if s["state"] == "running")
    parts: list[RenderableType] = [shown] if rows else []
    parts += [Text(f"together {rate(together)}")] if together else []
    parts += [Text(f"{len(finished)} of {count(len(statuses), 'part')} finished")] if finished else []
    return Group(*parts)


def state_in_words(status: Mapping[str, Any]) -> str:
    """Return a job's state as text: ``running``, ``finished: wrote 12 samples to out``."""
    state = str(status["state"])
    message = f": {status['message']}" if status.get("message") else ""
    return f"{_WORDS.get(state, state)}{message}"


def pace(status: Mapping[str, Any]) -> str:
    """Return a job's speed and remaining time as text: ``4,000/s now, 3,900/s on average, 9.5 s left, 3 rejected``."""
    average = status["done"] / status["seconds"] if status["seconds"] else None
    now = [f"{rate(status['samples_per_second'])} now"] if status["state"] == "running" else []
    left = _left(status)
    return ", ".join([*now, f"{rate(average)} on average", *([f"{left} left"] if left else []),
                      *([f"{status['left_out']:,} left out"] if status.get("left_out") else []),
                      f"{status['rejected']:,} rejected"])  # fmt: skip


def held_back(status: Mapping[str, Any]) -> str:
    """Return the resource that limits a job's speed as text: ``cpu 92%``."""
    bottleneck = status["bottleneck"]
    return f"{bottleneck['what']} {min(bottleneck['share'], 1):.0%}"


def _left(status: Mapping[str, Any]) -> str:
    if status["state"] != "running" or not status.get("done") or not status["seconds"]:
        return ""
    speed = status["samples_per_second"] or status["done"] / status["seconds"]
    return duration((status["total"] - status["done"]) / speed)


def _of_part(part: Sequence[int] | None) -> str:
    return f", part {part[0]} of {part[1]}" if part else ""


def _bar(share: float, width: int = _BAR) -> Text:
    full = round(min(max(share, 0.0), 1.0) * width)
    return Text.assemble(("━" * full, "green"), ("─" * (width - full), "dim"))


def _progress(status: Mapping[str, Any]) -> Text:
    share = status["done"] / max(status["total"], 1)
    return Text.assemble(_bar(share), f" {share:.0%}  {status['done']:,} of {status['total']:,} samples")


def _sparks(rates: Sequence[float]) -> list[Text]:
    rates = rates[-_MOST_SPARKS:]
    top = max(rates, default=0.0)
    if len(rates) < 2 or not top:
        return []
    return [Text.assemble(("".join(_SPARKS[round(r / top * (len(_SPARKS) - 1))] for r in rates), "cyan"),
                          f" up to {rate(top)}")]  # fmt: skip


def _operators(operators: Sequence[Mapping[str, Any]], max_rows: int) -> RenderableType:
    total = sum(o["busy"] for o in operators) or 1.0
    first = sorted(range(len(operators)), key=lambda i: -operators[i]["busy"])[:max_rows]
    rows: list[Row] = []
    for i in sorted(first):
        o = operators[i]
        rows.append([o["name"], Text(o["runs_on"], "green" if o["runs_on"] != "cpu" else "cyan"),
                     f"{o['busy'] / total:.0%}", _bar(o["busy"] / total, _SHORT_BAR)])  # fmt: skip
    if more := len(operators) - len(first):
        rest = sum(o["busy"] for i, o in enumerate(operators) if i not in first)
        rows.append([f"{more} more", "", f"{rest / total:.0%}", ""])
    return table(("operator", "on", "share", ""), rows, numbers=("share",), dispensable=("", "on"))


def _queues(queues: Sequence[Mapping[str, Any]]) -> RenderableType:
    rows = [
        [q["name"], f"{q['fill']} of {q['depth']}", _bar(q["fill"] / max(q["depth"], 1), _SHORT_BAR)] for q in queues
    ]
    return table(("queue", "batches", ""), rows, numbers=("batches",), dispensable=("",))


def _memory(status: Mapping[str, Any]) -> str:
    memory = status["memory"]
    parts = [f"batches {size(memory['host'])} of {size(memory['host_limit'])}"]
    parts += [f"process {size(memory['process'])}"] if memory["process"] else []
    if "gpu" in memory:
        parts.append(f"GPU {size(memory['gpu'])} of {size(memory['gpu_limit'])}")
    busy = [f"GPU {min(status['gpu_busy'], 1):.0%} busy"] if "gpu_busy" in status else []
    return ", ".join([f"Memory: {', '.join(parts)}", *busy])
