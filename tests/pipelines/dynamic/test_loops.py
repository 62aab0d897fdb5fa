"""Loops over readers: epochs, states, checkpoints, and captured bodies."""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import dali_run
import dali_run.dynamic as ndd
from dali_run.ops.errors import SampleError, SpecError
from dali_run.pipelines.dynamic import capture as captures

from ...kit.fake_cupy import faked

COUNT = 11


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """Eleven pictures with values 20 k, and a list of them with labels k."""
    pictures = ndd.batch([np.full((6 + k, 8, 3), 20 * k, np.uint8) for k in range(COUNT)], layout="HWC")
    for k, data in enumerate(ndd.encoders.image(pictures, format="png").tensors):
        (tmp_path / f"{k:02d}.png").write_bytes(np.asarray(data).tobytes())
    (tmp_path / "list").write_text("".join(f"{k:02d}.png {k}\n" for k in range(COUNT)))
    return tmp_path


def reader(root: Path, **arguments: Any) -> Any:
    return ndd.readers.File(file_root=str(root), file_list=str(root / "list"), **arguments)


def labels(values: Any) -> list[int]:
    return [int(t.item()) for t in values.tensors] if isinstance(values, ndd.Batch) else [int(values.item())]


def test_the_order_is_that_of_a_pipeline(root: Path) -> None:
    for arguments in ({"random_shuffle": True, "seed": 7, "initial_fill": 4}, {"num_shards": 3, "shard_id": 1}, {}):
        pipe = dali_run.Pipeline(batch_size=3, num_threads=1, device_id=None, rng="dali")
        with pipe:
            pipe.set_outputs(
                dali_run.fn.readers.file(file_root=str(root), file_list=str(root / "list"), **arguments)[1]
            )
        pipe.build()
        r = reader(root, **arguments)
        for _ in range(3):
            for _, found in r.next_epoch(batch_size=3):
                assert labels(found) == [int(np.asarray(t)[0]) for t in pipe.run()[0]]


def test_samples_know_where_they_came_from(root: Path) -> None:
    sample = next(iter(reader(root).next_epoch()))[0]
    decoded = ndd.decoders.image(sample)
    assert bytes(np.asarray(ndd.get_property(decoded, key="source_info"))).decode().endswith("00.png")
    for data, found in reader(root).next_epoch(batch_size=4):
        names = ndd.get_property(ndd.flip(ndd.decoders.image(data)), key="source_info")
        assert [int(bytes(np.asarray(t))[-6:-4]) for t in names.tensors] == labels(found)


@pytest.mark.parametrize("batch_size", [None, 2, 4])
def test_a_state_goes_on_where_the_loop_was(root: Path, batch_size: int | None) -> None:
    first = reader(root, random_shuffle=True, seed=3)
    loop = first.next_epoch(batch_size=batch_size)
    for _ in range(2):
        next(loop)
    text = str(first.get_state())
    second = reader(root, random_shuffle=True, seed=3)
    second.set_state(text)
    assert second.get_state() == first.get_state()
    rest = [labels(found) for _, found in loop]
    assert [labels(found) for _, found in second.next_epoch(batch_size=batch_size)] == rest
    for _ in range(2):
        ours, theirs = ([labels(x) for _, x in r.next_epoch(batch_size=batch_size)] for r in (first, second))
        assert ours == theirs
    with pytest.raises(ValueError, match="not the state of a reader"):
        second.set_state("nonsense")


def test_messages(root: Path, tmp_path: Path) -> None:
    here = re.escape(__file__)
    with pytest.raises(
        TypeError, match=rf"{here}:\d+: readers.file: has no argument 'file_rot'; did you mean file_root"
    ):
        ndd.readers.File(file_rot="x")
    with pytest.raises(SpecError, match=rf"{here}:\d+: readers.file: "):
        next(ndd.readers.File().next_epoch())
    with pytest.raises(ValueError, match="above max_batch_size"):
        reader(root, max_batch_size=2).next_epoch(batch_size=3)
    with pytest.raises(ValueError, match="needs a batch_size"):
        reader(root).next_epoch(capture=True)
    used = reader(root)
    used()
    with pytest.raises(RuntimeError, match="used for single calls and cannot also be used for batches"):
        used.next_epoch(batch_size=2)
    (root / "03.png").unlink()
    with pytest.raises(SampleError, match=rf"{here}:\d+: readers.file: sample 1 \(.*03.png\): cannot be"):
        list(reader(root).next_epoch(batch_size=2))


