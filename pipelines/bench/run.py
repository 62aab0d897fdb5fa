"""Measure how fast a spec's graph runs, for several settings and next to other libraries; each measurement runs in a
fresh process: `dali-run bench`."""

from __future__ import annotations

import itertools
import json
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from ...ops.errors import DaliRunError, SpecError
from ...ops.storage.json_text import parse_json
from ..compile.plan import compile_graph
from ..cores import threads_of
from ..engine.compile_ahead import clients_of, compile_ahead
from ..engine.inputs import opened_once
from ..spec.build import BuiltSpec
from ..wording import count, duration
from .machine import facts
from .measure import MIN_BATCHES, Measurement
from .peers.dali import dali_script
from .peers.media_recipe import media_recipe_of
from .peers.recipe import recipe_of
from .several import check, measure_together, resources_of
from .strata import strata_of

SCHEMA_VERSION = 2
OURS = "dali-run"
WITHOUT_ENCODERS = ", without encoders"
"""Suffix for the label of a setting that is measured without encoders, for a comparison with other libraries."""
PEERS = {
    "dali": "NVIDIA DALI, the same graph",
    "torchvision": "torchvision's decoders and transforms on tensors",
    "dataloader": "PyTorch's DataLoader, Pillow and torchvision's transforms",
    "nvjpeg": "nvJPEG through nvImageCodec, decoding alone",
    "torchaudio": "soundfile and torchaudio's transforms in threads",
    "librosa": "librosa in processes",
    "torchcodec": "torchcodec in threads, torch's resizing",
    "pyav": "PyAV in threads, FFmpeg's resizing",
}
"""The other libraries (peers) that can be measured for comparison, each with a description."""
_SCRIPTS = {"nvjpeg": "nvjpeg.py", **dict.fromkeys(("torchvision", "dataloader"), "torch_loop.py")}
_MEDIA = ("torchaudio", "librosa", "torchcodec", "pyav")
"""Other libraries that can be measured with audio and video, on the CPU."""
_PIPELINE_KEYS = ("batch_size", "num_threads", "device", "prefetch_queue_depth", "rng")
"""Settings of the ``pipeline:`` section that the user may vary in a benchmark without naming the section."""
_MAX_START_SECONDS = 600
"""Maximum seconds for a measuring process to start and warm up."""


@dataclass(frozen=True, slots=True)
class Bench:
    """Everything that one benchmark measures. Created by the command line."""

    specs: Mapping[str, Measurement]
    """One measurement per spec, by the spec's name in labels. Overrides in a measurement hold for all settings of the
    sweep."""
    sweep: Mapping[str, Sequence[str]] = field(default_factory=dict)
    """Keys of the spec to vary, each with the values to measure, in all combinations. Keys of ``pipeline:`` may be
    written without the section."""
    repeats: int = 3
    peers: Mapping[str, str] = field(default_factory=dict)
    """Other libraries to measure, by name, each with the path of the Python interpreter that has it."""
    strata: bool = False
    """Whether each kind of JPEG in the data set is also measured alone."""
    limits: bool = False
    """Whether the limits of the machine, such as the speed of copying memory, are also measured."""

    @property
    def first(self) -> Measurement:
        """The first measurement, for values that are the same in all measurements."""
        return next(iter(self.specs.values()))

    def settings(self) -> list[tuple[str, Measurement]]:
        """Return all settings to be measured, each with a label: every spec with every combination of the swept values,
        for all files and for each stratum (kind of files).

        Raises SpecError for a wrong spec or setting."""
        labelled = []
        for (name, base), values in itertools.product(self.specs.items(), itertools.product(*self.sweep.values())):
            one = dict(zip(self.sweep, values, strict=True))
            changed = {_full_key(k): v for k, v in one.items()}
            this = replace(base, overrides={**base.overrides, **changed})
            label = [name] if len(self.specs) > 1 else []
            label += [f"{k}={v}" for k, v in one.items()]
            labelled.append((" ".join(label) or "as in the spec", this))
            for stratum, files in strata_of(this.compiled()[0].graph).items() if self.strata else ():
                labelled.append(
                    (" ".join([*label, f"{stratum} ({count(files, 'file')})"]), replace(this, stratum=stratum))
                )
        return labelled


def _full_key(key: str) -> str:
    return f"pipeline.{key}" if key in _PIPELINE_KEYS else key


