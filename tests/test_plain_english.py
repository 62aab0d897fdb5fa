"""Docstrings, comments and READMEs are plain English: limits for what tests/kit/plain_english.py finds."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.kit.plain_english import check

ROOT = Path(__file__).parents[1]
FOLDERS = ("cli", "pipelines", "ops", "readers", "writers", "dali_run", "tests/kit", "benchmarks")


def test_texts_are_plain_english() -> None:
    findings, count = check(ROOT / folder for folder in FOLDERS)
    unclear = [str(f) for f in findings if f.level == "unclear"]
    assert not unclear, "\n".join(unclear)
    odd = {(f.path, f.line): str(f) for f in findings if f.level == "odd"}
    assert 1000 * len(odd) <= 5 * count, "\n".join(odd.values())


@pytest.mark.parametrize(
    ("text", "rules"),
    [
        ('"""It is freed by the reader."""', ["no-noun"]),
        ('"""What is given and what they take."""', ["no-content"]),
        ('"""A reader that goes by the size."""', ["phrase"]),
        ('"""A file that the job may which wait, and that some take that are read."""', ["split-clause"]),
        ('"""Stop where it ends, where they are, and where one is."""', ["stacked-where"]),
        ("# of a class", ["fragment"]),
        ("# a loop is no generator", ["phrase"]),
        ("# noqa: of a class", []),
        ('"""Return the number of samples; ``It`` counts them."""', []),
    ],
)
def test_each_rule(tmp_path: Path, text: str, rules: list[str]) -> None:
    file = tmp_path / "module.py"
    file.write_text(text)
    findings, count = check([file])
    assert ([f.rule for f in findings], count) == (rules, int(text != "# noqa: of a class"))


def test_code_and_tables_of_markdown_are_not_checked(tmp_path: Path) -> None:
    (tmp_path / "page.md").write_text("Read in vain.\n\n```\nin vain\n```\n\n| in vain |\n")
    findings, _ = check([tmp_path])
    assert [(f.line, f.rule) for f in findings] == [(1, "phrase")]
