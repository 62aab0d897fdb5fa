"""The contents of the documentation's site: its pages in order, by the captions of its side bar."""

from __future__ import annotations

CONTENTS: dict[str, tuple[str, ...]] = {
    "Learn": ("choosing", "install", "tutorial", "notebooks/first-look"),
    "Do": (
        "guides/imagenet", "guides/web-data", "guides/curate", "guides/coco", "guides/speech", "guides/video",
        "guides/s3", "guides/many-machines", "guides/training", "guides/operators", "guides/watching", "guides/faster",
        "guides/measuring", "troubleshooting", "guides/editors", "guides/ci", "guides/orchestrators", "serving",
    ),
    "Move from": (
        "guides/from-dali", "guides/from-torchvision", "guides/from-webdataset", "guides/from-img2dataset",
        "guides/from-ffcv",
    ),
    "Look up": (
        "spec", "commands", "python", "dynamic-mode", "transforms", "json", "formats", "audio", "video",
        "parity", "dali-differences", "versions",
    ),
    "Operators": (
        "operators/index", "operators/codecs", "operators/images", "operators/color", "operators/geometry",
        "operators/filters", "operators/augment", "operators/boxes", "operators/audio", "operators/video",
        "operators/arrays", "operators/random", "operators/curate", "operators/python", "operators/readers",
        "operators/writers",
    ),
    "Understand": (
        "architecture", "explanations/determinism", "explanations/memory", "performance", "performance/gpu",
        "performance/operators", "start-up", "reliability", "findings", "security",
    ),
    "Contribute": (
        "../CONTRIBUTING", "../pipelines/README", "../ops/README", "../writers/README",
        "examples/plugin-package/README", "../README", "../CHANGELOG",
    ),
}  # fmt: skip
"""Pages without their suffixes, relative to docs/. Pages that are not listed come last, under More."""


def toctrees(rest: list[str]) -> str:
    """Return the tables of contents for the site's first page; ``rest`` are the found pages without a place."""
    parts = {**CONTENTS, **({"More": tuple(rest)} if rest else {})}
    blocks = (["", "```{toctree}", ":hidden:", f":caption: {c}", "", *pages, "```"] for c, pages in parts.items())
    return "\n".join(line for block in blocks for line in block) + "\n"