@dataclass(slots=True)
class _Subject:
    """One setting that is measured, with dali-run or another library (a peer), and its results. Created by
    `run_bench`."""

    label: str
    engine: str
    run: Callable[[], dict[str, Any]]
    results: list[dict[str, Any]] = field(default_factory=list)

    def ended(self) -> bool:
        """Return whether a measuring process failed. The setting is then not measured again."""
        return any("refused" in r or "error" in r for r in self.results)


def run_bench(
    bench: Bench,
    command: Sequence[str] = (),
    note: Callable[[str], None] = lambda _: None,
    baseline: Mapping[str, Any] | None = None,
) -> dict[str, Any]:
    """Measure all settings with dali-run and other libraries (the peers) in turn, ``repeats`` times. Return the report
    as plain data.

    ``note`` is called with each result. ``baseline``: an earlier report, to compare with. Raises SpecError before
    anything is measured if a spec is wrong, or if no setting is in the baseline; later failures are ``error`` entries
    in the report."""
    for base in bench.specs.values():
        check(base.on)
    subjects = _subjects(bench, note)
    before = {} if baseline is None else _medians(baseline)
    if baseline is not None and not any(s.label in before for s in subjects):
        raise SpecError(f"no setting is in the baseline, too; it has: {', '.join(before) or 'none'}")
    machine_limits = run_in_process(bench.first, "limits") if bench.limits else None
    _measure(subjects, bench.repeats, note)
    base = bench.first
    report: dict[str, Any] = {
        "schema_version": SCHEMA_VERSION,
        "kind": "dali-run bench",
        "command": list(command),
        "specs": {name: str(Path(this.spec).absolute()) for name, this in bench.specs.items()},
        "overrides": dict(base.overrides),
        "seconds": base.seconds,
        "warm_up_batches": base.warm_up,
        "repeats": bench.repeats,
        "to_host": base.to_host,
        "encode": base.encode,
        "machine": facts(),
        "limits_gb_per_second": machine_limits,
        "results": [_summary(s) for s in subjects],
    }
    if baseline is not None:
        report["baseline"] = {
            "time": baseline.get("machine", {}).get("time"),
            "other_machine": _other_machine(report["machine"], baseline.get("machine", {})),
            "samples_per_second": {
                s.label: before[s.label] for s in subjects if s.engine == OURS and s.label in before
            },
        }
    return report


def _subjects(bench: Bench, note: Callable[[str], None]) -> list[_Subject]:
    """Return all settings to measure, each with dali-run and the peers. Raises SpecError for a wrong spec."""
    subjects = []
    for name, measurement in bench.settings():
        label, this = name, measurement
        built, _ = this.compiled()
        subjects.append(_Subject(label, OURS, lambda this=this: run_in_process(this, "measure")))  # type: ignore[misc]
        if bench.peers and this.encode and _encodes(built):
            # No peer encodes: dali-run is measured with and without encoders, and peers are compared with the latter.
            label, this = f"{label}{WITHOUT_ENCODERS}", replace(this, encode=False)
            note(f"{', '.join(bench.peers)} cannot encode: left out is `write:`, in {label!r}, which ours runs, too")
            subjects.append(_Subject(label, OURS, lambda this=this: run_in_process(this, "measure")))  # type: ignore[misc]
        for peer, python in bench.peers.items():
            subjects.append(_Subject(label, peer, _peer(peer, this, python)))
    return subjects


def _measure(subjects: Sequence[_Subject], repeats: int, note: Callable[[str], None]) -> None:
    """Measure all ``subjects`` in turn, ``repeats`` times. ``note`` is called with each result."""
    total = len(subjects) * repeats
    began = time.monotonic()
    for number, (_, subject) in enumerate(itertools.product(range(repeats), subjects), 1):
        if subject.ended():
            continue
        subject.results.append(subject.run())
        _reject_different(subject, subjects)
        seconds_left = (time.monotonic() - began) / number * (total - number)
        note(f"[{number}/{total}] {subject.engine} {subject.label}: {_result_text(subject.results[-1])}"
             f"{f'; {duration(seconds_left)} left' if seconds_left else ''}")  # fmt: skip


def _encodes(built: BuiltSpec) -> bool:
    """Return whether the spec's `write:` section adds image encoders or other encoders to the graph."""
    return built.spec.write is not None and any(n.op.name.startswith("encoders.") for n in built.graph.nodes)


_SAME_MACHINE = ("cpu", "usable_cores", "gpus")


def _other_machine(now: Mapping[str, Any], before: Mapping[str, Any]) -> list[str]:
    """Return the differences between this machine and that of the baseline; empty if there are none."""
    return [f"{k} {now.get(k)}, was {before.get(k)}" for k in _SAME_MACHINE if now.get(k) != before.get(k)]


