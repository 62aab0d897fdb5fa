"""The HTML report of a run: speed, bottleneck, course over time, and samples before and after."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from ..wording import count, duration, rate, size
from .page import Section, facts, lead, listing, page, picture, table, table_of, text
from .plots import MOST_LINES, bars, growth, over_time, plot, rates, thinned

_MOST_WORKERS = 100
"""Largest number of workers that the HTML report lists."""


@dataclass(frozen=True, slots=True)
class Sample:
    """One sample before and after the job's operators, as small JPEGs for the HTML report."""

    key: str
    before: bytes | None
    after: Sequence[tuple[str, str, bytes]]
    """Name, description and JPEG of each field in the job's output."""


@dataclass(frozen=True, slots=True)
class Reject:
    """One sample that the job rejected, for the HTML report."""

    key: str
    operator: str
    code: str
    message: str
    picture: bytes | None


@dataclass(frozen=True, slots=True)
class ReportSamples:
    """The samples that a report shows as images."""

    samples: Sequence[Sample] = ()
    rejects: Sequence[Reject] = ()
    more_rejects: int = 0
    """Number of rejected samples that the report does not list."""


@dataclass(frozen=True, slots=True)
class Origin:
    """Command line and spec of a run, for the report."""

    command: str = ""
    spec: str = ""
    """Text of the spec that was run."""
    overrides: Mapping[str, Any] = field(default_factory=dict)


def html_report(
    report: Mapping[str, Any], report_samples: ReportSamples | None = None, origin: Origin | None = None
) -> str:
    """Return the HTML page for the contents of report.json, with images if ``report_samples`` has any."""
    report_samples, origin = report_samples or ReportSamples(), origin or Origin()
    samples = report["samples"]
    figures = [
        ("samples read", f"{samples.get('read', 0):,}"), ("time", duration(report["seconds"])),
        ("speed", rate(report["samples_per_second"])), ("written", f"{samples.get('written', 0):,}"),
        ("rejected", f"{samples.get('rejected', 0):,}"),
        ("device", f"{report['device']}, {count(report['threads'], 'thread')}"),
    ]  # fmt: skip
    if samples.get("left_out"):
        figures.insert(4, ("left out", f"{samples['left_out']:,}"))
    if "kept" in samples:
        figures.append(("kept their bytes", f"{samples['kept']:,}"))
    if report.get("compiling_seconds", 0) >= 1:
        figures.append(("to compile CPU kernels", duration(report["compiling_seconds"])))
    bottleneck = report["bottleneck"]
    sections = [
        Section("Over time", plots(report)),
        Section("Time per operator", [work_bars(report["operators"]), operators(report["operators"])]),
        Section("Stage utilisation", [_stages(report)] if report.get("stages") else []),
        Section("Workers", _workers(report)),
        Section("Before and after", _before_and_after(report_samples.samples)),
        Section("Rejected samples", _rejects(report, report_samples)),
        Section("Memory", _memory(report.get("memory") or {})),
        Section("Decoders and fallbacks", [
            *_decoders(report),
            *_counts("fallback", "samples", report.get("fallbacks", {}), "Samples that took a fallback"),
            *_counts("how", "bytes", report.get("uploads", {}), "Bytes of files uploaded to the GPU"),
        ]),
        Section("This run", _this_run(report, origin)),
    ]  # fmt: skip
    head = [facts(figures), lead(bottleneck["sentence"], bottleneck["advice"])]
    return page(str(report.get("name") or "job"), "report of dali-run", head, sections, _foot(report))


def _foot(report: Mapping[str, Any]) -> str:
    version = report.get("machine", {}).get("versions", {}).get("dali-run", "")
    return " ".join(["dali-run", *([version] if version else []), report.get("machine", {}).get("time", "")]).strip()


def _busy(operator: Mapping[str, Any]) -> float:
    return float(operator["gpu_seconds"] or operator["cpu_seconds"])


