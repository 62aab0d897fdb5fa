"""``dali-run tune``: find the fastest pipeline settings for a spec on this machine."""

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
        Path, typer.Option("--out", "-o", metavar="PATH", help="File for the settings.", callback=writable)
    ] = Path("tuned.yaml"),
    seconds: Annotated[float, typer.Option(min=0.01, help="Seconds per measurement.")] = 2,
    repeats: Annotated[int, typer.Option(min=1, metavar="N", help="Measurements per setting.")] = 1,
    warm_up: Annotated[int, typer.Option(min=0, metavar="N", help="Batches before the measurement begins.")] = 8,
    json: Json = False,
) -> None:
    """Find the fastest settings for a spec on this machine.

    Batch size, threads and queue depth are varied one at a time, with short measurements. The result is a file for the
    option --settings of run and bench.

    \b
    Examples:
      dali-run tune spec.yaml
      dali-run tune spec.yaml --device gpu -o h200.yaml
    """
    from ..pipelines.bench.measure import Measurement
    from ..pipelines.bench.tune import settings_text, text_of, tune

    overridden = overrides(changes)
    if device is not None:
        overridden["pipeline.device"] = device
    result = tune(Measurement(str(spec), overridden, seconds, warm_up), repeats, say)
    out.write_text(settings_text(result))
    if json:
        print_json({**result, "path": str(out)})
        return
    before = result["before"]
    gain = result["samples_per_second"] / before["samples_per_second"]
    tell(
        f"{text_of(result['settings'])}: {result['samples_per_second']:,.0f}/s, {gain:.2f}x the rate with the spec's "
        "own settings"
    )
    tell(f"written to {out}; to use it: dali-run run {spec} --settings {out}")
