"""Pages: whole, self-contained, accessible by their structure, and deaf to what data says."""

from __future__ import annotations

import itertools
import re
from typing import Any

import pytest

from dali_run.pipelines.show.html import Origin, Reject, ReportSamples, Sample, html_report
from dali_run.pipelines.show.plots import growth, plot, rates
from tests.kit.pages import Page, jpeg, operator, report

SEEN = ReportSamples(
    [Sample("a/1.jpg", jpeg("red"), [("image", "24 x 24 x 3 uint8", jpeg("blue", (24, 24)))])],
    [Reject("a/2.jpg", "decoders.image", "truncated", "the JPEG ends inside its header", None),
     Reject("a/3.jpg", "decoders.image", "truncated", "Premature end", jpeg("gray"))], 7)  # fmt: skip
ORIGIN = Origin("dali-run run 'my spec.yaml' --html a.html", "version: 1\nname: job\n", {"data": "/mnt"})


def test_the_page_holds_the_numbers() -> None:
    page = Page(html_report(report(), SEEN, ORIGIN))
    said = set(page.texts)
    for cell in ("1,200", "4.00 s", "2,400/s", "3.0 MiB", "truncated", "600/s", "The GPU holds the job back.",
                 "1.0 GiB", "2.0 GiB", "3.0 GiB", "Premature end", "7 more are in rejects.jsonl.", "a/1.jpg",
                 "5,242,880", "image: 24 x 24 x 3 uint8"):  # fmt: skip
        assert cell in said, cell


def test_the_page_says_how_it_came_to_be() -> None:
    page = Page(html_report(report(), SEEN, ORIGIN))
    for told in (
        "dali-run run 'my spec.yaml' --html a.html",
        "version: 1\nname: job",
        "data=/mnt",
        "2026-05-04T03:02:01+00:00",
        "A processor, 4 of 8 cores, A GPU",
        "Linux 6",
        "3.11.7",
        "dali-run 0.1.0",
    ):
        assert told in page.texts, told


def test_bars_are_as_long_as_what_they_show() -> None:
    page = html_report(report(operators=[*report()["operators"], operator("last", runs_on="gpu", gpu_seconds=3.0)]))
    section = page[page.index('id="time-per-operator"') :]
    widths = re.findall(r'<i class="busy" style="width:([\d.]+)%', section)[:4]
    assert widths == ["12.50", "100.00", "37.50", "75.00"]  # 0.5, 4, 1.5 and 3 seconds
    stages = page[page.index('id="stage-utilisation"') :]
    shares = re.findall(r'<i class="(busy|waits|blocked)" style="width:([\d.]+)%', stages)
    assert shares[:3] == [("busy", "25.00"), ("waits", "0.00"), ("blocked", "50.00")]
    assert shares[3] == ("busy", "50.00")  # 4 seconds on 4 threads in 2 seconds


HOSTILE = "<script>alert(1)</script>\" onload='x' \x1b[31m \u202e </style></title>"


def test_data_never_becomes_markup() -> None:
    """Every text of a report in turn says what an attacker would like it to say."""
    plain = report()
    clean = [(name, sorted(attributes)) for name, attributes in Page(html_report(plain, SEEN, ORIGIN)).tags]
    reject = Reject(HOSTILE, HOSTILE, HOSTILE, HOSTILE, SEEN.rejects[1].picture)
    seen = ReportSamples([Sample(HOSTILE, jpeg(), [(HOSTILE, HOSTILE, jpeg())])], [SEEN.rejects[0], reject], 7)

    def spoiled(value: Any) -> Any:
        if isinstance(value, dict):
            keep = {"kind", "operators", "stages"}  # a report's own words, and lists that are looked up by name
            return {k: v if k == "kind" else [spoiled(x) for x in v] if k in keep and isinstance(v, list)
                    else spoiled(v) for k, v in value.items()}  # fmt: skip
        if isinstance(value, list):
            return [spoiled(v) for v in value]
        return HOSTILE if isinstance(value, str) else value

    bad = spoiled(plain)
    bad["operators"] = [{**o, "name": f"{HOSTILE}{i}"} for i, o in enumerate(bad["operators"])]
    for table in ("rejected", "decoders", "fallbacks", "uploads"):
        bad[table] = {f"{HOSTILE}{k}": v for k, v in plain[table].items()}
    over = bad["over_time"]
    over["queues"] = {f"{HOSTILE}{k}": v for k, v in plain["over_time"]["queues"].items()}
    over["operators"] = {f"{HOSTILE}{k}": v for k, v in plain["over_time"]["operators"].items()}
    page = html_report(bad, seen, Origin(HOSTILE, HOSTILE, {HOSTILE: HOSTILE}))
    found = Page(page)
    assert [(name, sorted(attributes)) for name, attributes in found.tags] == clean
    assert "<script" not in page
    assert not re.search(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e]", page)
    assert sum("<script>alert(1)</script>" in t for t in found.texts) > 20