def work_bars(operators: Sequence[Mapping[str, Any]]) -> str:
    """Return HTML with a bar per operator, as long as the operator's busy seconds."""
    longest = max((_busy(o) for o in operators), default=0.0) or 1.0
    total = sum(_busy(o) for o in operators) or 1.0
    rows = [(f"{o['name']} ({o['runs_on']})", [(_busy(o) / longest, "busy")],
             [duration(_busy(o)), f"{_busy(o) / total:.0%}"]) for o in operators]  # fmt: skip
    return bars(("operator", "busy", "share"), rows, "Busy time of operators, added over threads")


def _stages(report: Mapping[str, Any]) -> str:
    """Return HTML with a bar per stage: the shares of time in which the stage was busy, waited for input, or was
    blocked by its output."""
    # for several workers, the sum of their times
    seconds = float(report.get("work_seconds") or report["seconds"] or 1.0)
    by_name = {o["name"]: _busy(o) for o in report["operators"]}
    rows = []
    for s in report["stages"]:
        busy = s["busy_seconds"]
        if s["kind"] == "chunk":  # the threads do the work, not the stage itself
            busy = sum(by_name.get(n, 0.0) for n in s["operators"]) / report["threads"]
        spent = ((busy, "busy"), (s["waiting_for_input_seconds"], "waits"), (s["blocked_on_output_seconds"], "blocked"))
        rows.append((s["id"], [(x / seconds, kind) for x, kind in spent], [f"{x / seconds:.0%}" for x, _ in spent]))
    key = "".join(f'<i class="{kind}"></i>{name}' for kind, name in
                  (("busy", "busy"), ("waits", "waits for input"), ("blocked", "blocked by output")))  # fmt: skip
    return f'<p class="key">{key}</p>' + bars(
        ("stage", "busy", "waits", "blocked"), rows, "How stages spent their time"
    )


def _workers(report: Mapping[str, Any]) -> list[str]:
    """Return HTML tables of the machines and workers of a job, each with its bottleneck and the shares of its
    stages."""
    workers, nodes = report.get("workers", []), report.get("nodes", [])
    if not workers:
        return []
    parts = [table(("machine", "workers", "samples", "speed", "held back by"),
                   [(n["name"], f"{n['workers']:,}", f"{n['samples']:,}", rate(n["samples_per_second"]),
                     n["bottleneck"]["sentence"]) for n in nodes], 1, "Machines")] if nodes else []  # fmt: skip
    rows = [(w["name"], w["node"], f"{w['parts']:,}", f"{w['samples']:,}", duration(w["busy_seconds"]),
             duration(w["idle_seconds"]), rate(w["samples_per_second"]), w.get("ended") or w["bottleneck"])
            for w in workers[:_MOST_WORKERS]]  # fmt: skip
    parts.append(table(("worker", "machine", "parts", "samples", "at work", "without work", "speed",
                        "held back by, or ended by"), rows, 2, "Workers"))  # fmt: skip
    names = list(dict.fromkeys(s for w in workers for s in w.get("stages", {})))
    shown = [
        (f"{w['name']}, {w['node']}", *(f"{w['stages'][s]['busy']:.0%}" if s in w["stages"] else "-" for s in names))
        for w in workers[:_MOST_WORKERS]
        if w.get("stages")
    ]
    if shown:
        parts.append(table(("worker", *names), shown, 1, "How busy the stages of each worker were"))
    if len(workers) > _MOST_WORKERS:
        parts.append(f"<p>{len(workers) - _MOST_WORKERS:,} more workers are in report.json.</p>")
    return parts


