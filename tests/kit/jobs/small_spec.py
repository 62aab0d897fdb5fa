"""A small job: class folders, one random operator, shards of six samples; its tests run it several times."""

from __future__ import annotations

from pathlib import Path

_SPEC = """\
version: 1
name: small
pipeline: {{batch_size: 5, num_threads: 2, device: cpu, seed: 3}}
graph:
  - {{op: readers.file, name: Reader, file_root: "{data}", random_shuffle: true, out: [jpegs, labels]}}
  - {{op: decoders.image_random_crop, in: jpegs, out: images}}
  - {{op: resize, in: images, size: [{size}, {size}], out: images}}
outputs: {{image: images, label: labels}}
write: {{writer: {writer}, path: "{out}", shard: {{samples: 6}}, fields: {{image: {{encode: {encode}}}, label: {{}}}}}}
on_error: {{policy: skip, max_errors: 50%}}
"""


def small_spec(
    data: Path | str, out: Path | str = "./out", *, writer: str = "webdataset", encode: str = "png", size: int = 48
) -> str:
    """Return the text of a small spec that reads ``data`` and writes ``out``."""
    return _SPEC.format(data=data, out=out, writer=writer, encode=encode, size=size)
