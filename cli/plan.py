"""``dali-run plan``: what a spec compiles to."""

from __future__ import annotations

from .output import Device, Json, Plugins, Set, Spec, console, overrides, print_json

NAME = "plan"


def command(
    spec: Spec, changes: Set = None, device: Device = None, plugins: Plugins = False, json: Json = False
) -> None:
    """Show what a spec compiles to; no data is touched, and no code of the spec's is run without --plugins.

    Stages, where each operator runs, what is fused, shapes and types, what will be written.

    \b
    Examples:
      dali-run plan configs/imagenet_train.yaml
      dali-run plan configs/imagenet_train.yaml --device null   # as placed for a GPU, on a machine without one
      dali-run plan spec.yaml --json
    """
    from ..pipelines.tools.preview import describe_job

    plan = describe_job(spec, overrides(changes), device, plugins)
    if json:
        print_json(plan)
        return
    from ..pipelines.show.terminal import plan_view

    console().print(plan_view(plan))
