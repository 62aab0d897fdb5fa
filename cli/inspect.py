"""``dali-run inspect``: show the intermediate results of a spec, or the contents of a data set."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any

import typer

from .output import FollowLinks, Json, Set, console, overrides, print_json, written_to

NAME = "inspect"
_SPECS = (".yaml", ".yml", ".json")


def command(
    target: Annotated[str, typer.Argument(metavar="TARGET", help="A spec, a shard, a folder, an LMDB, or a URL.")],
    samples: Annotated[int, typer.Option("--samples", "-n", min=1, help="Number of samples.")] = 4,
    out: Annotated[
        Path | None, typer.Option(metavar="DIR", help="Folder for images (default for a spec: inspect/<its name>).")
    ] = None,
    changes: Set = None,
    against: Annotated[
        list[str] | None,
        typer.Option(metavar="KEY=VALUE", help="Compare with the spec under this override, or with another SPEC."),
    ] = None,
    follow_links: FollowLinks = False,
    html: Annotated[Path | None, written_to("Write the results to this file as an HTML page with images.")] = None,
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="Print only errors.")] = False,
    json: Json = False,
) -> None:
    """Show intermediate results of a spec, or a data set's content.

    For a spec, its first samples are run on the CPU. The output of every operator is saved as an image or .npy, with a
    contact sheet and a table of shapes, types and ranges. The spec's own output is not written.

    With --against, the same samples are run a second time, and the table shows how far the results of each operator
    differ: the effect of another library's pixels, filter or decoder.

    For a shard or data set (files, TFRecord, tar, LMDB, RecordIO, Parquet, .npy), its first samples are listed, and
    images are decoded.

    \b
    Examples:
      dali-run inspect imagenet_val --against pipeline.parity=torchvision
      dali-run inspect out/quickstart --samples 2 --json
    """
    from ..pipelines.spec.shipped import known_spec

    made_by = ["dali-run", *sys.argv[1:]]
    is_spec = target.endswith(_SPECS) or known_spec(target) != Path(target)
    images: list[Any] | None = None if html is None else []
    if is_spec:
        results = _of_spec(Path(target), overrides(changes), against or [], samples, out)
    elif against:
        raise typer.BadParameter(f"requires a spec, but {target} looks like a data set", param_hint="--against")
    else:
        from ..pipelines.tools.datasets import inspect_data

        results = inspect_data(target, samples, out, follow_links, images)
    if html is not None:
        from ..pipelines.tools.inspect_page import data_page, spec_page

        page = spec_page(results, made_by) if is_spec else data_page(results, images or [], made_by)
        html.write_text(page, encoding="utf-8")
    if json:
        print_json(results)
    if json or quiet:
        return
    from ..pipelines.show.terminal import data_view, intermediates_view

    console().print((intermediates_view if is_spec else data_view)(results))


def _of_spec(
    spec: Path, changes: Mapping[str, Any], against: Sequence[str], samples: int, out: Path | None
) -> dict[str, Any]:
    """Return the intermediate results of a spec, next to the results of ``against`` if that is not empty."""
    from ..pipelines.tools.intermediates import inspect_spec

    specs = [a for a in against if "=" not in a]
    if len(specs) > 1:
        raise typer.BadParameter(f"accepts one other spec, got {', '.join(specs)}", param_hint="--against")
    other = (Path(specs[0]) if specs else spec, {**changes, **overrides([a for a in against if "=" in a])})
    folder = out or Path("inspect") / spec.stem
    return inspect_spec(spec, changes, samples, folder, other if against else None)