def operators(operators_of_report: Sequence[Mapping[str, Any]]) -> str:
    """Return an HTML table with all statistics of the operators, such as time and bytes."""
    columns = ("operator", "on", "calls", "samples", "busy", "p50 ms", "p95 ms", "speed", "in", "out")
    rows = [
        (o["name"], o["runs_on"], f"{o['calls']:,}", f"{o['samples']:,}", duration(_busy(o)), f"{o['p50_ms']:.2f}",
         f"{o['p95_ms']:.2f}", rate(o["samples_per_second"]), size(o["bytes_in"]), size(o["bytes_out"]))
        for o in operators_of_report
    ]  # fmt: skip
    return table(columns, rows, 2, "Operators: calls, times and bytes")


def plots(report: Mapping[str, Any]) -> list[str]:
    """Return HTML plots of the run over time; none if the run was too short."""
    course = over_time(report.get("over_time"))
    if course is None:
        return []
    seconds = course["seconds"]
    at, speed = rates(seconds, course["samples"])
    drawn = [plot("rate", "Samples per second", at, [("samples", speed)], rate)] if at else []
    each = sorted(course.get("workers", {}).items(), key=lambda x: -x[1][-1])[:MOST_LINES]
    if len(each) > 1 and at:
        lines = [(name, growth(seconds, counts, at)) for name, counts in each]
        drawn.append(plot("workers", "Samples per second of each worker", at, lines, rate))
    fills = [(name, *thinned(seconds, [x / max(q["depth"], 1) for x in q["fill"]]))
             for name, q in course["queues"].items()]  # fmt: skip
    if fills:
        drawn.append(plot("queues", "How full the queues were", fills[0][1], [(n, ys) for n, _, ys in fills],
                          _percent, 1.0))  # fmt: skip
    worked = sorted(course["operators"].items(), key=lambda x: -x[1][-1])[:MOST_LINES]
    if worked and at:
        lines = [(name, growth(seconds, busy, at)) for name, busy in worked]
        drawn.append(plot("operators", "Threads at work in operators", at, lines, lambda x: f"{x:.1f}"))
    if "gpu_busy_seconds" in course and at:
        drawn.append(plot("gpu", "GPU busy", at, [("GPU", growth(seconds, course["gpu_busy_seconds"], at))],
                          _percent, 1.0))  # fmt: skip
    names = {"process": "process", "host": "batches on the host", "gpu": "batches on the GPU"}
    memory = [(names[k], *thinned(seconds, course["memory"][k])) for k in names if any(course["memory"].get(k, ()))]
    if memory:
        drawn.append(plot("memory", "Memory", memory[0][1], [(n, ys) for n, _, ys in memory], size))
    if any(course.get("rejected", ())):
        xs, ys = thinned(seconds, course["rejected"])
        drawn.append(plot("rejects", "Rejected samples so far", xs, [("rejected", ys)], lambda x: f"{x:,.0f}",
                          total=True))  # fmt: skip
    return [f'<div class="plots">{"".join(drawn)}</div>']


def _percent(share: float) -> str:
    return f"{share:.0%}"


def _before_and_after(samples: Sequence[Sample]) -> list[str]:
    figures = []
    for s in samples:
        sides = [f"<div>{picture(s.before, f'{s.key} as it was read')}before</div>"] if s.before else []
        sides += [f"<div>{picture(jpeg, f'{name} of {s.key} as it was written')}{text(name)}: {text(what)}</div>"
                  for name, what, jpeg in s.after]  # fmt: skip
        figures.append(f'<figure><div class="pair">{"".join(sides)}</div><figcaption>{text(s.key)}</figcaption>'
                       "</figure>")  # fmt: skip
    return [f'<div class="pictures">{"".join(figures)}</div>'] if figures else []


def _rejects(report: Mapping[str, Any], report_samples: ReportSamples) -> list[str]:
    parts = _counts("reason", "samples", report.get("rejected", {}), "Rejected samples by reason")
    if report_samples.rejects:
        parts.append(rejects_table(report_samples.rejects))
        if report_samples.more_rejects:
            parts.append(f"<p>{report_samples.more_rejects:,} more are in rejects.jsonl.</p>")
    if report.get("left_out"):
        parts += _counts("operator", "samples", report["left_out"], "Samples left out on purpose, in left_out.jsonl")
    for reader, counts in report.get("mixtures", {}).items():
        parts += _counts("data set", "samples", counts, f"Data sets mixed by {reader}")
    splits = {part: samples.get("written", 0) for part, samples in report.get("splits", {}).items()}
    if splits:
        parts += _counts("part", "samples", splits, "Parts of the split")
    return parts


