"""Features of Hugging Face's datasets in Parquet files, and the data set's card; the parquet writer calls this."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from ...ops.base import Spec
from ...ops.errors import SpecError
from ...ops.storage.json_text import parse_json
from ..base import FieldConfig

CARD = "README.md"
"""File name of the data set's card, which describes it on Hugging Face."""
_SPLITS = ("train", "validation", "val", "test")
"""Names of Hugging Face's splits. An output with such a name is that split; other outputs are the split ``train``."""
_BY_ENCODING = {"jpeg": "image", "png": "image", "webp": "image", "avif": "image", "flac": "audio", "wav": "audio"}
"""Kind of Hugging Face feature (image, audio) of fields, by their option `encode`."""


def _feature(name: str, features: Mapping[str, Any], fields: Mapping[str, FieldConfig]) -> Any:
    """Return the Hugging Face feature of a field: ``image``, ``audio``, names of classes, or None for a plain value."""
    return features.get(name, _BY_ENCODING.get(fields[name].encode) if name in fields else None)


def check(
    features: Mapping[str, Any] | None, fields: Mapping[str, FieldConfig], specs: Mapping[str, Spec]
) -> None:  # fmt: skip
    """Check that the option ``features`` fits the fields. Raises SpecError."""
    for name, kind in (features or {}).items():
        if name not in fields:
            raise SpecError(f"option features: there is no field {name!r}; fields: {', '.join(fields)}")
        classes = isinstance(kind, (list, tuple)) and len(kind) > 0 and all(isinstance(k, str) for k in kind)
        if kind not in ("image", "audio") and not classes:
            raise SpecError(f"option features: {name!r} must be image, audio or a list of class names, got {kind!r}")
        spec = specs.get(name, Spec())
        if classes and spec.dtype is not None and fields[name].encode != "auto":
            raise SpecError(f"option features: {name!r} has class names, so it must be a number (encode: auto)")


def described(table: Any, features: Mapping[str, Any] | None, fields: Mapping[str, FieldConfig]) -> Any:
    """Return the Arrow table as Hugging Face's `datasets` stores it: images and audio as structures, labels as int64,
    and the features in its metadata."""
    if features is None:
        return table
    import pyarrow as pa

    told: dict[str, Any] = {}
    for i, name in enumerate(table.column_names):
        kind = _feature(name, features, fields)
        column = table.column(i)
        if kind in ("image", "audio") and pa.types.is_binary(column.type):
            table = table.set_column(i, name, _with_paths(column))
            told[name] = {"_type": kind.capitalize()}
        elif kind not in (None, "image", "audio") and pa.types.is_integer(column.type):
            table = table.set_column(i, name, column.cast(pa.int64()))
            told[name] = {"names": list(kind), "_type": "ClassLabel"}
        else:
            told[name] = _value(column.type)
    return table.replace_schema_metadata({"huggingface": json.dumps({"info": {"features": told}})})


def _with_paths(column: Any) -> Any:
    """Return a column of files' bytes as `datasets` stores it: a structure of the bytes and a path, which is null."""
    import pyarrow as pa

    kind = pa.struct({"bytes": pa.binary(), "path": pa.string()})
    chunks = [
        pa.StructArray.from_arrays([c, pa.nulls(len(c), pa.string())], fields=list(kind)) for c in column.chunks
    ]  # fmt: skip
    return pa.chunked_array(chunks, kind)


def _value(kind: Any) -> dict[str, Any]:
    """Return the Hugging Face feature of a column that is a number, a text, or a list of these."""
    import pyarrow as pa

    if pa.types.is_list(kind):
        return {"feature": _value(kind.value_type), "_type": "Sequence"}
    names = {"halffloat": "float16", "float": "float32", "double": "float64"}
    return {"dtype": names.get(str(kind), str(kind)), "_type": "Value"}


def card(manifest: Mapping[str, Any], schema: Any) -> bytes:
    """Return the text of the data set's card: features, split and files for `load_dataset`, and a few words for
    people."""
    features = parse_json(schema.metadata[b"huggingface"])["info"]["features"]
    name, samples = manifest["write"]["name"], manifest["samples"]
    split = name if name in _SPLITS else "train"
    lines = ["---", "dataset_info:", "  features:"]
    for field, feature in features.items():
        lines += [f"  - name: {json.dumps(field)}", *(f"    {line}" for line in _yaml(feature))]
    lines += [
        "  splits:", f"  - name: {split}", f"    num_examples: {samples}", f"    num_bytes: {manifest['bytes']}",
        "configs:", "- config_name: default", "  data_files:", f"  - split: {split}",
        f"    path: {json.dumps(name + '-*.parquet')}", "---", "", f"# {name}", "",
        f"{samples:,} samples in {len(manifest['shards'])} Parquet files.", "",
    ]  # fmt: skip
    lines += ["| field | feature |", "|---|---|", *(f"| `{f}` | {_words(v)} |" for f, v in features.items()), ""]
    lines += ["`manifest.json` lists every file with its checksums; `dali-run verify` checks them.", ""]
    return "\n".join(lines).encode()


def _yaml(feature: Mapping[str, Any]) -> list[str]:
    """Return the lines of YAML that describe a feature in a card."""
    kind = feature["_type"]
    if kind == "ClassLabel":
        names = [f"        '{i}': {json.dumps(n)}" for i, n in enumerate(feature["names"])]
        return ["dtype:", "  class_label:", "    names:", *(line[2:] for line in names)]
    if kind == "Sequence":
        return [f"list: {feature['feature'].get('dtype', 'binary')}"]
    return [f"dtype: {feature['dtype'] if kind == 'Value' else kind.lower()}"]


def _words(feature: Mapping[str, Any]) -> str:
    kind = feature["_type"]
    if kind == "ClassLabel":
        return f"one of {len(feature['names'])} classes"
    if kind == "Sequence":
        return f"list of {_words(feature['feature'])}"
    return str(feature["dtype"]) if kind == "Value" else kind