def test_structure_is_accessible() -> None:
    page = Page(html_report(report(), SEEN, ORIGIN))
    assert page.named("html") == [{"lang": "en"}]
    assert {"name": "viewport", "content": "width=device-width, initial-scale=1"} in page.named("meta")
    assert {"name": "color-scheme", "content": "light dark"} in page.named("meta")
    for landmark in ("header", "nav", "main", "footer", "h1"):
        assert len(page.named(landmark)) == 1, landmark
    ids = [a["id"] for _, a in page.tags if "id" in a]
    assert len(ids) == len(set(ids))
    for attributes in page.named("section"):
        assert attributes["aria-labelledby"] in ids
    for attributes in page.named("a"):
        assert attributes["href"].removeprefix("#") in ids
    assert all(a["alt"] for a in page.named("img"))
    for drawing in page.named("svg"):
        named = "aria-labelledby" in drawing and set(drawing["aria-labelledby"].split()) <= set(ids)
        assert named or drawing.get("aria-hidden") == "true"
    drawings = [a for a in page.named("svg") if "aria-labelledby" in a]
    assert len(drawings) == len(page.named("details")) == 6  # each has its numbers beside it
    assert len(page.named("caption")) == len(page.named("table"))
    assert all(a.get("scope") in ("col", "row") for a in page.named("th"))
    levels = [int(name[1]) for name, _ in page.tags if re.fullmatch("h[1-6]", name)]
    assert all(b - a <= 1 for a, b in itertools.pairwise(levels))


def test_nothing_is_asked_for() -> None:
    text = html_report(report(), SEEN, ORIGIN)
    page = Page(text)
    assert not page.named("script")
    assert not page.named("link")
    assert all(a["src"].startswith("data:image/jpeg;base64,") for a in page.named("img"))
    assert "http" not in text.replace("http-equiv", "")
    assert "url(" not in text
    policy = next(a["content"] for a in page.named("meta") if a.get("http-equiv") == "Content-Security-Policy")
    assert policy.startswith("default-src 'none'")


@pytest.mark.parametrize("missing", ["over_time", "machine", "memory", "decoders", "fallbacks", "rejected", "uploads",
                                     "started"])  # fmt: skip
def test_reports_of_other_versions_have_pages_too(missing: str) -> None:
    older = report()
    del older[missing]
    Page(html_report(older))


def test_an_empty_run_has_a_page() -> None:
    text = html_report({"name": None, "device": "cpu", "threads": 1, "seconds": 0.0, "samples_per_second": None,
                        "samples": {}, "operators": [], "stages": [],
                        "bottleneck": {"sentence": "None.", "advice": "None."}})  # fmt: skip
    assert "job" in Page(text).texts


def test_rates_are_those_of_the_counts() -> None:
    seconds, counts = [0.0, 0.5, 1.0, 1.5, 2.0], [0.0, 100.0, 200.0, 200.0, 200.0]
    at, speed = rates(seconds, counts)
    assert at[0] == 0.0
    assert at[-1] == 2.0
    assert sum(s * (b - a) for s, a, b in zip(speed[1:], at, at[1:], strict=False)) == pytest.approx(200)
    assert growth(seconds, counts, [0.0, 1.0, 2.0]) == [200.0, 200.0, 0.0]
    assert rates([0.0], [5.0]) == ([], [])


def test_a_plot_draws_and_says_its_values() -> None:
    text = plot("p", "Speed", [0.0, 1.0, 2.0], [("a", [0.0, 50.0, 100.0])], lambda x: f"{x:.0f}/s")
    assert 'd="M0.0,120.0 300.0,61.0 600.0,2.0"' in text
    assert "mean 50/s, 0/s to 100/s" in text
    assert text.count("<tr>") == 4


def several() -> dict[str, Any]:
    """A report of a job by two workers for two seconds, whose stages worked four in all."""
    one = report()
    stages = {s["id"]: {"busy": 0.25, "waiting_for_input": 0.5, "blocked_on_output": 0.0} for s in one["stages"]}
    workers = [
        {"name": f"GPU {k}", "node": "here", "parts": 7, "samples": 600, "busy_seconds": 2.0, "idle_seconds": 0.0,
         "samples_per_second": 300.0, "bottleneck": "Bottleneck: the GPU.", "stages": stages} for k in range(2)
    ]  # fmt: skip
    workers[1]["ended"] = "was ended by SIGKILL"
    node = {"name": "here", "workers": 2, "samples": 1200, "samples_per_second": 600.0,
            "bottleneck": one["bottleneck"]}  # fmt: skip
    rows = one["over_time"]["seconds"]
    over_time = {"seconds": rows, "samples": [30 * k for k in range(len(rows))], "rejected": [0] * len(rows),
                 "queues": {}, "operators": {}, "memory": {},
                 "workers": {f"GPU {k} on here": [15 * i for i in range(len(rows))] for k in range(2)}}  # fmt: skip
    return {**one, "workers": workers, "nodes": [node], "work_seconds": 4.0, "over_time": over_time}


def test_a_job_by_several_workers_tells_of_each() -> None:
    page = Page(html_report(several()))
    said = set(page.texts)
    for cell in ("GPU 0", "GPU 1", "was ended by SIGKILL", "Bottleneck: the GPU.", "GPU 0, here", "25%",
                 "Samples per second of each worker"):  # fmt: skip
        assert cell in said, cell
    alone = html_report(report())
    assert "Samples per second of each worker" not in alone
    assert "How busy the stages of each worker were" not in alone


def test_stages_of_several_workers_are_shares_of_the_time_that_they_worked() -> None:
    """Added over workers they come to more than the job took."""
    for found, share in ((report(), "25%"), (several(), "12%")):
        texts = Page(html_report(found)).texts
        at = texts.index("00:read", texts.index("How stages spent their time"))
        assert texts[at + 1] == share
