"""Reports, plans, operators and findings as tables for the terminal. All of their data is also in the JSON of the
command."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

from rich.console import Group, RenderableType
from rich.text import Text

from ..wording import count, duration, rate, size
from .tables import FittingTable, OneScreen, Row, table

_STYLES = {"ok": "green", "note": "cyan", "missing": "yellow", "warning": "bold red"}


# -- a finished job ---------------------------------------------------------------------------------------------------

_BAR = 12


_MACHINES = 8
"""Largest number of machines of a job that are listed, one per line."""
_NAMED = 3
"""Largest number of names in a list, such as operators of a stage. Further names are only counted."""


def report_view(report: Mapping[str, Any]) -> RenderableType:
    """Return a view of the report of a run that fits one screen: operators, stages, rejects, and bottleneck. Of many
    operators, only the busiest are included."""

    def of(max_rows: int) -> Group:
        return Group(_headline(report), Text(), operator_table(report, max_rows), Text(), _stage_table(report), Text(),
                     *_memory(report), *_rejects(report), *_machines(report), *_bottleneck(report))  # fmt: skip

    return OneScreen(of, len(report["operators"]))


def _headline(report: Mapping[str, Any]) -> Text:
    samples = report["samples"]
    line = Text(str(report.get("name") or "job"), "bold")
    line.append(f": {count(samples.get('read', 0), 'sample')} read in {duration(report['seconds'])}", "default")
    line.append(f", {rate(report['samples_per_second'])}", "bold cyan")
    line.append(f" on {report['device']}, {count(report['threads'], 'thread')}", "default")
    if "written" in samples:
        omitted = f", {samples['left_out']:,} left out" if samples.get("left_out") else ""
        line.append(f"; {samples['written']:,} written{omitted}, {samples.get('rejected', 0):,} rejected", "default")
    if "kept" in samples:
        line.append(f"; {count(samples['kept'], 'image')} copied unchanged (already as requested)", "default")
    if report.get("compiling_seconds", 0) >= 1:
        line.append(f"; {duration(report['compiling_seconds'])} to compile CPU kernels", "default")
    return line


def _machines(report: Mapping[str, Any]) -> list[Text]:
    """Return lines of text, one per machine of a job with several workers, with its bottleneck."""
    nodes = report.get("nodes", [])
    lines = [
        Text(f"{n['name']}: {count(n['workers'], 'worker')}, {rate(n['samples_per_second'])}. "
             f"{n['bottleneck']['sentence']}")
        for n in nodes[:_MACHINES]
    ]  # fmt: skip
    more = len(nodes) - len(lines)
    return [*lines, Text(f"{count(more, 'more machine')} in the report", "dim")] if more else lines


def operator_table(report: Mapping[str, Any], max_rows: int | None = None) -> FittingTable:
    """Return a table of a report's operators. With ``max_rows``, only the busiest have a row; a last line sums up the
    others."""
    operators = report["operators"]
    busiest = max((_busy(o) for o in operators), default=0.0) or 1.0
    total = sum(_busy(o) for o in operators) or 1.0
    first = sorted(range(len(operators)), key=lambda i: -_busy(operators[i]))[:max_rows]
    rows: list[Row] = []
    for i in sorted(first):
        o, busy = operators[i], _busy(operators[i])
        bar = Text("━" * max(1, round(_BAR * busy / busiest)), "red" if busy == busiest else "yellow")
        rows.append([o["name"], Text(o["runs_on"], "green" if o["runs_on"] != "cpu" else "cyan"), f"{o['samples']:,}",
                     duration(busy), f"{busy / total:.0%}", bar, f"{o['p50_ms']:.2f}", f"{o['p95_ms']:.2f}",
                     rate(o["samples_per_second"]), size(o["bytes_in"]), size(o["bytes_out"])])  # fmt: skip
    columns = ("operator", "on", "samples", "busy", "share", "", "p50 ms", "p95 ms", "speed", "in", "out")
    if more := len(operators) - len(first):
        rest = sum(_busy(o) for i, o in enumerate(operators) if i not in first)
        rows.append([f"{more} more", "", "", duration(rest), f"{rest / total:.0%}", *[""] * 6])
    return table(columns, rows, numbers=[c for c in columns if c not in ("operator", "on", "")],
                 dispensable=("in", "out", "p50 ms", "p95 ms", "samples", "", "on"))  # fmt: skip


def _busy(operator: Mapping[str, Any]) -> float:
    """Return the busy time of an operator: seconds on the GPU or, on the CPU, the sum over threads."""
    return float(operator["gpu_seconds"] or operator["cpu_seconds"])


def _stage_table(report: Mapping[str, Any]) -> FittingTable:
    seconds = working_seconds(report)
    busy_of = {o["name"]: _busy(o) for o in report["operators"]}
    rows: list[Row] = []
    for s in report["stages"]:
        busy = s["busy_seconds"]
        if s["kind"] == "chunk":  # the threads do the work, not the stage itself
            busy = sum(busy_of.get(name, 0.0) for name in s["operators"]) / report["threads"]
        shares = (busy, s["waiting_for_input_seconds"], s["blocked_on_output_seconds"])
        rows.append([s["id"], _some(s["operators"]) or "-", *(f"{x / seconds:.0%}" for x in shares)])
    columns = ("stage", "operators", "busy", "waits for input", "blocked by output")
    return table(columns, rows, numbers=columns[2:], dispensable=["operators"])


def working_seconds(report: Mapping[str, Any]) -> float:
    """Return the seconds by which busy times are divided to get shares: the duration of the run or, for several
    workers, the sum of their working times."""
    return float(report.get("work_seconds") or report["seconds"] or 1.0)


def _some(names: Sequence[str]) -> str:
    """Return the first few of ``names`` as text, and the number of the others."""
    more = len(names) - _NAMED
    return ", ".join([*names[:_NAMED], *([f"{more} more"] if more > 0 else [])])


def _memory(report: Mapping[str, Any]) -> list[RenderableType]:
    memory = report.get("memory") or {}
    pools = [f"{size(memory[f'{k}_peak_bytes'])} of {size(memory[f'{k}_budget_bytes'])} ({k})"
             for k in ("host", "gpu") if f"{k}_budget_bytes" in memory]  # fmt: skip
    if not pools:
        return []
    waited = sum(memory.get(f"{k}_waited_seconds", 0.0) for k in ("host", "gpu"))
    held_back = f"; work was held back for {duration(waited)}" if waited >= 0.1 else ""
    lines = [f"Peak batch memory: {', '.join(pools)}{held_back}"]
    if pool := memory.get("gpu_pool_bytes"):
        kinds = [f"{size(memory[f'gpu_{k}_bytes'])} {k}" for k in ("arrays", "workspaces", "files")]
        seconds, last = report["seconds"] or 1.0, report["queues"][-1]
        waits = [f"{min(last[f'{k}_seconds'] / seconds, 1):.1%}" for k in ("empty", "full")]
        lines.append(
            f"GPU memory: at most {size(pool)} ({', '.join(kinds)}). The consumer waited {waits[0]} of the time for "
            f"the pipeline, the pipeline {waits[1]} for the consumer"
        )
    return [Text(line) for line in lines]


_DECODERS = {"cpu": "dali-run's own on the CPU", "cuda": "dali-run's own on the GPU"}
"""Descriptions of decoders whose names in report.json are only the device."""
_NOTABLE = 0.1
"""Seconds for which batches must have waited for a decoder before this is reported."""


def _rejects(report: Mapping[str, Any]) -> list[RenderableType]:
    parts: list[RenderableType] = []
    if report.get("rejected"):
        by_code = _some([f"{n:,} {code}" for code, n in sorted(report["rejected"].items(), key=lambda x: -x[1])])
        parts.append(Text(f"Rejected: {by_code}; each is a line in rejects.jsonl", "yellow"))
    if report.get("left_out"):
        by_operator = _some([f"{n:,} by {name}" for name, n in sorted(report["left_out"].items(), key=lambda x: -x[1])])
        parts.append(Text(f"Left out on purpose: {by_operator}; each is a line in left_out.jsonl"))
    for reader, counts in report.get("mixtures", {}).items():
        parts.append(Text(f"Mixed by {reader}: {_some([f'{n:,} of {name}' for name, n in counts.items()])}"))
    if report.get("splits"):
        written = [f"{samples.get('written', 0):,} {part}" for part, samples in report["splits"].items()]
        about = "a hash of each key decides, so shares are approximate; the tables above are of the last part"
        parts.append(Text(f"Split: {_some(written)} ({about})"))
    for way, nbytes in report.get("uploads", {}).items():
        parts.append(Text(f"Files uploaded to the GPU: {size(nbytes)} {way}"))
    if report.get("decoders"):
        by_decoder = _some([f"{_DECODERS.get(decoder, decoder)} {n:,}" for decoder, n in report["decoders"].items()])
        parts.append(Text(f"Images by decoder: {by_decoder}"))
    waits = {decoder: t["waited_seconds"] for decoder, t in report.get("decoder_times", {}).items()}
    if late := [f"{seconds:.3g} s for {decoder}" for decoder, seconds in waits.items() if seconds >= _NOTABLE]:
        parts.append(Text(f"Batches waited {', '.join(late)}"))
    if report.get("fallbacks"):
        parts.append(Text(f"Fallback: {_some([f'{why} ({n:,})' for why, n in report['fallbacks'].items()])}", "yellow"))
    return parts


def _bottleneck(report: Mapping[str, Any]) -> list[RenderableType]:
    bottleneck = report["bottleneck"]
    return [Text(bottleneck["sentence"], "bold"), Text(f"To go faster: {bottleneck['advice']}")]


# -- before a job -----------------------------------------------------------------------------------------------------


def plan_view(plan: Mapping[str, Any]) -> RenderableType:
    """Return a view of the steps of a plan, with their devices and outputs."""
    kinds = {s["id"]: s["kind"] for s in plan["stages"]}
    ids = list(kinds)
    rows: list[Row] = []
    for o in plan["operators"]:
        inputs = [*o["inputs"], *(f"{k}={v}" for k, v in o["arguments"].items())]
        name = f"{o['name']} (parity: {o['parity']})" if o.get("parity") else o["name"]
        rows.append([ids[o["stage"]], name, Text(o["runs_on"], "green" if o["runs_on"] != "cpu" else "cyan"),
                     ", ".join(inputs), "\n".join(o["outputs"])])  # fmt: skip
    parts: list[RenderableType] = [
        Text.assemble((str(plan.get("name") or "plan"), "bold"), f": on {plan['device']}, seed {plan['seed']}"),
        Text(),
        table(("stage", "operator", "on", "inputs", "outputs"), rows),
        Text(),
        table(("output", "from", "type"), [[k, v["from"], v["spec"]] for k, v in plan["outputs"].items()]),
    ]
    parts += [Text(f"{o['name']} {o['selects']}") for o in plan["operators"] if o.get("selects")]
    parts += [Text(f"Fused: {line}") for line in plan["fused"]]
    parts += [Text(f"On the GPU instead of the CPU, with equal results: {name}") for name in plan.get("promoted", ())]
    parts += [
        Text(f"Images of {o['name']} are decoded: {o['decoders']}") for o in plan["operators"] if o.get("decoders")
    ]
    if plan.get("memory"):
        limits = [f"{k}: {size(v) if isinstance(v, int) else v}" for k, v in plan["memory"].items()]
        parts.append(Text(f"Memory limits: {', '.join(limits)}"))
    if plan.get("upload"):
        parts.append(Text(f"Records of containers are {plan['upload']}"))
    if plan.get("arrays"):
        parts.append(Text(f"Arrays that a reader puts on the GPU are {plan['arrays']}"))
    if plan.get("isolation"):
        parts.append(Text(_isolation_line(**plan["isolation"])))
    if plan.get("write"):
        parts.append(Text(_write_line(plan["write"])))
    if plan.get("forecast"):
        parts += [Text(), Text(_forecast_line(plan["forecast"]), "bold")]
    if plan.get("on_machines"):
        parts.append(Text(_machines_line(plan["on_machines"]), "bold"))
    return Group(*parts)


def _forecast_line(estimate: Mapping[str, Any]) -> str:
    """Return one line with the size and the estimated time of a job."""
    samples = estimate["samples"]
    words = [f"Samples: unknown ({estimate['why']})" if samples is None else f"Reads {count(samples, 'sample')}"]
    if estimate["shards"] is not None:
        words.append(f"writes {'about ' * (estimate['bytes'] is not None)}{count(estimate['shards'], 'shard')}")
    if estimate["samples_per_second"] is None:
        words.append("time and size of the output: not measured (--measure)")
        return "; ".join(words)
    each = f"{rate(estimate['samples_per_second'])} without writing, {size(estimate['bytes_per_sample'])} per sample"
    words.append(f"measured for {duration(estimate['measured_seconds'])}: {each}")
    if estimate["seconds"] is not None:
        words.append(f"so about {duration(estimate['seconds'])} and {size(estimate['bytes'])}")
    return "; ".join(words)


def _machines_line(estimate: Mapping[str, Any]) -> str:
    """Return one line with the estimated time of a job on many machines."""
    each = f" with {count(estimate['gpus'], 'GPU')} each" if estimate["gpus"] else ""
    words = [
        f"On {count(estimate['nodes'], 'machine')}{each}, {count(estimate['workers'], 'worker')} as fast as this "
        f"one here: about {duration(estimate['seconds'])}, {estimate['efficiency']:.0%} of linear, in "
        f"{count(estimate['parts'], 'part')}",
        f"the storage reads {size(estimate['read_per_second'])}/s and writes {size(estimate['written_per_second'])}/s",
        f"an index takes up to {size(estimate['index_bytes'])} of each machine's memory",
    ]
    if estimate["idle_workers"]:
        words.append(f"there are too few shards: {count(estimate['idle_workers'], 'worker')} would be idle")
    if estimate["gpus"] and estimate["measured_on"] != "gpu":
        words.append("measured without a GPU, so the speed with GPUs will differ")
    return "; ".join(words)


def _isolation_line(mode: str, timeout: float) -> str:
    if mode == "none":
        return "Decodes all images in this process: an image that crashes its decoder ends the job"
    images = "all images" if mode == "all" else "images other than JPEG"
    return f"Decodes {images} in separate processes, each in at most {timeout:g} s of CPU time"


def _write_line(write: Mapping[str, Any]) -> str:
    limits = [f"{write['shard']['samples']:,} samples"] if write["shard"]["samples"] else []
    limits += [size(write["shard"]["bytes"])] if write["shard"]["bytes"] else []
    shards = f"a shard every {' or '.join(limits)}" if limits else "one shard"
    fields = ", ".join(f"{name} ({encode})" for name, encode in write["fields"].items())
    return f"Writes {fields} as {write['writer']} to {write['path']}, {shards}"


# -- operators --------------------------------------------------------------------------------------------------------


def operators_view(operators: Sequence[Mapping[str, Any]]) -> RenderableType:
    """Return a view of all operators, one line each."""
    return table(("operator", "on", "summary"), [[o["name"], " ".join(o["stages"]), o["summary"]] for o in operators])


def operator_view(operator: Mapping[str, Any], idle: str = "") -> RenderableType:
    """Return a view of one operator with its arguments; ``idle`` is text about the arguments without effect."""
    parts: list[RenderableType] = [Text(operator["name"], "bold"), Text(_flowing(operator["doc"])), Text()]
    parts.append(table(("", ""), [[Text(k, "dim"), v] for k, v in operator["facts"].items()]))
    rows = [[a["name"], a["type"], a["default"], a["help"]] for a in operator["arguments"] if not a["without_effect"]]
    if rows:
        parts += [Text(), table(("argument", "type", "default", "meaning"), rows)]
    if idle:
        parts.append(Text(f"\naccepted, without effect: {idle}", "dim"))
    if operator["example"]:
        parts += [Text("\nexample", "dim"), Text(operator["example"])]
    return Group(*parts)


def _flowing(text: str) -> str:
    """Return a docstring with each paragraph as one line, so that the terminal wraps it. Lists and indented text stay
    unchanged."""
    paragraphs = text.replace("``", "`").split("\n\n")
    listed = re.compile(r"^(?: |[-*] |\d+[.)] )", re.M)
    return "\n\n".join(p if listed.search(p) else p.replace("\n", " ") for p in paragraphs)


def like_view(answers: Sequence[Mapping[str, Any]]) -> RenderableType:
    """Return a view of the steps that are equivalent to other libraries' transforms."""
    parts: list[RenderableType] = []
    for answer in answers:
        parts += [
            Text(answer["name"], "bold"),
            *(Text(f"  - {step}", no_wrap=True, overflow="ignore") for step in answer["steps"]),
        ]
        if answer["note"]:
            parts.append(Text(answer["note"]))
        parts.append(Text())
    named = sorted({name for answer in answers for name in answer["operators"]})
    if named:
        parts.append(Text(f"Arguments: {'; '.join(f'dali-run ops {name}' for name in named)}", "dim"))
        parts.append(
            Text("To apply steps to some of the samples only: random.coin_flip and `if: $flag` (docs/spec.md).", "dim")
        )
    return Group(*parts)


