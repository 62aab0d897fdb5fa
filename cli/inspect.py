"""``dali-run inspect``: what flows through a graph, and what a data set holds."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated, Any

import typer

from .output import FollowLinks, Json, Set, console, overrides, print_json, written_to

NAME = "inspect"
_SPECS = (".yaml", ".yml", ".json")


def command(
    target: Annotated[str, typer.Argument(metavar="TARGET", help="A spec, a shard, a folder, an LMDB, a URL.")],
    samples: Annotated[int, typer.Option("--samples", "-n", min=1, help="How many samples.")] = 4,
    out: Annotated[
        Path | None, typer.Option(metavar="DIR", help="Where pictures go; for a spec inspect/<its name> by default.")
    ] = None,
    changes: Set = None,
    against: Annotated[
        list[str] | None,
        typer.Option(metavar="KEY=VALUE", help="Compare with the same spec so overridden, or with another SPEC."),
    ] = None,
    follow_links: FollowLinks = False,
    html: Annotated[Path | None, written_to("Write it as a page, with pictures.")] = None,
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="Print nothing but errors.")] = False,
    json: Json = False,
) -> None:
    """Show a spec's intermediate results, or a dataset's contents.

    A spec: its first samples are run on the CPU; what every operator gives becomes a picture (or .npy), with a table of
    shapes, types and ranges and a contact sheet. Nothing is written to the spec's output.

    With --against a second run of the same samples, and how far the results of each operator are from the first one's:
    what another library's pixels, filter or decoder would change.

    A shard or a data set (files, TFRecord, tar, LMDB, RecordIO, Parquet, .npy): its samples are listed,
    pictures are decoded.

    \b
    Examples:
      dali-run inspect configs/imagenet_train.yaml -n 8 --out look
      dali-run inspect imagenet_val --against pipeline.parity=torchvision
      dali-run inspect out/quickstart
      dali-run inspect data/lmdb -n 2 --json
    """
    from ..pipelines.spec.shipped import known_spec

    made_by = ["dali-run", *sys.argv[1:]]
    is_spec = target.endswith(_SPECS) or known_spec(target) != Path(target)
    if is_spec:
        from ..pipelines.tools.intermediates import inspect_spec

        first = overrides(changes)
        specs = [a for a in against or [] if "=" not in a]
        if len(specs) > 1:
            raise typer.BadParameter(f"takes one other spec, got {', '.join(specs)}", param_hint="--against")
        other = (Path(specs[0] if specs else target), {**first, **overrides([a for a in against or [] if "=" in a])})
        folder = out or Path("inspect") / Path(target).stem
        found = inspect_spec(Path(target), first, samples, folder, other if against else None)
        if html is not None:
            from ..pipelines.tools.inspect_page import spec_page

            html.write_text(spec_page(found, made_by), encoding="utf-8")
    else:
        if against:
            raise typer.BadParameter(f"is for specs; {target} is taken for a data set", param_hint="--against")
        from ..pipelines.tools.datasets import inspect_data

        seen: list[Any] | None = None if html is None else []
        found = inspect_data(target, samples, out, follow_links, seen)
        if html is not None:
            from ..pipelines.tools.inspect_page import data_page

            html.write_text(data_page(found, seen or [], made_by), encoding="utf-8")
    if json:
        print_json(found)
    if json or quiet:
        return
    from ..pipelines.show.terminal import data_view, intermediates_view

    console().print((intermediates_view if is_spec else data_view)(found))
