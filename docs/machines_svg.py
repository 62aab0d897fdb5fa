"""Generator of docs/many-machines.svg: a driver, its workers on several machines, and files on the shared storage."""

from __future__ import annotations

from docs.rooms_svg import box, svg

WIDTH = 960
NODES = ("this machine", "node 1", "node 2 (lost)", "node 3 (came later)")


def draw() -> str:
    """Return the drawing as SVG."""
    parts = [
        box(330, 16, 300, 34, "driver: parts, progress, one report", "step"),
        '<text class="small" x="480" y="66">words only: which part, how far, rejects, a report a part</text>',
    ]
    width = (WIDTH - 24 - 3 * 16) / 4
    for i, name in enumerate(NODES):
        x = 12 + i * (width + 16)
        lost = i == 2
        parts.append(f'<rect class="file" x="{x:g}" y="92" width="{width:g}" height="142" rx="5"/>')
        parts.append(f'<text x="{x + width / 2:g}" y="110">{name}</text>')
        parts.append(f'<path class="arrow" d="M480 72 L{x + width / 2:g} 90"{DASHED * lost}/>')
        if i == 0:
            parts.append(box(x + 10, 120, width - 20, 26, "fork server: one index, forks", "room"))
        else:
            parts.append(box(x + 10, 120, width - 20, 26, "Ray actor: carries words", "room"))
        for k in range(2):
            w = (width - 30) / 2
            at = x + 10 + k * (w + 10)
            parts.append(box(at, 156, w, 26, f"worker GPU {k}", "file" if lost else "step"))
            parts.append(f'<text class="small" x="{at + w / 2:g}" y="200">part {2 * i + k}</text>')
            parts.append(f'<path class="arrow" d="M{at + w / 2:g} 206 V262 m-4 -5 l4 5 l4 -5"{DASHED * lost}/>')
    parts.append(f'<rect class="room" x="12" y="266" width="{WIDTH - 24}" height="86" rx="5"/>')
    parts.append('<text x="480" y="286">shared file system or object store: everything that counts</text>')
    inside = ("shards", "a journal a part", "a reject log a part", "then: one journal, one manifest")
    for i, name in enumerate(inside):
        parts.append(box(24 + i * 230, 300, 216, 28, name, "file"))
    said = "A lost worker's part goes on from its journal, anywhere. In the end the folder is that of one process."
    parts.append(f'<text class="small" x="480" y="344">{said}</text>')
    return svg("A driver, its workers on several machines, and the shared storage", WIDTH, 366, parts)


DASHED = ' stroke-dasharray="4 4"'
