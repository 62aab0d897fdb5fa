"""``dali-run bench``: how fast a spec runs, setting by setting, beside a baseline and DALI."""

from __future__ import annotations

import json as json_
import sys
from pathlib import Path
from typing import Annotated

import typer

from .output import JOB_FAILED, Device, Set, Settings, Spec, console, overrides, say, writable, written_to

NAME = "bench"


def command(
    spec: Spec,
    changes: Set = None,
    settings: Settings = None,
    device: Device = None,
    sweep: Annotated[
        list[str] | None,
        typer.Option(metavar="KEY=A,B,...", help="Measure all of these values (batch_size=64,256); combines."),
    ] = None,
    seconds: Annotated[float, typer.Option(min=0.01, help="Time of one measurement.")] = 3,
    repeats: Annotated[int, typer.Option(min=1, metavar="N", help="Of each measurement, all in turns.")] = 3,
    warm_up: Annotated[int, typer.Option(min=0, metavar="N", help="Batches before the clock starts.")] = 8,
    to_host: Annotated[bool, typer.Option("--to-host", help="Bring the GPU's outputs to the host.")] = False,
    no_encode: Annotated[bool, typer.Option("--no-encode", help="Without the encoders of the write section.")] = False,
    peer: Annotated[
        list[str] | None, typer.Option(metavar="NAME", help="Measure it, too: dali, torchvision, dataloader or nvjpeg.")
    ] = None,
    peer_python: Annotated[
        list[str] | None, typer.Option(metavar="NAME=PYTHON", help="The interpreter that the peer is installed for.")
    ] = None,
    limits: Annotated[
        bool | None, typer.Option("--limits/--no-limits", help="Measure the machine; on with --json and --html.")
    ] = None,
    baseline: Annotated[
        Path | None,
        typer.Option(metavar="PATH", exists=True, dir_okay=False, help="An earlier --json to compare with."),
    ] = None,
    fail_below: Annotated[
        float, typer.Option(min=0, metavar="SHARE", help="End with 1 below this share of the baseline.")
    ] = 0.95,
    json: Annotated[
        Path | None, typer.Option("--json", metavar="PATH", help="Write the results here.", callback=writable)
    ] = None,
    html: Annotated[Path | None, written_to("Write the results as a page.")] = None,
) -> None:
    """Measure how fast a spec runs; nothing is written but the results.

    The graph runs over its data again and again, each measurement in a fresh process. Outputs stay where they are made.

    Ends with 0: measured; 1: a setting failed, or is slower than the baseline allows; 2: wrong spec or usage.

    \b
    Examples:
      dali-run bench spec.yaml
      dali-run bench spec.yaml --sweep batch_size=64,256 --sweep num_threads=2,4 --html bench.html
      dali-run bench spec.yaml --json now.json --baseline before.json --fail-below 0.95
      dali-run bench spec.yaml --no-encode --peer dali --peer-python dali=~/dali/bin/python
    """
    from ..pipelines.bench import Bench, compare, failures, load_baseline, run_bench
    from ..pipelines.bench_child import Measurement
    from ..pipelines.bench_view import bench_html, bench_view

    given = overrides(changes, settings)
    if device is not None:
        given["pipeline.device"] = device
    before = None if baseline is None else load_baseline(baseline)
    bench = Bench(
        base=Measurement(str(spec), given, seconds, warm_up, to_host, not no_encode),
        sweep=_swept(sweep),
        repeats=repeats,
        peers=_peers(peer, peer_python),
        limits=limits if limits is not None else (json is not None or html is not None),
    )
    report = run_bench(bench, ["dali-run", *sys.argv[1:]], say)
    if json is not None:
        json.write_text(json_.dumps(report, indent=2) + "\n")
    if html is not None:
        html.write_text(bench_html(report))
    console().print(bench_view(report))
    problems = failures(report)
    if not problems and before is not None:
        problems = compare(report, before, fail_below)
    for line in problems:
        say(line)
    raise typer.Exit(JOB_FAILED if problems else 0)


def _swept(sweep: list[str] | None) -> dict[str, list[str]]:
    result = {}
    for one in sweep or []:
        key, equals, values = one.partition("=")
        if not key or not equals or not all(values.split(",")):
            raise typer.BadParameter(f"needs KEY=A,B,..., got {one!r}", param_hint="--sweep")
        result[key] = values.split(",")
    return result


def _peers(names: list[str] | None, pythons: list[str] | None) -> dict[str, str]:
    """The interpreter of every peer; without --peer-python, the one that runs this."""
    from ..pipelines.bench import PEERS

    given = {}
    for one in pythons or []:
        name, equals, path = one.partition("=")
        if name not in PEERS or not equals or not path:
            raise typer.BadParameter(f"needs NAME=PYTHON with a name of {', '.join(PEERS)}, got {one!r}",
                                     param_hint="--peer-python")  # fmt: skip
        given[name] = str(Path(path).expanduser())
    for name in names or []:
        if name not in PEERS:
            raise typer.BadParameter(f"must be one of {', '.join(PEERS)}, got {name!r}", param_hint="--peer")
    return {name: given.get(name, sys.executable) for name in [*(names or []), *given]}
