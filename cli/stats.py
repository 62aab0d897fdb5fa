"""``dali-run stats``: measure the properties of a data set."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from .interrupts import heeded
from .output import REJECTS, Device, FollowLinks, Json, Set, console, done, errors_as_json, overrides, print_json

NAME = "stats"
_SPECS = (".yaml", ".yml", ".json", ".dali")


def command(
    target: Annotated[str, typer.Argument(metavar="TARGET", help="A folder, shards, a database or a URL; or a spec.")],
    limit: Annotated[
        int | None, typer.Option(min=1, metavar="N", help="Measure only N records, chosen at random.")
    ] = None,
    columns: Annotated[str | None, typer.Option(metavar="A,B", help="Measure only these columns (Parquet).")] = None,
    changes: Set = None,
    device: Device = None,
    follow_links: FollowLinks = False,
    json: Json = False,
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="Print no progress.")] = False,
) -> None:
    """Measure sizes, formats, classes and pixels of a data set.

    All images and audio files are decoded, and damaged ones are listed. For a spec, its outputs are measured before
    encoding; --limit then selects the first N samples. Nothing is written.

    In means and standard deviations, all images have equal weight, whatever their size.

    Exit status: 0; 1 failed; 2 wrong usage; 3 some samples do not decode.

    \b
    Examples:
      dali-run stats out/imagenet --limit 10000
      dali-run stats train.yaml --set data=/mnt/train  # is the input normalized?
    """
    from ..pipelines.job.data_stats import data_stats, spec_stats
    from ..pipelines.spec.shipped import known_spec
    from .progress import shown

    is_spec = target.endswith(_SPECS) or known_spec(target) != Path(target)
    names = tuple(filter(None, (columns or "").split(",")))
    with errors_as_json(json), shown(quiet=quiet or json) as progress:
        if is_spec:
            stats = spec_stats(Path(target), overrides(changes), device=device, limit=limit, progress=heeded(progress))
        else:
            stats = data_stats(target, device=device, limit=limit, columns=names, follow_links=follow_links,
                               progress=heeded(progress))  # fmt: skip
    with done(REJECTS if stats["corrupt"] else 0):
        if json:
            print_json(stats)
        else:
            from ..pipelines.show.data_stats import stats_view

            console().print(stats_view(stats))
