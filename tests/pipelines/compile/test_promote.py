"""CPU operators whose results only the GPU reads run on the GPU, if that changes no bit."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from dali_run import fn, pipeline_def, types
from dali_run.pipelines.compile.place import Target
from dali_run.pipelines.compile.plan import Plan, compile_graph
from dali_run.pipelines.graph.builder import GraphBuilder
from dali_run.pipelines.graph.nodes import Edge
from dali_run.pipelines.plugins import load_operators

GPU = Target("gpu", auto_mixed=False)


def compiled(b: GraphBuilder, **outputs: Edge) -> Plan:
    return compile_graph(b.build(outputs), GPU, promoting=True)


def stages(plan: Plan) -> dict[str, str]:
    return {n.name: n.stage for n in plan.graph.nodes}


@pytest.fixture
def files() -> tuple[GraphBuilder, Edge]:
    load_operators()
    b = GraphBuilder()
    return b, b.add("readers.file", (), {"file_root": "."}, name="files")[0]


@pytest.mark.parametrize("device", ["auto", "cpu"])
def test_a_decoder_before_gpu_moves_and_the_upload_goes(files: tuple[GraphBuilder, Edge], device: Any) -> None:
    b, data = files
    signal, _ = b.add("decoders.audio", [data], {"downmix": True}, device=device, name="decode")
    (signal,) = b.add("copy", [signal], device="gpu", name="upload")
    (x,) = b.add("preemphasis_filter", [signal], name="filter")
    plan = compiled(b, x=x)
    assert stages(plan) == {"files": "cpu", "decode": "mixed", "filter": "gpu"}
    assert plan.promoted == ("decode",) == tuple(plan.describe()["promoted"])


def test_a_chain_moves_as_a_whole(files: tuple[GraphBuilder, Edge]) -> None:
    b, data = files
    (x,) = b.add("decoders.image", [data], name="decode")
    (x,) = b.add("resize", [x], {"size": [32, 32]}, name="resize")
    (x,) = b.add("copy", [x], device="gpu")
    plan = compiled(b, x=x)
    assert plan.promoted == ("decode", "resize")
    assert stages(plan) == {"files": "cpu", "decode": "mixed", "resize": "gpu"}, (
        "not joined, which would round less often"
    )
    decoder: Any = plan.graph.nodes[1].op
    assert decoder.jpeg_fancy_upsampling, "the CPU interpolates chroma, so does the GPU in its place"


@pytest.mark.parametrize("reader", ["output", "cpu operator", "argument"])
def test_a_result_that_the_host_reads_stays(files: tuple[GraphBuilder, Edge], reader: str) -> None:
    b, data = files
    signal, rate = b.add("decoders.audio", [data], name="decode")
    (x,) = b.add("copy", [signal], device="gpu", name="upload")
    outputs = {"x": x}
    if reader == "output":
        outputs["rate"] = rate
    elif reader == "cpu operator":
        (outputs["y"],) = b.add("copy", [signal], device="cpu", name="host")
    else:
        (outputs["y"],) = b.add("preemphasis_filter", [x], {"preemph_coeff": rate}, name="filter")
    plan = compiled(b, **outputs)
    assert plan.promoted == ()
    assert stages(plan)["decode"] == "cpu"


@pytest.mark.parametrize(
    ("op", "arguments"),
    [
        ("decoders.audio", {"sample_rate": 8000}),
        ("decoders.image", {"use_fast_idct": True}),
        ("decoders.image", {"dtype": types.FLOAT}),
    ],
)
def test_results_that_differ_on_a_gpu_stay(files: tuple[GraphBuilder, Edge], op: str, arguments: Any) -> None:
    b, data = files
    x = b.add(op, [data], arguments)[0]
    (x,) = b.add("copy", [x], device="gpu")
    assert compiled(b, x=x).promoted == ()


def test_what_has_its_input_on_the_host_stays(files: tuple[GraphBuilder, Edge]) -> None:
    """An operator moves along with a decoder; alone, it would only change what is uploaded."""
    b, data = files
    (x,) = b.add("decoders.image", [data], {"dtype": types.FLOAT}, name="decode")
    (x,) = b.add("resize", [x], {"size": [32, 32]}, name="resize")
    (x,) = b.add("copy", [x], device="gpu", name="upload")
    assert stages(compiled(b, x=x)) == {"files": "cpu", "decode": "cpu", "resize": "cpu", "upload": "gpu"}


@pipeline_def(batch_size=6, num_threads=2, device_id=0, on_error="skip")
def sounds(root: str) -> Any:
    data, label = fn.readers.file(file_root=root)
    signal, _ = fn.decoders.audio(data, dtype=types.INT16)
    return signal.gpu(), label


@pipeline_def(batch_size=25, num_threads=2, device_id=0, on_error="skip")
def images(root: str) -> Any:
    data, label = fn.readers.file(file_root=root)
    whole = fn.decoders.image(data, device="cpu")
    small = fn.resize(fn.decoders.image_random_crop(data, device="cpu", seed=3), size=[40, 50], device="cpu")
    return whole.gpu(), small.gpu(), label


@pytest.fixture
def recordings(tmp_path: Path) -> Path:
    """WAV, FLAC and Ogg Vorbis of several lengths and numbers of channels."""
    soundfile = pytest.importorskip("soundfile")
    rng = np.random.default_rng(3)
    (tmp_path / "a").mkdir()
    for i, (kind, channels) in enumerate([("wav", 1), ("flac", 2), ("ogg", 1), ("flac", 1), ("wav", 2), ("wav", 1)]):
        signal = np.cumsum(rng.integers(-300, 300, (2000 + 517 * i, channels)), 0).clip(-32768, 32767)
        soundfile.write(tmp_path / "a" / f"{i}.{kind}", signal.astype(np.int16), 16000)
    return tmp_path


def assert_equal_on_both(program: Any, root: Path) -> None:
    def results(promote: bool) -> list[np.ndarray[Any, Any]]:
        outputs = [out.as_cpu() for out in program(str(root), promote_to_gpu=promote).run()]
        return [np.asarray(out.at(i)) for out in outputs for i in range(len(out))]

    moved, stayed = results(True), results(False)
    assert len(moved) == len(stayed) >= 12
    for a, b in zip(moved, stayed, strict=True):
        np.testing.assert_array_equal(a, b)


@pytest.mark.gpu
def test_sounds_are_equal_to_the_bit(recordings: Path) -> None:
    assert_equal_on_both(sounds, recordings)


@pytest.mark.gpu
def test_images_are_equal_to_the_bit(pictures: Path) -> None:
    assert_equal_on_both(images, pictures)