# -- data -------------------------------------------------------------------------------------------------------------


def intermediates_view(result: Mapping[str, Any]) -> RenderableType:
    """Return a view of the outputs of every operator of a spec, from `inspect_spec`."""
    rows: list[Row] = []
    for r in result["intermediates"]:
        shapes = " ".join("x".join(map(str, s)) or "scalar" for s in r["shapes"][:3])
        more = f" +{len(r['shapes']) - 3}" if len(r["shapes"]) > 3 else ""
        values = ["-" if r[k] is None else f"{r[k]:.4g}" for k in ("min", "max", "mean")]
        rows.append([r["name"], shapes + more, r["dtype"], r["layout"], *values])
    columns: tuple[str, ...] = ("operator", "shapes", "dtype", "layout", "min", "max", "mean")
    if any("apart" in r for r in result["intermediates"]):
        columns = ("operator", "dtype", "layout", "values that differ", "by at most", "by on average")
        rows = [[r["name"], r["dtype"], r["layout"], *_apart(r["apart"])] for r in result["intermediates"]]
    parts: list[RenderableType] = [table(columns, rows, numbers=columns[-3:]), Text()]
    for r in result["rejects"]:
        if r["code"] == "left_out":
            parts.append(Text(f"Left out: {r['key']}: {r['operator']}: {r['message']}"))
        else:
            parts.append(Text(f"Rejected: {r['key']}: {r['operator']}: {r['code']}: {r['message']}", "yellow"))
    parts.append(Text(f"{count(len(result['samples']), 'sample')}; images and arrays are in {result['folder']}"))
    return Group(*parts)


