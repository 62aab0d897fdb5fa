"""A real Triton server answers with a model that was written; it comes with nvidia-pytriton, if installed."""

import importlib.util
import io
import os
import shutil
import socket
import subprocess
import sys
import sysconfig
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from dali_run.pipelines.serve.triton import make_model, write_model

FOUND = importlib.util.find_spec("pytriton")


def knows_numpy_2() -> bool:
    """Whether the server's Python backend can read tensors with NumPy 2. One that was compiled for NumPy 1 (pybind11
    before 2.12, as in nvidia-pytriton 0.5.7) takes 0 bytes from one element to the next: all are the first one."""
    assert FOUND is not None
    assert FOUND.origin is not None
    version = f"{sys.version_info.major}.{sys.version_info.minor}"
    stubs = Path(FOUND.origin).parent / "tritonserver" / "python_backend_stubs"
    return b"numpy._core" in (stubs / version / "triton_python_backend_stub").read_bytes()


pytestmark = [
    pytest.mark.skipif(FOUND is None, reason="nvidia-pytriton is not installed"),
    pytest.mark.skipif(FOUND is not None and not knows_numpy_2(), reason="this Triton server is compiled for NumPy 1"),
    pytest.mark.filterwarnings("ignore"),  # of the client's
]
SPEC = """
version: 1
pipeline: {batch_size: 4, num_threads: 2, device: cpu}
graph:
  - {op: readers.file, file_root: nowhere, out: [encoded, labels]}
  - {op: decoders.image, in: encoded, out: images}
  - {op: resize, in: images, size: [8, 6], out: images}
outputs: {image: images}
"""


def free_ports(n: int) -> list[int]:
    sockets = [socket.socket() for _ in range(n)]
    for s in sockets:
        s.bind(("127.0.0.1", 0))
    ports = [s.getsockname()[1] for s in sockets]
    for s in sockets:
        s.close()
    return ports


@pytest.fixture(scope="module")
def client(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    import tritonclient.http

    assert FOUND is not None
    assert FOUND.origin is not None
    here, root = tmp_path_factory.mktemp("triton"), Path(FOUND.origin).parent / "tritonserver"
    (here / "spec.yaml").write_text(SPEC)
    write_model(make_model(str(here / "spec.yaml"), "pictures", strings=["encoded"]), here / "models")
    model = here / "models" / "pictures" / "1" / "model.py"
    paths = [str(Path(__file__).parents[3]), *(p for p in sys.path if "site-packages" in p)]
    model.write_text(f"import sys\nsys.path[:0] = {paths!r}\n{model.read_text()}")  # its Python is another one
    shutil.copytree(root / "backends", here / "backends")
    version = f"{sys.version_info.major}.{sys.version_info.minor}"
    shutil.copy(root / "python_backend_stubs" / version / "triton_python_backend_stub", here / "backends" / "python")
    http, grpc, metrics = free_ports(3)
    libraries = [str(sysconfig.get_config_var("LIBDIR")), str(root.parents[1] / "nvidia_pytriton.libs")]
    with (here / "log").open("w") as log:
        server = subprocess.Popen(
            [
                root / "bin" / "tritonserver", "--model-repository", here / "models",
                "--backend-directory", here / "backends", "--http-port", str(http), "--grpc-port", str(grpc),
                "--metrics-port", str(metrics),
            ],
            env={**os.environ, "LD_LIBRARY_PATH": ":".join(libraries)}, stdout=log, stderr=subprocess.STDOUT,
        )  # fmt: skip
    try:
        made = tritonclient.http.InferenceServerClient(f"127.0.0.1:{http}")
        for _ in range(240):
            assert server.poll() is None, (here / "log").read_text()[-4000:]
            try:
                if made.is_model_ready("pictures"):
                    break
            except OSError:
                pass
            time.sleep(0.5)
        yield made
        made.close()
    finally:
        server.terminate()
        server.wait(60)


def ask(client: Any, *files: bytes) -> Any:
    import tritonclient.http

    given = tritonclient.http.InferInput("encoded", [len(files), 1], "BYTES")
    given.set_data_from_numpy(np.array([[f] for f in files], np.object_))
    return client.async_infer("pictures", [given])


def png(value: int) -> bytes:
    file = io.BytesIO()
    Image.fromarray(np.full((20 + value, 30, 3), value, np.uint8)).save(file, "PNG")
    return file.getvalue()


def test_requests_in_flight_together(client: Any) -> None:
    from tritonclient.utils import InferenceServerException

    waiting = [ask(client, png(1), png(2)), ask(client, b"no picture"), ask(client, png(3))]
    first = waiting[0].get_result().as_numpy("image")
    with pytest.raises(InferenceServerException, match=r"sample 0: decoders\.image"):
        waiting[1].get_result()
    assert first.shape == (2, 8, 6, 3)
    assert first[:, 0, 0, 0].tolist() == [1, 2]
    assert waiting[2].get_result().as_numpy("image").max() == 3
    assert client.get_model_config("pictures")["max_batch_size"] == 4
