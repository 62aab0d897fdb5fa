"""docs/release.py: what `make release` checks in a wheel and an sdist."""

from __future__ import annotations

from email.message import Message

import pytest

from docs.release import FIELDS, NEEDED, notes, problems


def metadata(**changed: str) -> Message:
    message = Message()
    for field in FIELDS:
        message[field] = changed.get(field.replace("-", "_"), "1")
    message.set_payload(changed.get("text", "see [the pages](https://example.com)"))
    return message


def test_notes_are_the_section_of_the_version() -> None:
    text = "# Changelog\n\n## [0.2.0] - x\n\n- new\n\n### Limits\n\n- few\n\n## [0.1.0]\n\n- old\n"
    assert notes(text, "0.2.0") == "- new\n\n### Limits\n\n- few\n"
    assert notes(text, "0.1.0") == "- old\n"
    for version, changed in (("0.3.0", text), ("0.1.0", text + text), ("0.2.0", "## [0.2.0] - x\n\n## [0.1.0]\n")):
        with pytest.raises(ValueError, match="sections for"):
            notes(changed, version)


def test_problems_are_named() -> None:
    assert problems(metadata(), metadata(), NEEDED) == []
    assert problems(metadata(), metadata(), [*NEEDED[1:], "tests/x.py"]) == [
        f"the wheel has no {NEEDED[0]}", "the wheel has tests/x.py"]  # fmt: skip
    assert problems(metadata(Version="2"), metadata(), NEEDED) == ["Version differs between wheel and sdist"]
    assert problems(metadata(Name=""), metadata(Name=""), NEEDED) == ["the metadata has no Name"]
    text = "[a](docs/a.md), ![b](b.png)"
    assert problems(metadata(text=text), metadata(), NEEDED) == [
        "the description links to docs/a.md", "the description links to b.png"]  # fmt: skip