def _apart(difference: Mapping[str, Any] | None) -> tuple[str, str, str]:
    if difference is None:
        return "only here", "", ""
    if difference["differ"] is None:
        return "other shapes" if difference["other_shape"] else "other samples", "", ""
    more = (
        f", {difference['other_shape']} of {difference['samples']} of another shape"
        if difference["other_shape"]
        else ""
    )
    if not difference["max"]:
        return f"none{more}", "", ""
    return f"{difference['differ']:.1%}{more}", f"{difference['max']:.4g}", f"{difference['mean']:.4g}"


def data_view(result: Mapping[str, Any]) -> RenderableType:
    """Return a view of the records of a data set, from `inspect_data`."""
    records = "" if result["records"] is None else f", {count(result['records'], 'record')}"
    rows: list[Row] = []
    for s in result["samples"]:
        first = s["key"]
        for name, f in s["fields"].items():
            rows.append([first, name, Text(value_in_words(f), "red" if f.get("problem") else "")])
            first = ""
        if s["problem"]:
            rows.append([first, "", Text(s["problem"], "red")])
    return Group(Text(f"{result['target']}: {result['kind']}{records}"), Text(), table(("key", "field", "holds"), rows))


def value_in_words(f: Mapping[str, Any]) -> str:
    """Return a field of a sample as text: its kind, size and range."""
    parts = [f["what"]]
    if "width" in f:
        parts.append(f"{f['width']} x {f['height']} {f.get('mode', '')}".rstrip())
    if "codec" in f:
        parts.append(f"{f['codec']}, {count(f['frames'], 'frame')}, {f['seconds']:g} s")
    if "shape" in f:
        parts.append(f"{f['dtype']}[{'x'.join(map(str, f['shape'])) or 'scalar'}]")
    if "min" in f:
        parts.append(f"{f['min']:.4g} .. {f['max']:.4g}, mean {f['mean']:.4g}")
    if "value" in f:
        parts.append(str(f["value"]))
    if "bytes" in f:
        parts.append(f"({size(f['bytes'])})")
    if "problem" in f:
        parts.append(str(f["problem"]))
    return " ".join(parts)


# -- the machine ------------------------------------------------------------------------------------------------------


def doctor_view(result: Mapping[str, Any]) -> RenderableType:
    """Return a view of doctor's findings by area, then what to repair, and which optional packages can be installed."""
    rows: list[Row] = []
    area = ""
    for f in result["findings"]:
        first = Text(f["area"] if f["area"] != area else "", "bold")
        rows.append([first, f["what"], Text(f["status"], _STYLES[f["status"]]), Text(f["value"])])
        area = f["area"]
    parts: list[RenderableType] = [table(("", "", "", ""), rows)]
    optional = {f["remedy"] for f in result["findings"] if f["area"] == "packages" and f["status"] == "missing"}
    for title, is_optional in (("To do:", False), ("If you need it:", True)):
        remedies = [Text(f"  {r}") for r in result["remedies"] if (r in optional) is is_optional]
        if remedies:
            parts += [Text(f"\n{title}", "bold"), *remedies]
    return Group(*parts)
