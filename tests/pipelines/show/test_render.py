"""Tables say what the data says."""

from __future__ import annotations

import io
from typing import Any

import pytest
from rich.console import Console, RenderableType

from dali_run.pipelines import wording as units
from dali_run.pipelines.show.tables import table
from dali_run.pipelines.show.terminal import operator_view, plan_view, report_view
from tests.kit.pages import operator, stage, summary


def lines(view: RenderableType, width: int = 140) -> list[str]:
    console = Console(file=io.StringIO(), width=width, highlight=False)
    console.print(view)
    return console.file.getvalue().splitlines()  # type: ignore[attr-defined]


REPORT = summary()


def test_a_report_is_shown_as_it_is() -> None:
    shown = lines(report_view(REPORT))
    assert shown[0] == "job: 1,200 samples read in 2.00 s, 600/s on gpu, 4 threads; 1,199 written, 1 rejected"
    color = next(x.split() for x in shown if x.startswith("color"))
    assert color[:6] == ["color", "cpu", "1,200", "4.00", "s", "67%"]
    resize = next(x.split() for x in shown if x.startswith("resize"))
    assert resize[:6] == ["resize", "gpu", "1,200", "1.50", "s", "25%"]
    assert resize[-7:] == ["1.25", "2.50", "2,400/s", "0", "B", "3.0", "MiB"]
    stages = {x.split()[0]: x.split()[-3:] for x in shown if x[:2].isdigit() or x.startswith("write")}
    assert stages["00:read"] == ["25%", "0%", "50%"]
    assert stages["01:cpu"] == ["50%", "0%", "0%"]  # 4 seconds on 4 threads in 2 seconds
    assert stages["write"] == ["10%", "0%", "0%"]
    assert "Rejected: 1 truncated; each is a line in rejects.jsonl" in shown
    assert "Fallback: out of GPU memory: batch halved (2)" in shown
    assert "Images by decoder: dali-run's own on the GPU 1,100, engines 99" in shown
    assert shown[-2:] == ["The GPU holds the job back.", "To go faster: More GPUs."]


def many_operators() -> dict[str, Any]:
    operators = [operator(f"operator_{i}", stage="01:cpu", cpu_seconds=0.1 * (i + 1)) for i in range(30)]
    return {**REPORT, "operators": operators,
            "stages": [stage("00:read", "whole"), stage("01:cpu", "chunk", *(o["name"] for o in operators))],
            "rejected": {f"reason_{i}": i for i in range(1, 20)}}  # fmt: skip


@pytest.mark.parametrize("width", [60, 80, 120, 200])
def test_a_summary_fits_one_screen(width: int) -> None:
    shown = lines(report_view(many_operators()), width)
    assert len(shown) <= 21
    assert any(x.startswith("operator_29") for x in shown)  # the busiest one
    assert any(" more  " in x for x in shown)
    assert any("19 reason_19" in x for x in shown)
    assert shown[-1].endswith("More GPUs.")


@pytest.mark.parametrize("width", [30, 40, 60, 80, 120])
def test_rows_say_what_they_are_about_at_any_width(width: int) -> None:
    shown = lines(report_view(REPORT), width)
    for name, busy in (("Reader", "0.50 s"), ("color", "4.00 s"), ("resize", "1.50 s")):
        row = next(x for x in shown if x.startswith(name))
        assert busy in row
        assert len(row) <= width


def test_narrow_tables_become_paragraphs() -> None:
    rows = [["gauss", "cpu gpu", "Blur with a Gaussian, whose width may differ"], ["crop", "cpu", "Cut"]]
    shown = lines(table(("operator", "on", "summary"), rows), 32)
    assert [x.rstrip() for x in shown] == [
        "gauss  cpu gpu", "    Blur with a Gaussian, whose", "    width may differ", "crop  cpu  Cut"]  # fmt: skip
    grouped = [["cpu", "model", "A long name of a processor, with its frequency"], ["", "cores", "2"]]
    shown = lines(table(("", "", ""), grouped), 30)
    assert [x.rstrip() for x in shown] == [
        "cpu", "    model", "        A long name of a", "        processor, with its", "        frequency",
        "    cores  2"]  # fmt: skip


