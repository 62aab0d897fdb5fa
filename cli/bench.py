"""``dali-run bench``: measure the speed of specs, for one or several settings, next to a baseline and peers."""

from __future__ import annotations

import json as json_
import sys
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Annotated

import typer

from .output import JOB_FAILED, Device, Json, Set, Settings, console, overrides, print_json, say, written_to

NAME = "bench"


def command(
    specs: Annotated[list[Path] | None, typer.Argument(metavar="SPEC", help="YAML specs of jobs.")] = None,
    suite: Annotated[
        str | None,
        typer.Option(
            metavar="NAME",
            help="Measure the specs of a suite: imagenet (decode, val, train, resize), web (val, train), audio "
            "(logmel), video (clips).",
        ),
    ] = None,
    data: Annotated[
        Path | None,
        typer.Option(
            metavar="FOLDER", help="Files for the suite: FOLDER/<class>/<file>; audio and video create their own."
        ),
    ] = None,
    strata: Annotated[
        bool,
        typer.Option(
            "--strata",
            help="Also measure each image format and kind of JPEG separately: png, 4:2:0, progressive, large.",
        ),
    ] = False,
    changes: Set = None,
    settings: Settings = None,
    device: Device = None,
    on: Annotated[
        str,
        typer.Option(metavar="processes:N", help="Run N processes at the same time (default: one, or one per GPU)."),
    ] = "",
    sweep: Annotated[
        list[str] | None,
        typer.Option(
            metavar="KEY=A,B,...", help="Measure each of these values (batch_size=64,256); several keys are combined."
        ),
    ] = None,
    seconds: Annotated[float, typer.Option(min=0.01, help="Seconds per measurement.")] = 3,
    repeats: Annotated[int, typer.Option(min=1, metavar="N", help="Measurements per setting, interleaved.")] = 3,
    warm_up: Annotated[int, typer.Option(min=0, metavar="N", help="Batches before the measurement begins.")] = 8,
    to_host: Annotated[bool, typer.Option("--to-host", help="Copy the GPU's outputs to the host.")] = False,
    no_encode: Annotated[
        bool, typer.Option("--no-encode", help="Leave out the encoders of the write section.")
    ] = False,
    peer: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAME",
            help="Also measure this library: dali, torchvision, dataloader, nvjpeg, torchaudio, librosa, "
            "torchcodec, pyav.",
        ),
    ] = None,
    peer_python: Annotated[
        list[str] | None, typer.Option(metavar="NAME=PYTHON", help="Python interpreter in which the peer is installed.")
    ] = None,
    limits: Annotated[
        bool | None,
        typer.Option(
            "--limits/--no-limits", help="Also measure the machine's limits (default with --json, --report, --html)."
        ),
    ] = None,
    baseline: Annotated[
        Path | None,
        typer.Option(metavar="PATH", exists=True, dir_okay=False, help="Compare with an earlier --report."),
    ] = None,
    fail_below: Annotated[
        float | None,
        typer.Option(
            min=0, metavar="SHARE", help="Exit with 1 if a rate is below this share of the baseline.  [default: 0.95]"
        ),
    ] = None,
    json: Json = False,
    report: Annotated[Path | None, written_to("Write the results to this file as JSON.")] = None,
    html: Annotated[Path | None, written_to("Write the results to this file as an HTML page.")] = None,
) -> None:
    """Measure how fast specs run on this machine.

    Each graph runs over its data repeatedly, in new processes. The outputs stay on the device that computes them and
    are discarded; a spec's `write:` section is not executed, except for its encoders.

    Exit status: 0 measured; 1 a setting failed, or is slower than the baseline allows; 2 wrong spec or usage.

    \b
    Examples:
      dali-run bench spec.yaml --sweep batch_size=64,256 --html bench.html
      dali-run bench spec.yaml --peer dali --peer-python dali=~/dali/bin/python
    """
    from ..pipelines.bench.measure import Measurement
    from ..pipelines.bench.run import Bench, compare, comparison, failures, load_baseline, run_bench
    from ..pipelines.bench.view import bench_html, bench_view

    if fail_below is not None and baseline is None:
        raise typer.BadParameter("needs --baseline: the results to compare with", param_hint="--fail-below")
    specs, more = _told_apart(specs or [], sweep)
    if json:
        _check_no_report(specs)
    overridden = overrides(changes, settings)
    if device is not None:
        overridden["pipeline.device"] = device
    before = None if baseline is None else load_baseline(baseline)
    with TemporaryDirectory(prefix="dali-run-") as folder:
        found_specs = _specs(specs, suite, data, Path(folder))
        files = _files(suite, data, Path(folder))
        if files is not None:
            overridden["data"] = str(files.absolute())
        bench = Bench(
            specs={
                name: Measurement(str(path), overridden, seconds, warm_up, to_host, not no_encode, on=on)
                for name, path in found_specs.items()
            },
            sweep=_swept(more),
            repeats=repeats,
            peers=_peers(peer, peer_python),
            strata=strata,
            limits=limits if limits is not None else (json or report is not None or html is not None),
        )
        results = run_bench(bench, ["dali-run", *sys.argv[1:]], say, before)
    if report is not None:
        report.write_text(json_.dumps(results, indent=2) + "\n")
    if html is not None:
        html.write_text(bench_html(results))
    if json:
        print_json(results)
    else:
        console().print(bench_view(results))
    share = 0.95 if fail_below is None else fail_below
    problems = failures(results) + ([] if before is None else compare(results, share))
    for line in [*([] if before is None else comparison(results, share)), *problems]:
        say(line)
    raise typer.Exit(JOB_FAILED if problems else 0)


