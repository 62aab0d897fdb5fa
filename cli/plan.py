"""``dali-run plan``: what a spec compiles to."""

from __future__ import annotations

from .output import Device, Json, Set, Spec, console, overrides, print_json

NAME = "plan"


def command(spec: Spec, changes: Set = None, device: Device = None, json: Json = False) -> None:
    """Show what a spec compiles to; no data is touched.

    Stages, where each operator runs, what is fused, shapes and types, what will be written.

    \b
    Examples:
      dali-run plan configs/imagenet_train.yaml
      dali-run plan configs/imagenet_train.yaml --device null   # as placed for a GPU, on a machine without one
      dali-run plan spec.yaml --json
    """
    from ..pipelines.tools.preview import describe_job

    plan = describe_job(spec, overrides(changes), device)
    if json:
        print_json(plan)
        return
    from ..pipelines.show.terminal import plan_view

    console().print(plan_view(plan))
