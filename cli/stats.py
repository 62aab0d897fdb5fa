"""``dali-run stats``: what a data set is like."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from .interrupts import heeded
from .output import REJECTS, Device, FollowLinks, Json, Set, console, done, errors_as_json, overrides, print_json

NAME = "stats"
_SPECS = (".yaml", ".yml", ".json", ".dali")


def command(
    target: Annotated[str, typer.Argument(metavar="TARGET", help="A folder, shards, a database, a URL; or a spec.")],
    limit: Annotated[int | None, typer.Option(min=1, metavar="N", help="Only N records, chosen at random.")] = None,
    columns: Annotated[str | None, typer.Option(metavar="A,B", help="Of Parquet files: these columns only.")] = None,
    changes: Set = None,
    device: Device = None,
    follow_links: FollowLinks = False,
    json: Json = False,
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="No progress.")] = False,
) -> None:
    """Count and measure a data set: sizes, formats, classes, mean and deviation, damaged files.

    All pictures and sounds are decoded. Of a spec: the same of its outputs, before they are encoded; --limit then takes
    the first N samples. Nothing is written.

    In means and deviations every picture counts alike, whatever its size, as if all had been resized to one.

    Exit status: 0; 3: something does not decode; 1: failed; 2: wrong usage.

    \b
    Examples:
      dali-run stats data/train
      dali-run stats out/imagenet --limit 10000
      dali-run stats train.yaml --set data=/mnt/train      # is what the network gets normalised?
      dali-run stats data/train --json | jq '.images.mean, .images.std, .rejects[].source'
    """
    from ..pipelines.job.data_stats import data_stats, spec_stats
    from ..pipelines.spec.shipped import known_spec
    from .progress import shown

    is_spec = target.endswith(_SPECS) or known_spec(target) != Path(target)
    names = tuple(filter(None, (columns or "").split(",")))
    with errors_as_json(json), shown(quiet=quiet or json) as progress:
        if is_spec:
            found = spec_stats(Path(target), overrides(changes), device=device, limit=limit, progress=heeded(progress))
        else:
            found = data_stats(target, device=device, limit=limit, columns=names, follow_links=follow_links,
                               progress=heeded(progress))  # fmt: skip
    with done(REJECTS if found["corrupt"] else 0):
        if json:
            print_json(found)
        else:
            from ..pipelines.show.data_stats import stats_view

            console().print(stats_view(found))
