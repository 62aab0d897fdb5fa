"""``dali-run warm``: compile in advance what jobs need."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from ..output import JOB_FAILED, Device, Json, Set, done, errors_as_json, overrides, print_json, remark, tell

NAME = "warm"


def command(
    spec: Annotated[
        Path | None, typer.Argument(metavar="SPEC", help="YAML spec of a job (default: compile everything).")
    ] = None,
    changes: Set = None,
    device: Device = None,
    processes: Annotated[
        int | None, typer.Option(min=1, metavar="N", help="Number of compiling processes (default: one per core).")
    ] = None,
    json: Json = False,
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="Print only errors.")] = False,
) -> None:
    """Compile in advance what jobs need.

    Use it when building container images, and before many jobs start at once. Code from the wheel, or compiled earlier,
    is not compiled again. CPU kernels are stored in NUMBA_CACHE_DIR, or else in ~/.cache/dali-run; `dali-run doctor`
    shows the folder.

    \b
    Examples:
      dali-run warm
      dali-run warm spec.yaml --device cpu --json
    """
    from ...pipelines.job.warm import warm

    with errors_as_json(json):
        result = warm(spec, overrides(changes, None), device=device, processes=processes,
                      progress=(lambda _: None) if quiet or json else remark)  # fmt: skip
    loops, kernels = result["loops"], result["kernels"]
    failed = [*loops["failed"], *kernels.get("failed", [])]
    with done(JOB_FAILED if failed else 0):
        if json:
            print_json(result)
            return
        for line in failed:
            remark(line)
        if not quiet:
            tell(f"{loops['needed']} CPU kernels needed: {loops['ready']} were ready, {loops['compiled']} compiled"
                 + (f" into {result['folder']}" if loops["compiled"] else "")
                 + f", {len(loops['failed'])} failed; {result['seconds']:.1f} s")  # fmt: skip
            tell(f"{kernels['listed']} CUDA sources and instances: "
                 + (kernels["why"] if "why" in kernels else f"{kernels['loaded']} kernels ready"))  # fmt: skip
            if "rehearsed" in result:
                tell(f"the job was {result['rehearsed']}")
