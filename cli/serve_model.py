"""``dali-run serve-model``: a spec behind NVIDIA Triton."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from .output import Json, Set, overrides, print_json, tell

NAME = "serve-model"


def command(
    spec: Annotated[
        Path, typer.Argument(metavar="SPEC", help="YAML, a .dali file, FILE.py:NAME, or FILE.py with @autoserialize.")
    ],
    repository: Annotated[Path, typer.Argument(metavar="DIR", help="Triton's model repository.")],
    name: Annotated[str | None, typer.Option(help="The model's name; that of the file by default.")] = None,
    output: Annotated[list[str] | None, typer.Option(metavar="NAME", help="Serve this output (repeatable).")] = None,
    strings: Annotated[
        list[str] | None, typer.Option(metavar="NAME", help="An input of encoded files as strings (repeatable).")
    ] = None,
    instances: Annotated[int, typer.Option(min=1, help="Instances on each device.")] = 1,
    changes: Set = None,
    force: Annotated[bool, typer.Option("--force", help="Write over files that are there.")] = False,
    json: Json = False,
) -> None:
    """Write a model for Triton's Python back end that answers requests with the pipeline of a spec.

    Batches that readers make become inputs of their names, external_sources those of theirs. Requests are put together
    into batches of up to pipeline.batch_size samples; one that cannot be decoded fails alone. Triton's Python needs
    this package.

    \b
    Examples:
      dali-run serve-model configs/quickstart.yaml models --name preprocess --set pipeline.device=cpu
      dali-run serve-model model.dali models --strings encoded
    """
    from ..pipelines.serve.triton import make_model, write_model

    called = name if name is not None else Path(str(spec).partition(".py")[0]).stem
    model = make_model(str(spec), called, overrides(changes), outputs=output or (), strings=strings or (),
                       instances=instances)  # fmt: skip
    files = write_model(model, repository, force)
    if json:
        print_json({"name": model.name, "files": [str(f) for f in files],
                    "inputs": [p.name for p in model.inputs], "outputs": [p.name for p in model.outputs]})  # fmt: skip
        return
    for file in files:
        tell(str(file))
