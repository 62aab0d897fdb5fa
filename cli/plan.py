"""``dali-run plan``: show what a spec compiles to."""

from __future__ import annotations

from typing import Annotated

import typer

from .output import Device, Json, Plugins, Set, Spec, console, overrides, print_json

NAME = "plan"


def command(
    spec: Spec,
    changes: Set = None,
    device: Device = None,
    measure: Annotated[
        bool,
        typer.Option("--measure", help="Run the graph for a few seconds and estimate the job's time and output size."),
    ] = False,
    seconds: Annotated[float, typer.Option(min=0.01, help="Seconds to measure.")] = 2,
    nodes: Annotated[
        int | None, typer.Option(min=1, metavar="N", help="Measure, and estimate the job's time on N machines.")
    ] = None,
    gpus: Annotated[int | None, typer.Option(min=1, metavar="N", help="With --nodes: GPUs per machine.")] = None,
    plugins: Plugins = False,
    json: Json = False,
) -> None:
    """Show what a spec compiles to, without running a job.

    The plan lists stages, devices, fusion, shapes and types, the number of samples, and the output. Only the lists of
    the data (folders, indexes) are read, unless --measure runs the graph; nothing is written. Python code of the spec
    is run only with --plugins.

    \b
    Examples:
      dali-run plan spec.yaml --measure
      dali-run plan configs/imagenet_train.yaml --device null  # GPU plan, no GPU
    """
    from ..pipelines.job.forecast import forecast
    from ..pipelines.tools.preview import describe_job

    plan = describe_job(spec, overrides(changes), device, plugins)
    measuring = measure or nodes is not None or gpus is not None
    plan["forecast"] = forecast(spec, overrides(changes), device, plugins, seconds if measuring else 0.0)
    if nodes is not None or gpus is not None:
        from ..pipelines.fleet.cost_model import on_machines

        plan["on_machines"] = on_machines(plan["forecast"], nodes or 1, gpus or 0, plan["device"])
    if json:
        print_json(plan)
        return
    from ..pipelines.show.terminal import plan_view

    console().print(plan_view(plan))