# -- checkpoints ------------------------------------------------------------------------------------------------------


def test_checkpoints(root: Path, tmp_path: Path) -> None:
    def program() -> Iterator[tuple[list[int], float]]:
        while True:
            for _, found in images.next_epoch(batch_size=3):
                yield labels(found), ndd.random.uniform(rng=rng).item()

    images, rng = reader(root, random_shuffle=True, seed=5), ndd.random.RNG(seed=2)
    kept = ndd.checkpoint.Checkpoint()
    assert kept.register(images, "images") == "images"
    made = kept.register(rng)
    assert kept.register(rng) == made
    assert kept.names == ("images", made)
    run = program()
    for _ in range(6):
        next(run)
    kept.collect()
    assert kept.is_complete
    pattern = str(tmp_path / "state_{seq:03d}.json")
    assert [kept.save(pattern)[-8:] for _ in range(2)] == ["000.json", "001.json"]
    want = [next(run) for _ in range(7)]

    images, rng = reader(root, random_shuffle=True, seed=5), ndd.random.RNG(seed=99)
    later = ndd.checkpoint.Checkpoint()
    assert later.load(pattern).endswith("001.json")
    assert later.is_loaded
    later.register(images, "images")
    later.register(rng, None)
    run = program()
    assert [next(run) for _ in range(7)] == want


def test_wrong_checkpoints(tmp_path: Path) -> None:
    kept = ndd.checkpoint.Checkpoint()
    with pytest.raises(TypeError, match="3 has no state"):
        kept.register(3)
    with pytest.raises(FileNotFoundError):
        kept.load(str(tmp_path / "x_{seq}.json"))
    with pytest.raises(ValueError, match="not a checkpoint"):
        kept.deserialize('{"version": 2}')
    kept.set_state("a", str(ndd.random.RNG(seed=4).state), ndd.random.RNG)
    with pytest.raises(RuntimeError, match="not registered: a"):
        kept.collect()
    with pytest.raises(TypeError, match="the state of 'a' belongs to a RNG"):
        kept.register(ndd.readers.File(file_root="x"), "a")
    generator = ndd.random.RNG(seed=1)
    kept.clear()
    kept.set_state("a", str(ndd.random.RNG(seed=4).state), "RNG")
    kept.register(generator, "a")
    assert generator() == ndd.random.RNG(seed=4)()
    kept.register(ndd.random.RNG(seed=1), "b")
    kept.set_state("a", str(generator.state))
    with pytest.raises(RuntimeError, match="no state for: b"):
        kept.restore()
    kept.collect()
    assert json.loads(kept.serialize())["states"].keys() == {"a", "b"}
    with pytest.raises(KeyError, match="registered as 'c'"):
        kept.set_state("c", "x")
    assert ndd.checkpoint.current() is ndd.EvalContext.current().checkpoint


# -- captured loops ---------------------------------------------------------------------------------------------------

Body = Callable[[Any, Any], Any]


def values(result: Any) -> list[Any]:
    return [np.asarray(t).tolist() for t in result.tensors]


def steady(data: Any, found: Any) -> Any:
    images = ndd.resize(ndd.decoders.image(data), size=[5, 6])
    return values(ndd.crop_mirror_normalize(images, mirror=ndd.random.coin_flip(batch_size=3)) + found[0] * 0
                  if isinstance(found, tuple) else images)  # fmt: skip


def drawing(data: Any, found: Any) -> Any:
    images = ndd.decoders.image(data)
    turned = ndd.rotate(images, angle=ndd.random.uniform(range=[-30.0, 30.0], batch_size=3))
    return values(ndd.noise.gaussian(turned, stddev=3.0)), values(found + ndd.random.uniform(batch_size=3))


