"""``dali-run serve-model``: write a model that serves a spec with NVIDIA Triton."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from .output import Json, Set, overrides, print_json, tell

NAME = "serve-model"


def command(
    spec: Annotated[
        Path,
        typer.Argument(metavar="SPEC", help="YAML spec, .dali file, FILE.py:NAME, or FILE.py with @autoserialize."),
    ],
    repository: Annotated[Path, typer.Argument(metavar="DIR", help="Model repository of Triton.")],
    name: Annotated[str | None, typer.Option(help="Name of the model (default: name of the file).")] = None,
    output: Annotated[
        list[str] | None, typer.Option(metavar="NAME", help="Serve only this output (repeatable).")
    ] = None,
    strings: Annotated[
        list[str] | None,
        typer.Option(metavar="NAME", help="Accept this input's encoded files as strings (repeatable)."),
    ] = None,
    instances: Annotated[int, typer.Option(min=1, help="Instances per device.")] = 1,
    changes: Set = None,
    force: Annotated[bool, typer.Option("--force", help="Overwrite existing files.")] = False,
    json: Json = False,
) -> None:
    """Write a model for NVIDIA Triton that serves a spec.

    The model uses Triton's Python backend, whose Python needs this package. Outputs of readers and external_sources
    become inputs with their names. Requests are combined into batches of up to pipeline.batch_size samples; a request
    that cannot be decoded fails alone.

    \b
    Examples:
      dali-run serve-model quickstart models --name preprocess
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