def rejects_table(rejects: Sequence[Reject]) -> str:
    """Return an HTML table of rejected samples with reasons and, if they can be displayed, images."""
    rows = [[text(r.key), picture(r.picture, f"displayable part of {r.key}") if r.picture else "no image",
             text(r.operator), text(r.code), text(r.message)] for r in rejects]  # fmt: skip
    return table_of(("sample", "image", "operator", "reason", "message"), rows, 5, "Samples that were rejected")


def _memory(memory: Mapping[str, float]) -> list[str]:
    """Return an HTML table with the peak memory of a run and its limits."""
    names = (
        ("host_peak_bytes", "batches and work on the host", "host_budget_bytes"),
        ("gpu_peak_bytes", "batches and work on the GPU", "gpu_budget_bytes"),
        ("peak_host_bytes", "the whole process", ""),
        ("gpu_pool_bytes", "taken from the GPU, spare blocks included", ""),
        ("gpu_arrays_bytes", "thereof outputs and intermediate results", ""),
        ("gpu_workspaces_bytes", "thereof workspaces of kernels", ""),
        ("gpu_files_bytes", "thereof files", ""),
        ("remembered_bytes", "cached about the data set for its next epoch", ""),
    )
    rows = [
        (label, size(memory[k]), size(memory[of]) if of in memory else "-") for k, label, of in names if k in memory
    ]
    return [table(("memory", "at most", "limit"), rows, 1, "Peak memory")] if rows else []


def _decoders(report: Mapping[str, Any]) -> list[str]:
    if not report.get("decoders"):
        return []
    times = report.get("decoder_times", {})
    rows = [
        (decoder, f"{n:,}", *(f"{times.get(decoder, {}).get(k, 0.0):.3f}" for k in ("busy_seconds", "waited_seconds")))
        for decoder, n in report["decoders"].items()
    ]
    return [table(("decoder", "images", "CPU s", "batches waited s"), rows, 1, "Images by decoder")]


def _counts(label: str, number: str, counts: Mapping[str, int], caption: str) -> list[str]:
    return [table((label, number), [(k, f"{v:,}") for k, v in counts.items()], 1, caption)] if counts else []


def _this_run(report: Mapping[str, Any], origin: Origin) -> list[str]:
    """Return the HTML parts about the run: command, date, machine, versions and spec."""
    machine = report.get("machine", {})
    rows = [("started", report.get("started")), ("machine", in_words(machine) if machine else None),
            ("system", machine.get("system")), ("Python", machine.get("python")),
            ("packages", ", ".join(f"{k} {v}" for k, v in machine.get("versions", {}).items())),
            ("settings", ", ".join(f"{k}={v}" for k, v in origin.overrides.items()))]  # fmt: skip
    parts = [table(("what", "value"), [(k, str(v)) for k, v in rows if v], 2, "Where and when it ran")] if any(
        v for _, v in rows) else []  # fmt: skip
    if origin.command:
        parts = ["<h3>Command</h3>", listing(origin.command, "Command"), *parts]
    if origin.spec:
        parts += ["<h3>Spec</h3>", listing(origin.spec, "Spec")]
    return parts


def in_words(machine: Mapping[str, Any]) -> str:
    """Return facts about a machine as one line of text: ``AMD EPYC, 8 of 16 cores, NVIDIA H200``."""
    gpus = "".join(f", {name}" for name in machine.get("gpus", ()))
    return f"{machine['cpu']}, {machine['usable_cores']} of {count(machine['cores'], 'core')}{gpus}"
