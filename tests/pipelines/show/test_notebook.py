"""Views of pipelines, nodes and results in notebooks, and their `repr`."""

from __future__ import annotations

import base64
import io
import re
import xml.etree.ElementTree as ET
from typing import Any

import numpy as np
import pytest
from PIL import Image

from dali_run import Pipeline, fn, pipeline_def, types
from dali_run.ops.batch import Batch, Samples
from dali_run.pipelines.show.notebook import MOST_SAMPLES, Box, batch_html, graph_svg
from dali_run.tensors import TensorCPU, TensorListCPU


@pipeline_def(batch_size=4, num_threads=1, device_id=None, seed=1)
def program() -> Any:
    jpegs, labels = fn.readers.file(file_root=".", name="Reader")
    images = fn.decoders.image(jpegs, name="decoded")
    flag = fn.random.coin_flip(name="flag")
    return fn.flip(images, horizontal=flag, name="mirrored"), labels


def svg_of(html: str) -> ET.Element:
    found = re.search(r"<svg.*</svg>", html, re.S)
    assert found
    return ET.fromstring(found[0])


NAMES = "{http://www.w3.org/2000/svg}"


def test_a_pipeline_prints_its_settings_and_its_graph() -> None:
    assert repr(program()).splitlines() == [
        "Pipeline(batch_size=4, num_threads=1, device_id=None, seed=1):",
        "    Reader = readers.file(file_root='.')",
        "    decoded = decoders.image(Reader[0])",
        "    flag = random.coin_flip()",
        "    mirrored = flip(decoded; horizontal=flag)",
        "    output 0 <- mirrored",
        "    output 1 <- Reader[1]",
    ]


def test_constants_and_numbers_of_outputs_are_shown() -> None:
    @pipeline_def(batch_size=4, num_threads=1, device_id=None, seed=1)
    def chain() -> Any:
        anchors, shapes, *_ = fn.random_bbox_crop(fn.constant(fdata=[0.0, 0.25, 1.0, 1.0], shape=[1, 4], name="box"),
                                                  name="window")  # fmt: skip
        images = fn.resize(np.zeros((4, 4, 3), np.uint8), size=[32, 48], interp_type=types.INTERP_CUBIC, name="small")
        cut = fn.slice(images * types.Constant(2).uint8(), start=anchors, shape=shapes, axes=[0, 1], name="cut")
        return cut, fn.one_hot(fn.constant(idata=list(range(90)), name="many"), name="hot")

    lines = [line.strip() for line in repr(chain()).splitlines()]
    assert "box = constant(fdata=[0, 0.25, 1, 1], shape=[1, 4])" in lines
    assert "expr = expr(small, expr='a * uint8(2)')" in lines
    resize = re.compile(r"small = resize\(\w+, interp_type=INTERP_CUBIC, size=\[32, 48\]\)")
    assert any(map(resize.fullmatch, lines)), lines
    assert "cut = slice(expr, axes=[0, 1]; start=window[0], shape=window[1])" in lines
    assert any(line.startswith("many = constant(idata=[0, 1, 2,") and line.endswith(" ...)") for line in lines)
    titles = [t.text or "" for t in svg_of(chain()._repr_html_()).iter(f"{NAMES}title")]
    assert any("size=[32, 48]" in title for title in titles)


def test_a_pipeline_that_is_not_defined_says_so_and_stays_so() -> None:
    class Lazy(Pipeline):
        def define_graph(self) -> Any:
            raise AssertionError("printing defines nothing")

    lazy = Lazy(batch_size=2, num_threads=1, device_id=None)
    assert repr(lazy).endswith(": not defined yet")
    assert "not defined yet" in lazy._repr_html_()


def test_the_graph_as_svg() -> None:
    html = program()._repr_html_()
    svg = svg_of(html)
    titles = [t.text for t in svg.iter(f"{NAMES}title")]
    assert "decoded: decoders.image cpu" in titles
    assert "Reader: readers.file cpu\nfile_root='.'" in titles
    assert "horizontal" in titles, "a dashed line for the argument"
    assert len(list(svg.iter(f"{NAMES}rect"))) == 6
    lines = list(svg.iter(f"{NAMES}path"))
    assert len(lines) == 5
    assert sum("stroke-dasharray" in p.attrib for p in lines) == 1
    boxes = [(float(r.attrib["x"]), float(r.attrib["y"]), float(r.attrib["width"])) for r in svg.iter(f"{NAMES}rect")]
    assert all(x >= 0 and x + w <= float(svg.attrib["width"]) for x, _, w in boxes)
    for i, (x, y, w) in enumerate(boxes):
        assert not [b for b in boxes[:i] if b[1] == y and b[0] < x + w and x < b[0] + b[2]], "boxes overlap"


