"""json_value: values of JSON texts by path, compared with Python's json."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dali_run.ops.arrays.json_values import JsonValue
from dali_run.ops.batch import Batch, Samples
from dali_run.ops.context import Context
from dali_run.ops.errors import SpecError


def value_of(texts: list[bytes], **arguments: Any) -> tuple[list[Any], dict[int, str]]:
    """The output for each text, and the messages of rejected ones."""
    samples = Samples.numbered(len(texts))
    batch = Batch.from_list([np.frombuffer(t, np.uint8).copy() for t in texts], "", samples)
    op = JsonValue(**arguments)
    op.check()
    ctx = Context(op=op, stage="cpu", samples=samples)
    out = op.cpu(ctx, batch)
    rows = [out.sample(i) for i in range(len(texts))]
    return [r.tobytes() if op.type == "text" else r.item() for r in rows], {r.slot: r.message for r in ctx.rejects}


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(st.characters(exclude_categories=["Cs"])),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text('ab]}",', max_size=2), inner, max_size=3),
    max_leaves=8,
)


@given(st.dictionaries(st.text("abc", min_size=1), JSON, max_size=4), JSON, st.booleans())
def test_the_value_that_json_finds(before: dict[str, Any], value: Any, ascii_only: bool) -> None:
    text = json.dumps({**before, "x": [1, {"the key": value}], "y": 0}, ensure_ascii=ascii_only, indent=1).encode()
    (found,), rejects = value_of([text], path="$.x[1]['the key']")
    if value is None:
        assert "has no value at $.x[1]['the key']" in rejects[0]
        return
    assert not rejects
    assert found.decode() == value if isinstance(value, str) else json.loads(found) == value


def test_numbers_and_what_is_none() -> None:
    texts = [b'{"a": 12}', b'{"a": "-7"}', b'{"a": true}', b'{"b": 1}', b'{"a": 1.5}', b'{"a"', b'{"a": ""}', b"[]"]
    numbers, rejects = value_of(texts, path="a", type="int")
    assert numbers[:3] == [12, -7, 1]
    assert sorted(rejects) == [3, 4, 5, 6, 7]
    assert rejects[4] == "a is '1.5', which is not a whole number"
    assert rejects[5] == "the text is not JSON"
    numbers, rejects = value_of(texts[:5], path="$.a", type="float", missing="empty")
    assert numbers == [12, -7, 0, 0, 1.5]
    assert sorted(rejects) == [2]
    _, rejects = value_of([rb'{"a": "\ud83d"}', rb'{"a": "\x"}', b'{"a": "\xff"}', rb'{"a": "\u12'], path="a")
    assert [rejects[i] for i in range(3)] == ["a is not text in UTF-8"] * 3
    assert value_of([b'{"a": ' + b"9" * 50 + b"}"], path="a", type="float")[1]
    with pytest.raises(SpecError, match=r"'a\[b\]' is not a path: write"):
        JsonValue(path="a[b]").check()