def _check_no_report(specs: list[Path]) -> None:
    """Raise BadParameter for a spec that is the name of a report, which --json does not take."""
    for path in specs:
        if path.suffix == ".json" and not path.exists():
            raise typer.BadParameter(f"prints the results; use --report {path} to write them", param_hint="--json")


def _specs(paths: list[Path], suite: str | None, data: Path | None, folder: Path) -> dict[str, Path]:
    """Return the paths of the specs to measure, by name: those on the command line, and those of the ``suite``."""
    from ..pipelines.bench.suites import GENERATED, SUITES, write_suite

    if suite is None and not paths:
        raise typer.BadParameter("name a spec, or use --suite", param_hint="SPEC")
    specs = {path.stem if len({p.stem for p in paths}) == len(paths) else str(path): path for path in paths}
    if suite is None:
        return specs
    if suite not in SUITES:
        raise typer.BadParameter(f"must be one of {', '.join(SUITES)}, got {suite!r}", param_hint="--suite")
    if data is None and suite not in GENERATED:
        raise typer.BadParameter("needs --data: the folder of images to measure with", param_hint="--suite")
    return {**specs, **write_suite(suite, folder)}


def _files(suite: str | None, data: Path | None, folder: Path) -> Path | None:
    """Return the folder with the data for the specs. A suite may first create its files there, from the files in
    ``data`` or without any."""
    if data is not None and not data.is_dir():
        raise typer.BadParameter(f"there is no folder {data}", param_hint="--data")
    if suite is None:
        return data
    from ..pipelines.bench.suites import suite_data

    if data is None:
        say(f"creating the files of the suite {suite}")
    return suite_data(suite, data, folder)


def _told_apart(paths: list[Path], sweep: list[str] | None) -> tuple[list[Path], list[str]]:
    """Separate the arguments into paths of specs and values of ``--sweep``. In `--sweep a=1,2 b=3,4`, typer parses the
    second value as the path of a spec."""
    more = [str(p) for p in paths if sweep and "=" in str(p) and not p.exists()]
    return [p for p in paths if str(p) not in more], [*(sweep or []), *more]


def _swept(sweep: list[str]) -> dict[str, list[str]]:
    result: dict[str, list[str]] = {}
    for entry in sweep:
        key, equals, values = entry.partition("=")
        if not key or not equals or not all(values.split(",")):
            raise typer.BadParameter(f"needs KEY=A,B,..., got {entry!r}", param_hint="--sweep")
        result.setdefault(key, []).extend(values.split(","))
    return {key: list(dict.fromkeys(values)) for key, values in result.items()}


def _peers(names: list[str] | None, pythons: list[str] | None) -> dict[str, str]:
    """Return the path of the Python interpreter for every peer (another library to measure); without --peer-python, the
    current one."""
    from ..pipelines.bench.run import PEERS

    interpreters = {}
    for entry in pythons or []:
        name, equals, path = entry.partition("=")
        if name not in PEERS or not equals or not path:
            raise typer.BadParameter(f"needs NAME=PYTHON with a name of {', '.join(PEERS)}, got {entry!r}",
                                     param_hint="--peer-python")  # fmt: skip
        interpreters[name] = str(Path(path).expanduser())
    for name in names or []:
        if name not in PEERS:
            raise typer.BadParameter(f"must be one of {', '.join(PEERS)}, got {name!r}", param_hint="--peer")
    return {name: interpreters.get(name, sys.executable) for name in [*(names or []), *interpreters]}
