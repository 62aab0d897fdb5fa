"""The slips of people who write specs: each message says where it is, and ends with what to write instead."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from dali_run.ops.base import operators
from dali_run.pipelines.plugins import load_operators
from dali_run.pipelines.spec.build import load_spec
from dali_run.pipelines.spec.other_libraries import table
from dali_run.pipelines.spec.slips import _CALLED, _KEYS, _VALUES, operator

from ...kit.specs import errors

GOOD = """\
version: 1
name: imagenet
vars: {data: ./data/train, out: ./out}
pipeline: {batch_size: 64, device: cpu}
graph:
  - {op: readers.file, name: Reader, file_root: "${data}", out: [jpegs, labels]}
  - {op: decoders.image, in: jpegs, out: images}
  - {op: resize, in: images, size: [224, 224], out: images}
outputs: {image: images, label: labels}
write: {writer: webdataset, path: "${out}", fields: {image: {encode: jpeg}, label: {}}}
"""
RESIZE = "{op: resize, in: images, size: [224, 224], out: images}"


def test_the_spec_without_slips(tmp_path: Path) -> None:
    (tmp_path / "t.yaml").write_text(GOOD)
    assert list(load_spec(tmp_path / "t.yaml").graph.outputs) == ["image", "label"]


@pytest.mark.parametrize(
    ("right", "wrong", "place", "remedy"),
    [
        # variables without quotes, in braces and in brackets
        ('"${data}"', "${data}", "6:50", 'quote variables between braces: "${data}"'),
        ('path: "${out}"', "path: ${out}", "10:36", 'quote variables between braces: "${out}"'),
        ("[224, 224]", "[${size}, 2]", "8:38", 'quote variables between braces: "${size}"'),
        ('"${data}"', "$data", "6:49", 'a variable is written "${data}"'),
        ('"${data}"', '"$HOME/x"', "6:49", 'an environment variable is written "${env:HOME}"'),
        ('"${data}"', '"${dat}"', "6:49", "did you mean data?"),
        # indents
        ("  - {op: decoders", " - {op: decoders", "7:2", "indented by 1 space, which matches none of the lines above"),
        ("  - {op: decoders", "    - {op: decoders", "7:5", "the - of one list, begin in the same column"),
        ("{batch_size: 64, device: cpu}", "\n  batch_size: 64\n   device: cpu", "6:10", "keys of one mapping"),
        ("outputs:", "  outputs:", "9:3", "outputs: is a section of the spec: begin it in the first column"),
        ("  - {op: decoders", "\t- {op: decoders", "7:1", "indent with spaces, not with tabs"),
        ("{batch_size: 64, device: cpu}", "\n\tbatch_size: 64", "5:1", "indent with spaces, not with tabs"),
        # braces, commas, colons
        ("in: jpegs, out", "in: jpegs out", "7:39", "a comma is missing before this place"),
        ("out: images}\n  - {op: resize", "out: images\n  - {op: resize", "8:5", "the { in line 7 is not closed"),
        ("[224, 224]", "[224, 224", "8:58", "the [ before it is not closed"),
        ("size: [224", "size:[224", "8:34", "put a space after the colon"),
        ("size: [224", "size=[224", "8:35", "write size: with a colon and a space, not ="),
        ("op: resize", "op:resize", "8:5", "write op: resize, with a space after the colon"),
        ("in: images,", "in:images,", "8:18", "write in: images, with a space after the colon"),
        ("out: images}\noutputs", "out:images}\noutputs", "8:48", "write out: images, with a space after the colon"),
        ("size: [224, 224]", "mode= stretch", "8:30", "write mode: stretch, with a colon, not ="),
        ('"${data}"', '"C:\\data"', "6:52", "write it twice, or use single quotes"),
        ("imagenet", "for: all", "2:10", "quote a text that contains a colon and a space"),
        # steps
        ("in: images, size", "size", "8:5", "takes 1 input, got 0; name its input: in: images"),
        (RESIZE, "resize: {in: images, size: 2, out: images}", "8:5", "write {op: resize, in: ..., out: ...}"),
        ("{op: decoders.image, in: jpegs, ", "{op: decoders.image, ", "7:5", "in: jpegs (or labels)"),
        ("  - {op: resize", "  - {op: random.coin_flip, out: m}\n  - {op: flip, out: n}\n  - {op: resize",
         "9:5", "in: images"),
        (RESIZE, "resize", "8:5", "write {op: resize, in: ..., out: ...}"),
        (", out: images}\noutputs", "}\noutputs", "8:5", "needs `out:`, the names of its outputs"),
        ("graph:", "steps:", "5:1", "the list of steps is called `graph:`, not `steps:`"),
        ("graph:\n  - {op: r", "graph: {a: 1}\nx:\n  - {op: r", "5:8", "begin each step of `graph:` with a dash"),
        ("graph:\n  - ", "steps: {a: 1}\nx:\n  - ", "5:1", "begin each step of `graph:` with a dash: - {op: ..."),
        # operators of other libraries
        ("op: resize", "op: RandomResizedCrop", "8:10", "is written {op: random_resized_crop, in: images, size: [224"),
        ("op: resize", "op: A.GaussianBlur", "8:10", "{op: gaussian_blur, in: images, sigma: $sigma, out: images}"),
        ("op: resize", "op: T.Resize", "8:10", "out: images} (more: dali-run ops --like torchvision.Resize)"),
        ("op: resize, in: images, size: [224, 224]", "op: torchvision.Resize, in: images, size: 224", "8:10",
         "torchvision.Resize is written {op: resize, in: images, resize_shorter: 224, out: images}"),
        ("op: resize", "op: T.Normalize", "8:10", "torchvision.Normalize is written {op: crop_mirror_normalize"),
        ("op: resize", "op: fn.resize", "8:10", "write resize"),
        ("op: decoders.image", "op: cv2.imdecode", "7:10", "did you mean decoders.image?"),
        ("op: decoders.image", "op: decode", "7:10", "did you mean decoders.image?"),
        ("op: resize", "op: Compose", "8:10", "steps are simply listed under `graph:`"),
        ("op: resize", "op: resise", "8:10", "did you mean resize"),
        # keys
        ("batch_size", "batchsize", "4:12", "it is called batch_size:"),
        ("batch_size", "num_workers", "4:12", "it is called num_threads:"),
        ("pipeline: {batch_size: 64, device: cpu}", "batch_size: 64", "4:1", "it belongs into `pipeline:`"),
        ("writer: webdataset", "format: webdataset", "10:8", "needs `writer:`, the format (not `format:`)"),
        ("name: imagenet", "name: imagenet\nname: b", "3:1", "given twice, first in line 2; remove one of them"),
        ("size: [224, 224]", "size: 2, size: 4", "8:39", "given twice, first in line 8; remove one of them"),
        # values
        ("[224, 224]", "224x224", "8:36", "a list is written [224, 224]"),
        ("[224, 224]", "None", "8:36", "in YAML, write null"),
        ("size: [224, 224]", "mode: big", "8:36", "'big'"),
        ("size: [224, 224]", "size: 4, dtype: -7", "8:46", "-7 is not a data type; allowed: UINT8"),
        ("64", '"64"', "4:24", "leave out the quotes: 64"),
        ("device: cpu", "device: cuda", "4:36", "write gpu"),
        ("writer: webdataset", "writer: tar", "10:17", "write webdataset"),
        ("encode: jpeg", "encode: jpg", "10:70", "write jpeg"),
        ("name: Reader", "random_shuffle: yes", "6:40", "write true"),
        # sections
        ("outputs: {image: images, label: labels}\n", "", "1:1", "needs `outputs:`, what leaves the graph"),
        ("version: 1\n", "", "1:1", "needs `version: 1`"),
        ("image: images", "image: imagess", "9:18", "did you mean images?"),
    ],
)  # fmt: skip
def test_slips_are_answered_with_what_to_write(right: str, wrong: str, place: str, remedy: str, tmp_path: Path) -> None:
    assert GOOD.count(right) >= 1
    (line, *more) = errors(GOOD.replace(right, wrong, 1), tmp_path)
    assert line.startswith(f"{place}: "), line
    assert remedy in line, line
    assert all("there is no key 'x'" in m for m in more), f"one slip, one line: {more}"


def test_an_input_by_another_name(tmp_path: Path) -> None:
    lines = errors(GOOD.replace("in: images, size", "input: images, size"), tmp_path)
    assert "8:18: step 3 (resize): has no argument 'input'; it is called in:" in lines


def test_the_tables_lead_to_what_is_there() -> None:
    """Every operator, key and value that a hint names exists."""
    load_operators()
    assert {name for name in _CALLED.values() if name} <= set(operators())
    assert {v for values in _KEYS.values() for v in values} >= {"graph", "batch_size", "writer", "in"}
    for section, names in _KEYS.items():
        for meant, slips in names.items():
            assert meant not in slips, f"{section}: {meant}"
    from dali_run.writers.base import ENCODINGS, writers

    assert set(_VALUES["writer"].values()) <= set(writers())
    assert set(_VALUES["encode"].values()) <= set(ENCODINGS)


@pytest.mark.parametrize("name", table())
def test_every_transform_of_other_libraries_is_answered(name: str) -> None:
    load_operators()
    answer = operator(name)
    steps = re.findall(r"\{op: ([\w.]+)", answer)
    assert steps or table()[name].get("note", "") in answer or "simply listed" in answer
    assert answer
    assert set(steps) <= set(operators()) | {a for op in operators().values() for a in op.aliases}


@pytest.mark.parametrize("argument", ['mode: "12"', 'antialias: "12"', 'dtype: "12.5"', 'interp_type: "99"'])
def test_no_hint_sends_people_from_one_error_to_the_next(argument: str, tmp_path: Path) -> None:
    """A number without its quotes would be as wrong there."""
    (line,) = errors(GOOD.replace("size: [224, 224]", argument, 1), tmp_path)
    assert "quotes" not in line


def turned_by(shape: int, angle: str) -> str:
    draw = f"  - {{op: random.uniform, shape: [{shape}], out: drawn}}\n"
    turn = f"  - {{op: rotate, in: images, angle: {angle}, out: images}}\n"
    return GOOD.replace("outputs:", f"{draw}{turn}outputs:", 1)


@pytest.mark.parametrize(("shape", "angle"), [(1, "$images"), (2, "$drawn")])
def test_an_argument_of_one_number_takes_no_image(shape: int, angle: str, tmp_path: Path) -> None:
    """Each sample was rejected, one by one, when the job ran."""
    (line,) = errors(turned_by(shape, angle), tmp_path)
    assert "argument 'angle' takes one number for each sample, got" in line


def test_an_argument_of_one_number_takes_a_list_of_one(tmp_path: Path) -> None:
    (tmp_path / "t.yaml").write_text(turned_by(1, "$drawn"))
    assert load_spec(tmp_path / "t.yaml").graph.outputs