def uneven(data: Any, found: Any) -> Any:
    """Another number of draws in every second body, and a call that is not always there."""
    images = ndd.decoders.image(data)
    if labels(found)[0] % 2:
        images = ndd.flip(images)
        ndd.random.get_default_rng()()
    return values(ndd.noise.gaussian(images, stddev=ndd.random.uniform(range=[1.0, 2.0], batch_size=3)))


def counting(data: Any, found: Any) -> Any:
    """Constants and values from outside that change."""
    counting.count += 1  # type: ignore[attr-defined]
    n = counting.count  # type: ignore[attr-defined]
    padded = ndd.pad(data, fill_value=n)
    return values(padded), values(found + n), values(found.slice[0] + ndd.batch([n, n, n])), values(-found)


@pytest.mark.filterwarnings("ignore:.*from outside of the loop:UserWarning")  # counting
@pytest.mark.parametrize("body", [steady, drawing, uneven, counting])
@pytest.mark.parametrize("threads", [1, 3])
def test_a_captured_loop_gives_what_the_loop_gives(root: Path, body: Body, threads: int) -> None:
    made = []
    for capture in (False, True):
        ndd.random.set_seed(8)
        counting.count = 0  # type: ignore[attr-defined]
        r = reader(root, random_shuffle=True, seed=1)
        with ndd.EvalContext(num_threads=threads):
            made.append([[body(*x) for x in r.next_epoch(batch_size=3, capture=capture)] for _ in range(3)])
            state = str(ndd.random.get_default_rng().state), r.get_state()
            made[-1].append([state])
    assert made[0] == made[1]


