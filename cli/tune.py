"""``dali-run tune``: the fastest pipeline settings of a spec on this machine."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from .output import Device, Json, Set, Spec, overrides, print_json, say, tell, writable

NAME = "tune"


def command(
    spec: Spec,
    changes: Set = None,
    device: Device = None,
    out: Annotated[
        Path, typer.Option("--out", "-o", metavar="PATH", help="Where the settings go.", callback=writable)
    ] = Path("tuned.yaml"),
    seconds: Annotated[float, typer.Option(min=0.01, help="Time of one measurement.")] = 2,
    repeats: Annotated[int, typer.Option(min=1, metavar="N", help="Measurements of each setting.")] = 1,
    warm_up: Annotated[int, typer.Option(min=0, metavar="N", help="Batches before the clock starts.")] = 8,
    json: Json = False,
) -> None:
    """Find the batch size, threads and queue depth with which a spec runs fastest, and write them to a file.

    Short measurements, one value changed at a time. The file is for --settings of run and bench.

    \b
    Examples:
      dali-run tune spec.yaml
      dali-run tune spec.yaml --device gpu -o h200.yaml && dali-run run spec.yaml --settings h200.yaml
    """
    from ..pipelines.bench.measure import Measurement
    from ..pipelines.bench.tune import settings_text, shown, tune

    given = overrides(changes)
    if device is not None:
        given["pipeline.device"] = device
    found = tune(Measurement(str(spec), given, seconds, warm_up), repeats, say)
    out.write_text(settings_text(found))
    if json:
        print_json({**found, "path": str(out)})
        return
    before = found["before"]
    gain = found["samples_per_second"] / before["samples_per_second"]
    tell(f"{shown(found['settings'])}: {found['samples_per_second']:,.0f}/s, {gain:.2f}x of what the spec says")
    tell(f"written to {out}; use it: dali-run run {spec} --settings {out}")
