"""``dali-run plan``: what a spec compiles to."""

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
        bool, typer.Option("--measure", help="Run it for a few seconds: how long it will take, how much it will write.")
    ] = False,
    seconds: Annotated[float, typer.Option(min=0.01, help="How long to measure.")] = 2,
    nodes: Annotated[
        int | None, typer.Option(min=1, metavar="N", help="Measure, and say what the job takes on N machines.")
    ] = None,
    gpus: Annotated[int | None, typer.Option(min=1, metavar="N", help="With --nodes: GPUs of each.")] = None,
    plugins: Plugins = False,
    json: Json = False,
) -> None:
    """Show what a spec compiles to; no code of the spec's is run without --plugins.

    Stages, where each operator runs, what is fused, shapes and types, how many samples there are, what will be written.
    Of the data only the lists are looked at (folders, indexes), unless --measure runs the graph; nothing is written.

    \b
    Examples:
      dali-run plan configs/imagenet_train.yaml
      dali-run plan configs/imagenet_train.yaml --device null   # as placed for a GPU, on a machine without one
      dali-run plan spec.yaml --measure
      dali-run plan spec.yaml --nodes 8 --gpus 8                # what it takes on 64 GPUs like this machine's
      dali-run plan spec.yaml --json
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
