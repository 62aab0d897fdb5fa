"""The page of `dedupe`: the largest clusters of duplicates, with their keys and, if images are at hand, thumbnails."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from ....version import __version__
from ...show.page import Section, facts, listing, page, picture, table, text
from ...wording import count
from ..thumbnails import thumbnails
from .deduplicate import Duplicates
from .score_files import Kind

CLUSTERS = 50
"""Largest number of clusters (groups of duplicate samples) on the HTML page. The largest clusters are shown."""
MEMBERS = 8
"""Largest number of samples that the page shows per cluster: the kept one, then those with the smallest keys."""
_MOST_BYTES = 64 << 20
"""Largest size in bytes of an image file that the page shows."""


@dataclass(frozen=True, slots=True)
class Member:
    """One sample of a cluster of duplicates, as the HTML page shows it."""

    key: str
    kept: bool
    distance: int | None
    """Number of bits in which the perceptual hashes of this sample and of the cluster's kept sample differ; None
    without perceptual hashes."""


def clusters_page(found: Duplicates, images: Path | None, command: Sequence[str]) -> str:
    """Return an HTML page with the largest clusters of duplicates. ``images``: the folder in which the rows' keys are
    paths of image files; None to show no images."""
    numbers = found.summary()
    shown = largest(found)
    clusters = members_of(found, shown)
    small = _thumbnails(clusters, images)
    parts = []
    for root, members in zip(shown, clusters, strict=True):
        size = int(found.sizes[root])
        rows = [
            [m.key, "kept" if m.kept else "left out", "-" if m.distance is None else str(m.distance)] for m in members
        ]
        more = f", of which {len(members)} are shown" if size > len(members) else ""
        parts.append(f"<h3>{text(count(size, 'row'))}{more}</h3>")
        strip = "".join(picture(small[m.key], m.key) for m in members if m.key in small)
        parts += [f'<div class="strip">{strip}</div>'] if strip else []
        parts.append(table(("key", "result", "bits from the kept one"), rows, 2, f"Cluster of {members[0].key}"))
    fewer = f"The {len(shown)} largest of {numbers['clusters']:,} clusters" if shown else "No row has a duplicate."
    head = [facts([(name, f"{numbers[name]:,}") for name in ("rows", "kept", "exact", "near", "clusters", "largest")])]
    sections = [
        Section("Clusters", [f'<p class="soft">{text(fewer)}</p>', *parts]),
        Section("This page", ["<h3>Command</h3>", listing(shlex.join(command), "Command")]),
    ]
    return page(f"Duplicates of {found.files[0].path}", "dali-run dedupe", head, sections, f"dali-run {__version__}")


def largest(found: Duplicates) -> list[int]:
    """Return the numbers of the largest clusters of duplicates, largest first. Clusters of equal size are sorted by the
    keys of their kept rows."""
    import pyarrow as pa

    sizes = found.sizes[found.sizes > 1]
    if not len(sizes):
        return []
    bound = np.partition(sizes, -CLUSTERS)[-CLUSTERS] if len(sizes) > CLUSTERS else 2
    order = [("size", "descending"), ("key", "ascending")]
    best: Any = None
    for first, block in found.rows({found.options.key: "key"}):
        own = found.roots[first : first + len(block.table)]
        rows = np.flatnonzero(found.keep[first : first + len(own)] & (found.sizes[own] >= bound))
        keys = block.table.column(0).take(pa.array(rows))
        some = pa.table({"size": found.sizes[own[rows]], "key": keys, "cluster": own[rows]})
        best = (some if best is None else pa.concat_tables([best, some])).sort_by(order).slice(0, CLUSTERS)
    return [int(root) for root in best.column("cluster").to_numpy()]


def members_of(found: Duplicates, shown: Sequence[int]) -> list[list[Member]]:
    """Return the samples to show of each cluster whose number is in ``shown``, the kept sample first."""
    import pyarrow as pa

    options, wanted = found.options, np.zeros(len(found.sizes), np.bool_)
    wanted[list(shown)] = True
    columns: dict[str, Kind] = {options.key: "key"}
    columns |= {options.near: "hash"} if options.near else {}
    tables: list[Any] = []
    for first, block in found.rows(columns) if shown else ():
        own = found.roots[first : first + len(block.table)]
        rows = np.flatnonzero(wanted[own])
        taken = block.table.take(pa.array(rows))
        hashes = taken.column(options.near).to_numpy() if options.near else np.zeros(len(rows), np.uint64)
        tables.append(pa.table({"cluster": own[rows], "left": ~found.keep[first + rows], "hash": hashes,
                                "key": taken.column(options.key)}))  # fmt: skip
    if not tables:
        return []
    rows = pa.concat_tables(tables).sort_by([("cluster", "ascending"), ("left", "ascending"), ("key", "ascending")])
    roots, hashes = rows.column("cluster").to_numpy(), rows.column("hash").to_numpy()
    made = []
    for root in shown:
        first = int(np.searchsorted(roots, root))
        last = min(first + MEMBERS, int(np.searchsorted(roots, root, side="right")))
        apart = np.bitwise_count(hashes[first:last] ^ hashes[first]).tolist()
        keys = rows.column("key").slice(first, last - first).to_pylist()
        made.append([Member(key, k == 0, apart[k] if options.near else None) for k, key in enumerate(keys)])
    return made


def _thumbnails(clusters: Sequence[Sequence[Member]], images: Path | None) -> dict[str, bytes]:
    """Return small JPEGs of the samples' image files, by key. Keys are paths in the folder ``images``; keys that lead
    out of it have no JPEG."""
    if images is None:
        return {}
    root, files = images.resolve(), dict[str, bytes]()
    for key in (m.key for members in clusters for m in members):
        path = (root / key).resolve()
        try:
            if path.is_relative_to(root) and path.is_file() and path.stat().st_size <= _MOST_BYTES:
                files[key] = path.read_bytes()
        except (OSError, ValueError):  # a key may be anything
            continue
    made = thumbnails(list(files.values()))
    return {key: small for key, small in zip(files, made, strict=True) if small}