def test_a_node_shows_what_leads_to_it() -> None:
    with Pipeline(batch_size=1, num_threads=1, device_id=None):
        kept = fn.constant(fdata=[1.0], name="kept")
        fn.constant(fdata=[2.0], name="other")
        node = fn.cast(kept, dtype=types.FLOAT, name="result")
        html = node._repr_html_()
    titles = [t.text for t in svg_of(html).iter(f"{NAMES}title")]
    assert [t for t in titles if t and t.startswith("kept")]
    assert not [t for t in titles if t and t.startswith("other")]


def test_conditionals_are_shown_by_what_is_around_them() -> None:
    @pipeline_def(batch_size=2, num_threads=1, device_id=None, enable_conditionals=True)
    def choice() -> Any:
        flag, value = fn.random.coin_flip(name="flag", dtype=types.BOOL), fn.constant(fdata=[1.0], name="value")
        if flag:
            out = fn.cast(value, dtype=types.FLOAT, name="cast_it")
        else:
            out = fn.cast(value + 1, dtype=types.FLOAT, name="add_it")
        return out

    text = repr(choice())
    assert "output 0 <- cast_it, add_it" in text
    svg_of(choice()._repr_html_())


def pictures(html: str) -> list[Image.Image]:
    found = re.findall(r'src="data:image/\w+;base64,([^"]+)"', html)
    return [Image.open(io.BytesIO(base64.b64decode(x))) for x in found]


def test_images_are_shown() -> None:
    images = np.zeros((3, 40, 60, 3), np.uint8)
    images[1, :, :, 0] = 255
    html = TensorListCPU(images, layout="HWC")._repr_html_()
    shown = pictures(html)
    assert [p.size for p in shown] == [(60, 40)] * 3
    assert shown[1].convert("RGB").getpixel((5, 5)) == (255, 0, 0)
    assert "3 samples, uint8, 40 x 60 x 3, HWC" in html
    assert len(pictures(TensorCPU(images[0], layout="HWC")._repr_html_())) == 1


@pytest.mark.parametrize(
    ("sample", "layout", "n"),
    [
        (np.random.default_rng(1).normal(size=(3, 20, 30)).astype(np.float32), "CHW", 1),
        (np.sin(np.arange(4000) / 9).astype(np.float32), "", 1),
        (np.abs(np.random.default_rng(1).normal(size=(80, 120))).astype(np.float32), "ft", 1),
        (np.zeros((9, 16, 16, 3), np.uint8), "FHWC", 4),
        (np.arange(4, dtype=np.float32), "", 0),
        (np.array(7, np.int64), "", 0),
        (np.zeros((0, 4), np.float32), "", 0),
    ],
)
def test_every_kind_of_sample(sample: np.ndarray[Any, Any], layout: str, n: int) -> None:
    html = batch_html(Batch.from_list([sample], layout, Samples.numbered(1)), "x")
    assert len(pictures(html)) == n
    assert n or "<pre" in html


def test_encoded_pictures_are_shown_as_they_are_and_other_bytes_by_their_first() -> None:
    out = io.BytesIO()
    Image.new("RGB", (30, 20), "red").save(out, "jpeg")
    encoded = np.frombuffer(out.getvalue(), np.uint8)
    (picture,) = pictures(TensorListCPU([encoded])._repr_html_())
    assert (picture.format, picture.size) == ("JPEG", (30, 20))
    assert "00 01 02" in TensorListCPU([np.arange(90, dtype=np.uint8)])._repr_html_()


def test_names_cannot_become_markup() -> None:
    box = Box("<script>", "a&b", "cpu", (), {})
    assert "<script>" not in graph_svg([box])
    ET.fromstring(graph_svg([box]))
    html = batch_html(Batch.from_list([np.zeros(2, np.float32)], "", Samples.numbered(1)), "<b>x")
    assert "<b>x" not in html


def test_a_large_batch_is_cut() -> None:
    html = TensorListCPU(np.zeros((40, 8, 8, 3), np.uint8), layout="HWC")._repr_html_()
    assert len(pictures(html)) == MOST_SAMPLES
    assert "... and 24 more" in html


def test_values_of_the_dynamic_mode_are_shown() -> None:
    import dali_run.dynamic as ndd

    images = ndd.as_batch(np.zeros((3, 8, 9, 3), np.uint8), layout="HWC")
    assert len(pictures(images._repr_html_())) == 3
    assert len(pictures(images.tensors[1]._repr_html_())) == 1
    assert "<pre" in (ndd.as_tensor([1.0, 2.0]) + 1)._repr_html_()


def test_what_needs_nothing_stands_above_what_needs_it() -> None:
    """So that lines do not cross boxes."""
    boxes = [Box("a", "x", "cpu", (), {}), Box("flag", "y", "cpu", (), {}), Box("b", "x", "cpu", (0,), {}),
             Box("c", "x", "cpu", (2,), {}), Box("d", "x", "cpu", (3,), {"flag": 1})]  # fmt: skip
    tops = [float(r.attrib["y"]) for r in ET.fromstring(graph_svg(boxes)).iter(f"{NAMES}rect")]
    assert tops[0] < tops[2] < tops[3] == tops[1] < tops[4]