def test_columns_go_in_the_order_that_is_given() -> None:
    made = table(("name", "a", "b"), [["x" * 10, "1" * 10, "2" * 10]], numbers=("a", "b"), dispensable=("b", "a"))
    assert lines(made, 40)[1].split() == ["x" * 10, "1" * 10, "2" * 10]
    assert lines(made, 30)[1].split() == ["x" * 10, "1" * 10]
    assert lines(made, 20)[1].split() == ["x" * 10]


def test_compiling_is_told_apart() -> None:
    assert "; 12.50 s to compile CPU kernels" in lines(report_view({**REPORT, "compiling_seconds": 12.5}))[0]
    assert "compile" not in lines(report_view({**REPORT, "warm_up_seconds": 4.0, "compiling_seconds": 0.4}))[0]


def test_an_empty_run_has_a_report_too() -> None:
    empty = {**REPORT, "operators": [], "stages": [], "seconds": 0.0, "samples_per_second": None, "rejected": {},
             "samples": {"read": 0, "written": 0, "rejected": 0}}  # fmt: skip
    assert lines(report_view(empty))[0].startswith("job: 0 samples read in 0.00 s, -")


def test_a_plan_names_stages_shapes_and_what_is_written() -> None:
    plan = {
        "name": "job", "device": "null", "seed": 3,
        "stages": [{"id": "00:read", "kind": "whole", "operators": ["Reader"]}],
        "operators": [{"name": "Reader", "op": "readers.file", "runs_on": "cpu", "stage": 0, "inputs": ["x"],
                       "arguments": {"mirror": "coin"}, "outputs": ["uint8[?]", "int32[1]"]}],
        "outputs": {"image": {"from": "Reader[0]", "spec": "uint8[?]"}},
        "fused": ["decode + resize"],
        "write": {"writer": "lmdb", "path": "out", "shard": {"samples": 10, "bytes": 1 << 20},
                  "fields": {"image": "keep"}},
    }  # fmt: skip
    shown = lines(plan_view(plan))
    assert shown[0] == "job: on null, seed 3"
    assert ["00:read", "Reader", "cpu", "x,", "mirror=coin", "uint8[?]"] in [x.split() for x in shown]
    assert "Fused: decode + resize" in shown
    assert shown[-1] == "Writes image (keep) as lmdb to out, a shard every 10 samples or 1.0 MiB"


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (units.size(0), "0 B"),
        (units.size(1023), "1023 B"),
        (units.size(1536), "1.5 KiB"),
        (units.size(5 << 40), "5.0 TiB"),
        (units.duration(3.14159), "3.14 s"),
        (units.duration(185), "3 min 05 s"),
        (units.duration(7620), "2 h 07 min"),
        (units.duration(59.999), "60.00 s"),
        (units.rate(None), "-"),
        (units.rate(12345.6), "12,346/s"),
        (units.rate(4.25), "4.2/s"),
        (units.count(1, "sample"), "1 sample"),
        (units.count(12000, "sample"), "12,000 samples"),
    ],
)
def test_numbers_for_people(text: str, expected: str) -> None:
    assert text == expected


def test_what_an_operator_does_is_wrapped_by_the_terminal_alone() -> None:
    """Docstrings have lines of 120 columns; lists in them stay lists."""
    doc = "Takes ``one``\nor two.\n\nKinds:\n- a\n- b"
    shown = {"name": "op", "doc": doc, "facts": {}, "arguments": [], "example": ""}
    with (screen := Console(width=80)).capture() as said:
        screen.print(operator_view(shown))
    assert said.get().splitlines()[1:6] == ["Takes `one` or two.", "", "Kinds:", "- a", "- b"]