def test_captured_calls_are_a_pipeline(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ran: list[str] = []
    run = captures.calls.run

    def watched(plan: Any, *rest: Any) -> Any:
        ran.append(plan.op.name)
        return run(plan, *rest)

    monkeypatch.setattr(captures.calls, "run", watched)
    r = reader(root)
    offset = ndd.capture.invariant(np.float32([0.5]))
    with ndd.EvalContext(num_threads=2):
        for _ in range(3):
            for data, _ in r.next_epoch(batch_size=3, capture=True):
                images = ndd.noise.gaussian(ndd.decoders.image(data), stddev=2.0)
                (images + offset).evaluate()
    assert ran == ["decoders.image", "noise.gaussian", "expr"], "only the first body is run by the loop itself"
    plan = r.captured[1].pipeline.plan
    assert [n.op.name for n in plan.graph.nodes if not n.inputs] == ["readers.file", "_captured.constant"]
    assert len(plan.graph.outputs) == 1, "what nobody looks at stays in the pipeline"


def test_what_the_pipeline_keeps_is_made_again(root: Path) -> None:
    """Results that the program looks at only later: of the last batch, or from some batch on."""
    r, late = reader(root), []
    with ndd.EvalContext(num_threads=2):
        for k, (data, found) in enumerate(r.next_epoch(batch_size=2, capture=True)):
            images = ndd.decoders.image(data)
            ndd.flip(images).evaluate()
            late.append(images)
            if k == 3:
                assert bytes(np.asarray(data.tensors[0]))[1:4] == b"PNG"
                assert images.batch_size == 2
                assert str(images.device) == "cpu"
                assert labels(found) == [6, 7]
                assert values(images)[1] == np.full((13, 8, 3), 140).tolist()
    assert [values(x)[0][0][0][0] for x in late] == [0, 40, 80, 120, 160, 200]


def test_bodies_that_change_are_captured_anew(root: Path) -> None:
    r, shapes = reader(root), []
    with ndd.EvalContext(num_threads=1):
        for k in range(6):
            for data, _ in r.next_epoch(batch_size=3, capture=True):
                images = ndd.decoders.image(data)
                shapes.append((ndd.resize(images, size=[4, 4]) if k < 2 else ndd.flip(images)).shape[0])
    assert shapes[:8] == [(4, 4, 3)] * 8
    assert (4, 4, 3) not in shapes[8:]
    assert "flip" in [n.op.name for n in r.captured[1].pipeline.plan.graph.nodes]


def test_what_is_not_captured_is_named(root: Path) -> None:
    def loop() -> None:
        for data, found_labels in reader(root).next_epoch(batch_size=3, capture=True):
            images = ndd.decoders.image(data)
            one = ndd.random.uniform(range=[1.0, 2.0])
            ndd.brightness(images, brightness=one).evaluate()
            (found_labels + np.int32([1])).evaluate()

    line = sys._getframe().f_lineno - 4
    with pytest.warns(UserWarning, match="in each iteration") as found:
        loop()
    with pytest.warns(UserWarning, match="in each iteration"):
        loop()
    texts = [str(w.message) for w in found if "captured" not in str(w.message)]
    assert any(t.startswith(f"{__file__}:{line}: random.uniform: the call is made in each iteration") and
               "batch_size= makes a batch" in t for t in texts)  # fmt: skip
    assert any(t.startswith(f"{__file__}:{line + 2}: expr: ") and "capture.invariant promises" in t for t in texts)
    assert len(texts) == len(set(texts)) == 3, "once for each loop"


def test_a_captured_loop_may_be_left(root: Path) -> None:
    r = reader(root)
    for data, found in r.next_epoch(batch_size=3, capture=True):
        assert labels(found) == [0, 1, 2]
        ndd.decoders.image(data).evaluate()
        break
    assert labels(next(r.next_epoch(batch_size=3))[1]) == [3, 4, 5]
    outside = ndd.random.uniform(batch_size=2)
    assert outside.trace is None


def test_errors_in_captured_loops_are_raised_by_the_body(root: Path) -> None:
    (root / "07.png").write_bytes(b"no picture")
    line = sys._getframe().f_lineno + 4

    def loop() -> None:
        for data, _ in reader(root).next_epoch(batch_size=3, capture=True):
            ndd.decoders.image(data).evaluate()

    with pytest.raises(SampleError, match=rf"^{re.escape(__file__)}:{line}: decoders.image: sample 1 \(.*07.png\): "):
        loop()


@pytest.mark.parametrize("real", [False, pytest.param(True, marks=pytest.mark.gpu(emulated=False))])
def test_captured_loops_on_a_gpu(root: Path, real: bool) -> None:
    """Or on one that is imitated: each thread has a stream of its own."""
    made = []
    with nullcontext() if real else faked(memory=True), ndd.EvalContext(num_threads=2):
        for capture in (False, True):
            ndd.random.set_seed(8)
            r = reader(root)
            made.append([])
            for _ in range(2):
                for data, _ in r.next_epoch(batch_size=3, capture=capture):
                    noisy = ndd.noise.gaussian(ndd.flip(ndd.decoders.image(data).gpu()), stddev=3.0)
                    assert str(noisy.device) == "gpu:0"
                    made[-1].append(values(noisy.cpu()))
            if capture:
                assert "gpu" in {n.stage for n in r.captured[1].pipeline.plan.graph.nodes}
                r.captured[1].forget()  # while there is a GPU
    assert made[0] == made[1]


def test_captured_sources(root: Path) -> None:
    items = [ndd.batch([k, k + 1]) for k in range(6)]
    made = [values(x * 2 + 1) for x in ndd.ExternalSource(items).captured(2)]
    assert made == [[2 * k + 1, 2 * k + 3] for k in range(6)]
    pairs = ndd.ExternalSource([(k, 2 * k) for k in range(4)], num_outputs=2)
    assert [values(a + b) for a, b in pairs.captured(2)] == [[3 * k] * 2 for k in range(4)]


def test_invariant_leaves_other_values_alone() -> None:
    plain = [1, 2]
    assert ndd.capture.invariant(plain) is plain
    assert ndd.capture.invariant(3) == 3
    marked = ndd.capture.invariant(ndd.batch([1, 2]))
    assert (type(marked), marked.invariant) == (ndd.Batch, True)
