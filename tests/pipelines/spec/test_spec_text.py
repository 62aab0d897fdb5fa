"""YAML with marks: what scalars mean, what is refused and why, and bounds on hostile text."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from dali_run.pipelines.problems import Mark, Problems, SpecErrors
from dali_run.pipelines.spec.text import MOST_BYTES, Value, parse, read


def load(text: str | bytes, name: str = "t.yaml", **options: Any) -> Value:
    problems = Problems()
    value = parse(text, name, problems, **options)
    problems.raise_any()
    assert value is not None
    return value


def errors(text: str | bytes, **options: Any) -> list[str]:
    with pytest.raises(SpecErrors) as caught:
        load(text, **options)
    return str(caught.value).splitlines()


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("text", "text"), ("'yes'", "yes"), ('"1:30"', "1:30"), ("y", "y"), ("true", True), ("FALSE", False),
        ("~", None), ("null", None), ("-12", -12), ("+7", 7), ("0", 0), ("0x1F", 31), ("1.5", 1.5), (".5", 0.5),
        ("-2.", -2.0), ("1.0e+3", 1000.0), ("18446744073709551615", 2**64 - 1), ("0.1%", "0.1%"), ("1:x", "1:x"),
        ("./data", "./data"), ("${data}", "${data}"), ("a=b", "a=b"), ("nana", "nana"),
    ],
)  # fmt: skip
def test_scalars(text: str, value: Any) -> None:
    data = load(text).data
    assert data == value
    assert type(data) is type(value)


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("yes", "write true, or quote it"), ("Off", "write false, or quote it"), ("NO", "write false"),
        ("on", "write true"), ("1:30", "base 60"), ("012", "octal"), ("00", "octal"), ("0o17", "decimal"),
        ("0b11", "decimal"), ("1_000", "without underscores"), ("1e3", "write 1.0e+3"), ("1.5E-3", ""),
        ("2.5e3", "write 2.5e+3"), (".nan", "not a usable number"), ("-.INF", "not a usable number"),
        ("NaN", "not a usable"), ("Infinity", "not a usable"), ("2001-12-14", "a date"), ("1.0e+999", "too large"),
        ("18446744073709551616", "64 bits"),
        ("9" * 5000, "64 bits"), ("!!int 3", "tag"), ("!python/object:os.system x", "tag"), ("! x", "tag"),
    ],
)  # fmt: skip
def test_surprises_are_refused_with_the_remedy(text: str, reason: str) -> None:
    if not reason:
        assert load(text).data == float(text)
        return
    (line,) = errors(text)
    assert line.startswith("t.yaml:1:1: ")
    assert reason in line


def test_json_numbers_in_json_files_only(tmp_path: Path) -> None:
    assert load('{"a": 1e-05}', json=True).to_python() == {"a": 1e-05}
    assert "write 1.0e-05" in errors('{"a": 1e-05}')[0]
    file = tmp_path / "spec.JSON"
    file.write_text('{"a": 1E3}')
    problems = Problems()
    found = read(file, problems)
    assert found is not None
    assert found.to_python() == {"a": 1000.0}
    assert not problems


def test_marks() -> None:
    root = load("a: 1\nb:\n  - x\n  - {c: 2}\n")
    assert isinstance(root.data, dict)
    items = root.data["b"].data
    assert isinstance(items, tuple)
    assert root.data["a"].mark == Mark("t.yaml", 1, 4)
    assert root.key_marks["b"] == Mark("t.yaml", 2, 1)
    assert items[0].mark == Mark("t.yaml", 3, 5)
    assert items[1].key_marks["c"] == Mark("t.yaml", 4, 6)


def test_several_problems_at_once_in_order() -> None:
    lines = errors("a: yes\nb: 012\na: 3\n? [x]\n: 1\n2: y\n")
    assert [line.split(": ")[0] for line in lines] == [
        "t.yaml:1:4", "t.yaml:2:4", "t.yaml:3:1", "t.yaml:4:3", "t.yaml:6:1",
    ]  # fmt: skip
    assert "key 'a' is given twice, first in line 1" in lines[2]
    assert "must be text, not a list" in lines[3]
    assert 'quote it: "2"' in lines[4]


def test_aliases_and_merge_keys() -> None:
    text = "base: &b {x: 1, y: 2}\none: *b\ntwo: {<<: *b, y: 3}\nthree:\n  <<: [{z: 1}, *b]\n"
    assert load(text).to_python() == {
        "base": {"x": 1, "y": 2}, "one": {"x": 1, "y": 2}, "two": {"x": 1, "y": 3}, "three": {"z": 1, "x": 1, "y": 2},
    }  # fmt: skip


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("a: *x", "has no anchor"),
        ("a: &x [*x]", "contain itself"),
        ("<<: 3", "`<<` merges a mapping"),
        ("a: b\n---\nc: d", "second document"),
        ("", "is empty"),
        ("# only a comment\n", "is empty"),
        ("---\n...\n---\n...", "second document"),
        ("a:\n\t- b", "tabs"),
        ("a: @b", "quote text that starts with @"),
        ("a: {b: ${c}, d: 1}", 'quote variables between braces: "${c}"'),
        ("a: [${c}, 1]", 'quote variables between braces: "${c}"'),
        ("a: b: c", "not valid YAML"),
        ("[1, 2", "not valid YAML"),
        ("%YAML 9.9.9\n---\na", "not valid YAML"),
        ("a: \0", "NUL"),
        ("a: \x1b[31m", "U+001B"),
        ("a: b\ufeffc", "U+FEFF"),
        ('"\\ud800"', "Unicode"),
        (b"\xff\xfea\x00", "UTF-16"),
        (b"ab\n\xc3\x28", "byte 0xc3 is not UTF-8"),
        ("[" * 500, "deeper than 100"),
        ("[" * 5000, "nest"),  # libyaml may refuse it first, in its own words
        ("a: " + "{b: " * 500, "deeper than 100"),
        ("- " * 1000 + "x", "deeper than 100"),
        ("x" * (MOST_BYTES + 1), "larger than 1 MiB"),
    ],
)
def test_hostile_text(text: str | bytes, reason: str) -> None:
    assert reason in "\n".join(errors(text))


def test_place_of_a_bad_byte() -> None:
    assert errors(b"ab: x\n\xc3\xa4: \xff")[0].startswith("t.yaml:2:4: byte 0xff")


def test_alias_bombs_are_bounded() -> None:
    lines = ["a0: &a0 [x, x, x, x, x, x, x, x, x, x]"]
    lines += [f"a{i}: &a{i} [{', '.join([f'*a{i - 1}'] * 10)}]" for i in range(1, 12)]
    assert "expands to more than" in errors("\n".join(lines))[0]
    merges = ["a0: &a0 {" + ", ".join(f"k{i}: 1" for i in range(1000)) + "}"]
    merges += [f"b{i}: {{<<: *a0}}" for i in range(200)]
    assert "expands to more than" in errors("\n".join(merges))[0]


def test_aliases_cannot_nest_without_end() -> None:
    lines = ["a0: &a0 [x]", *(f"a{i}: &a{i} [*a{i - 1}]" for i in range(1, 2000))]
    assert "deeper than 100 levels by its aliases" in errors("\n".join(lines))[0]


def test_a_byte_order_mark_is_no_problem() -> None:
    assert load(b"\xef\xbb\xbfa: 1").to_python() == {"a": 1}


def test_files_that_cannot_be_read(tmp_path: Path) -> None:
    problems = Problems()
    assert read(tmp_path, problems) is None
    assert read(tmp_path / "none.yaml", problems) is None
    assert read("/dev/zero", problems) is None
    assert read("nul\0byte", problems) is None
    texts = [str(p) for p in problems]
    assert "it is a directory" in texts[0]
    assert "No such file" in texts[1]
    assert "not a regular file" in texts[2]
    assert "cannot be read" in texts[3]


def test_many_problems_are_cut() -> None:
    lines = errors("\n".join(f"k{i}: yes" for i in range(200)))
    assert len(lines) == 51
    assert lines[-1] == "... and 50 more at least"
    assert errors("\n".join(f"k{i}: yes" for i in range(60)))[-1] == "... and 10 more"


def test_pure_python_parser_gives_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    """PyYAML may come without libyaml."""
    import yaml

    text = "a: [1, yes, *x]\nb: {c: 012}\n"
    fast = errors(text)
    monkeypatch.delattr(yaml, "CSafeLoader", raising=False)
    assert errors(text) == fast
