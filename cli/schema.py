"""``dali-run schema``: JSON Schema of specs."""

from __future__ import annotations

from .output import print_json

NAME = "schema"


def command() -> None:
    """Print the JSON Schema of specs, for completion in editors.

    \b
    Examples:
      dali-run schema > spec.schema.json
      # first line of a spec, for editors with the YAML language server:
      # yaml-language-server: $schema=./spec.schema.json
    """
    from ..pipelines.spec.json_schema import spec_schema

    print_json(spec_schema())
