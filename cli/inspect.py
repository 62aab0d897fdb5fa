"""``dali-run inspect``: what flows through a graph, and what a data set holds."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from .output import FollowLinks, Json, Set, console, overrides, print_json

NAME = "inspect"
_SPECS = (".yaml", ".yml", ".json")


def command(
    target: Annotated[str, typer.Argument(metavar="TARGET", help="A spec, a shard, a folder, an LMDB, a URL.")],
    samples: Annotated[int, typer.Option("--samples", "-n", min=1, help="How many samples.")] = 4,
    out: Annotated[
        Path | None, typer.Option(metavar="DIR", help="Where pictures go; for a spec inspect/<its name> by default.")
    ] = None,
    changes: Set = None,
    follow_links: FollowLinks = False,
    json: Json = False,
) -> None:
    """Show a spec's intermediate results, or a dataset's contents.

    A spec: its first samples are run on the CPU; what every operator gives becomes a picture (or .npy), with a table of
    shapes, types and ranges and a contact sheet. Nothing is written to the spec's output.

    A shard or a data set (files, TFRecord, tar, LMDB, RecordIO, Parquet, .npy): its samples are listed,
    pictures are decoded.

    \b
    Examples:
      dali-run inspect configs/imagenet_train.yaml -n 8 --out look
      dali-run inspect out/quickstart
      dali-run inspect data/lmdb -n 2 --json
    """
    from ..pipelines.spec.shipped import known_spec

    is_spec = target.endswith(_SPECS) or known_spec(target) != Path(target)
    if is_spec:
        from ..pipelines.tools.intermediates import inspect_spec

        found = inspect_spec(Path(target), overrides(changes), samples, out or Path("inspect") / Path(target).stem)
    else:
        from ..pipelines.tools.datasets import inspect_data

        found = inspect_data(target, samples, out, follow_links)
    if json:
        print_json(found)
        return
    from ..pipelines.show.terminal import data_view, intermediates_view

    console().print((intermediates_view if is_spec else data_view)(found))