def _medians(report: Mapping[str, Any]) -> dict[str, float]:
    """Return the median speed of dali-run for each setting that has one, by the setting's label."""
    rows = report["results"]
    return {r["setting"]: m for r in rows if r["engine"] == OURS and (m := median_of(r)) is not None}


def _reject_different(peer: _Subject, subjects: Sequence[_Subject]) -> None:
    """Remove the results of ``peer``, another library, if its outputs differ from dali-run's in number, type,
    dimensions or layout."""
    ours = next(s for s in subjects if s.label == peer.label and s.engine == OURS)
    if peer is ours or "outputs" not in peer.results[-1] or "outputs" not in ours.results[-1]:
        return
    expected, outputs = ours.results[-1]["outputs"], peer.results[-1]["outputs"]
    if len(expected) != len(outputs) or not all(map(_alike, expected, outputs)):
        peer.results[-1] = {
            "refused": f"its outputs differ: {outputs} instead of {expected} (type, dimensions, layout)"
        }


def _alike(a: Sequence[Any], b: Sequence[Any]) -> bool:
    """Return whether two outputs, each (type, dimensions, layout), are equal. Unknown layouts equal any other."""
    return a[:2] == b[:2] and (a[2] == b[2] or not a[2] or not b[2])


def run_in_process(this: Measurement, what: str) -> dict[str, Any]:
    """Measure with dali-run in a new process, and return its result. Native loops are compiled before, with a message
    for the user. ``what``: ``measure`` or ``limits``."""
    with suppress(DaliRunError):  # the process reports the error
        plan = this.compiled()[1]
        compile_ahead(clients_of(plan), check=lambda: opened_once(plan), background=False)
        resources = resources_of(this.on, plan.target)
        if resources and what == "measure":
            return measure_together(this, resources, this.seconds + _MAX_START_SECONDS)
    return _run([sys.executable, "-m", "dali_run.pipelines.bench.measure", this.as_json(what)], this.seconds)


def _peer(name: str, this: Measurement, python: str) -> Callable[[], dict[str, Any]]:
    """Return a function that measures another library (a peer) in a process. If the graph cannot be translated for it,
    the function returns the reason."""
    try:
        files = peer_files(name, this)
    except SpecError as e:
        refusal = {"refused": str(e)}
        return lambda: refusal

    def run() -> dict[str, Any]:
        with tempfile.TemporaryDirectory(prefix="dali-run-") as folder:
            for file, text in files.items():
                (Path(folder) / file).write_text(text)
            first, *more_files = (str(Path(folder) / file) for file in files)
            return _run([python, first, *([name, *more_files] if more_files else [])], this.seconds)

    return run


def peer_files(name: str, this: Measurement) -> dict[str, str]:
    """Return the files, by name, that the process of peer ``name`` needs: its script, and the recipe that it reads.
    Raises SpecError if the peer has no equivalent of the graph."""
    built, plan = this.compiled()
    settings, target = built.spec.pipeline, plan.target
    graph = compile_graph(built.graph, target, settings.seed, fusing=False).graph
    threads = threads_of(settings.num_threads)
    if name == "dali":  # a file, because DALI inspects the source of its callers
        script = dali_script(graph, target, settings, threads, seconds=this.seconds, warm_up=this.warm_up,
                             to_host=this.to_host, fewest=MIN_BATCHES)  # fmt: skip
        return {"peer.py": script}
    if target.device == "null":
        raise SpecError("peers do not have the device null")
    gpu = target.index if target.device == "gpu" else None
    if name in _MEDIA:
        if gpu is not None:
            raise SpecError(f"{name} runs only on the CPU: use --device cpu")
        recipe = media_recipe_of(graph)
    else:
        image_recipe = recipe_of(graph)
        if name == "nvjpeg" and not image_recipe.only_decodes:
            raise SpecError("nvJPEG only decodes: measure a graph that ends with the decoder")
        recipe = image_recipe.as_dict()
    script = (Path(__file__).with_name("peers") / _SCRIPTS.get(name, "media_loop.py")).read_text()
    data = {**recipe, "batch_size": settings.batch_size, "num_threads": threads, "gpu": gpu, "seconds": this.seconds,
            "warm_up": this.warm_up, "to_host": this.to_host, "fewest_batches": MIN_BATCHES}  # fmt: skip
    return {"peer.py": script, "recipe.json": json.dumps(data)}


def _run(command: Sequence[str], seconds: float) -> dict[str, Any]:
    """Run ``command`` for at most ``seconds``. Return the JSON in the last line that it prints, or an ``error``."""
    try:
        done = subprocess.run(
            command, capture_output=True, text=True, check=False, timeout=seconds + _MAX_START_SECONDS
        )
    except subprocess.TimeoutExpired:
        return {"error": f"no result after {seconds + _MAX_START_SECONDS:g} s"}
    except OSError as e:
        return {"error": f"{command[0]}: {e.strerror}"}
    try:
        result: dict[str, Any] = parse_json(done.stdout.strip().splitlines()[-1])
    except (IndexError, ValueError):
        lines = done.stderr.strip().splitlines() or [f"ended with {done.returncode}"]
        return {"error": lines[-1]}
    return result


def _result_text(result: Mapping[str, Any]) -> str:
    if "refused" in result:
        return f"refused: {result['refused']}"
    if "error" in result:
        return f"failed: {result['error']}"
    return f"{result['samples_per_second']:,.0f}/s"


def _summary(subject: _Subject) -> dict[str, Any]:
    row: dict[str, Any] = {"setting": subject.label, "engine": subject.engine}
    for problem in ("refused", "error"):
        problems = [r[problem] for r in subject.results if problem in r]
        if problems:
            return {**row, problem: problems[0]}
    by_speed = sorted(subject.results, key=lambda r: r["samples_per_second"])
    middle = by_speed[(len(by_speed) - 1) // 2]
    speeds = [round(r["samples_per_second"], 1) for r in subject.results]
    report = middle.get("report", {})
    return {
        **row,
        "version": middle.get("version"),
        "samples_per_second": {
            "median": round(statistics.median(speeds), 1), "min": min(speeds), "max": max(speeds), "all": speeds,
        },
        "first_batch_seconds": round(statistics.median(r["first_batch_seconds"] for r in subject.results), 4),
        "memory": report.get("memory") or middle.get("memory"),
        "report": report or None,
    }  # fmt: skip


def median_of(row: Mapping[str, Any]) -> float | None:
    """Return the median speed of a setting in samples per second; None if it has no result."""
    speeds = row.get("samples_per_second")
    return None if speeds is None else float(speeds["median"])


def failures(report: Mapping[str, Any]) -> list[str]:
    """Return a text for each setting that dali-run could not measure."""
    return [f"{r['setting']}: {r['error']}" for r in report["results"] if r["engine"] == OURS and "error" in r]


def load_baseline(path: Path) -> dict[str, Any]:
    """Read the report of an earlier benchmark. Raises SpecError if the file holds none."""
    try:
        baseline = parse_json(path.read_text())
    except ValueError:
        baseline = None
    if not isinstance(baseline, dict) or baseline.get("kind") != "dali-run bench":
        raise SpecError(f"{path}: this is not a result of `dali-run bench --report`")
    if baseline.get("schema_version") != SCHEMA_VERSION:
        raise SpecError(f"{path}: was written with schema {baseline.get('schema_version')}, this is {SCHEMA_VERSION}; "
                        "measure the baseline again")  # fmt: skip
    return baseline


def compare(report: Mapping[str, Any], share: float) -> list[str]:
    """Return a sentence for each setting for which the median speed of dali-run is less than ``share`` of the
    baseline's."""
    before, now = report["baseline"]["samples_per_second"], _medians(report)
    return [
        f"{label}: {now[label]:,.1f}/s is {now[label] / was:.1%} of the baseline's {was:,.1f}/s"
        for label, was in before.items()
        if label in now and now[label] < share * was
    ]


def comparison(report: Mapping[str, Any], share: float) -> list[str]:
    """Return lines for the user that say what was compared with the report's baseline, and with which result."""
    baseline, now = report["baseline"], _medians(report)
    ratios = [now[k] / v for k, v in baseline["samples_per_second"].items() if k in now and v]
    alone = [k for k in now if k not in baseline["samples_per_second"]]
    lines = (
        [f"the baseline is of another machine: {'; '.join(baseline['other_machine'])}"]
        if baseline["other_machine"]
        else []
    )
    if alone:
        lines.append(f"not in the baseline: {', '.join(alone)}")
    if ratios:
        slow = len(compare(report, share))
        lines.append(f"{count(len(ratios), 'setting')} compared with the baseline: {min(ratios):.1%} to "
                     f"{max(ratios):.1%} of it, {slow} below {share:.0%}")  # fmt: skip
    return lines
