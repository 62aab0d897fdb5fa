"""Completion, hover and diagnostics of the real YAML language server, which editors use, on specs and our schema.

Needs node, and the server: `make editors`, or its program in the environment variable YAML_LANGUAGE_SERVER.
"""

from __future__ import annotations

import json
import os
import queue
import shutil
import subprocess
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from dali_run.pipelines.spec.json_schema import schema_text, spec_schema

ROOT = Path(__file__).parents[3]
BUILT = ROOT / "build" / "editors" / "node_modules" / "yaml-language-server" / "bin" / "yaml-language-server"


class Server:
    """A language server on its standard streams."""

    def __init__(self, program: str, folder: Path) -> None:
        self._process = subprocess.Popen(
            ["node", program, "--stdio"], stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL
        )
        self._folder = folder
        self._messages: queue.Queue[dict[str, Any]] = queue.Queue()
        self._number = 0
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()
        snippets = {"textDocument": {"completion": {"completionItem": {"snippetSupport": True}}}}
        self.call("initialize", {"processId": None, "rootUri": folder.as_uri(), "capabilities": snippets})
        self._send({"method": "initialized", "params": {}})

    def _send(self, message: dict[str, Any]) -> None:
        body = json.dumps({"jsonrpc": "2.0", **message}).encode()
        assert self._process.stdin is not None
        self._process.stdin.write(b"Content-Length: %d\r\n\r\n" % len(body) + body)
        self._process.stdin.flush()

    def _read(self) -> None:
        stream = self._process.stdout
        assert stream is not None
        while header := stream.readline():
            size = 0
            while header.strip():
                name, _, value = header.partition(b":")
                size = int(value) if name.lower() == b"content-length" else size
                header = stream.readline()
            self._messages.put(json.loads(stream.read(size)))

    def until(self, found: Any) -> dict[str, Any]:
        """The next message for which ``found`` is true; the server's own questions are answered meanwhile."""
        while True:
            message = self._messages.get(timeout=60)
            if "id" in message and "method" in message:
                items = message.get("params", {}).get("items", []) if message["params"] else []
                self._send({"id": message["id"], "result": [{}] * len(items) or None})
            elif found(message):
                return message

    def call(self, method: str, params: dict[str, Any]) -> Any:
        """The result of a request."""
        self._number += 1
        number = self._number
        self._send({"id": number, "method": method, "params": params})
        return self.until(lambda m: m.get("id") == number)["result"]

    def open(self, text: str) -> tuple[dict[str, Any], dict[str, int]]:
        """A document with ``text`` and the place of its ``|``."""
        before, _, after = text.partition("|")
        self._number += 1
        document = {"uri": (self._folder / f"{self._number}.yaml").as_uri()}
        opened = {**document, "languageId": "yaml", "version": 1, "text": before + after}
        self._send({"method": "textDocument/didOpen", "params": {"textDocument": opened}})
        return document, {"line": before.count("\n"), "character": len(before) - before.rfind("\n") - 1}

    def complete(self, text: str) -> list[str]:
        """The server's offers at the ``|``."""
        document, position = self.open(text)
        found = self.call("textDocument/completion", {"textDocument": document, "position": position})
        return [item["label"] for item in (found["items"] if isinstance(found, dict) else found)]

    def hover(self, text: str) -> str:
        """The server's text at the ``|``."""
        document, position = self.open(text)
        found = self.call("textDocument/hover", {"textDocument": document, "position": position})
        return str(found["contents"]["value"]) if found else ""

    def problems(self, text: str) -> list[str]:
        """The messages of what the server underlines."""
        document, _ = self.open(text + "|")

        def ours(m: dict[str, Any]) -> bool:
            return m.get("method") == "textDocument/publishDiagnostics" and m["params"]["uri"] == document["uri"]

        return [d["message"] for d in self.until(ours)["params"]["diagnostics"]]

    def close(self) -> None:
        self._process.kill()
        self._reader.join()
        for stream in (self._process.stdin, self._process.stdout):
            assert stream is not None
            stream.close()
        self._process.wait()


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    program = os.environ.get("YAML_LANGUAGE_SERVER") or (str(BUILT) if BUILT.exists() else None)
    program = program or shutil.which("yaml-language-server")
    if program is None or shutil.which("node") is None:
        pytest.skip("needs node and the YAML language server (make editors)")
    folder = tmp_path_factory.mktemp("editor")
    (folder / "spec.schema.json").write_text(schema_text(spec_schema()))
    made = Server(program, folder)
    yield made
    made.close()


HEAD = "# yaml-language-server: $schema=./spec.schema.json\nversion: 1\n"
STEP = HEAD + "graph:\n  - {}\noutputs: {{x: x}}\n"


@pytest.mark.parametrize(
    ("text", "offered", "not_offered"),
    [
        (HEAD + "|", {"graph", "outputs", "pipeline", "write"}, {"version", "op"}),
        (HEAD + "pipeline: {b|}\n", {"batch_size", "num_threads", "seed", "device"}, {"op"}),
        (HEAD + "pipeline: {batch_size: 3, d|}\n", {"device"}, {"batch_size"}),
        (HEAD + "pipeline: {device: |}\n", {"auto", "cpu", "gpu"}, set()),
        (STEP.format("|"), {"op"}, {"resize_shorter", "file_root"}),
        (STEP.format("{|}"), {"op"}, {"resize_shorter", "file_root"}),
        (STEP.format("{op: |}"), {"resize", "readers.file", "decoders.image"}, {"webdataset"}),
        (STEP.format("{op: res|}"), {"resize", "resize_crop_mirror"}, set()),
        (STEP.format("{op: resize, r|}"), {"in", "out", "resize_shorter"}, {"op", "file_root", "radius"}),
        (STEP.format("{op: resize, in: x, t|}"), {"out"}, {"temp_buffer_hint", "minibatch_size"}),
        (STEP.format("{op: resize, in: images, r|}"), {"out", "resize_shorter"}, {"in", "op"}),
        (STEP.format("{op: resize, in: images, r|, out: x}"), {"resize_shorter"}, {"in", "out"}),
        (STEP.format("{op: resize, in: images, r|"), {"resize_shorter"}, {"in"}),
        (STEP.format("{op: resize, interp_type: |}"), {"LINEAR", "CUBIC"}, {"RGB"}),
        (STEP.format("op: resize\n    |"), {"in", "out", "resize_shorter"}, {"op", "file_root"}),
        (HEAD + "write: {writer: |}\n", {"webdataset", "tfrecord", "parquet"}, {"resize"}),
        (HEAD + "write: {writer: webdataset, p|}\n", {"path", "shard", "fields"}, {"writer"}),
        (HEAD + "write: {writer: lmdb, path: x, fields: {a: {e|}}}\n", {"encode", "quality"}, {"path"}),
        (HEAD + "write: {writer: lmdb, path: x, fields: {a: {encode: |}}}\n", {"jpeg", "keep"}, set()),
    ],
)  # fmt: skip
def test_completion(text: str, offered: set[str], not_offered: set[str], server: Server) -> None:
    found = set(server.complete(text))
    assert offered <= found
    assert not not_offered & found


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        (STEP.format("{op: re|size, in: images, size: 2, out: x}"), "Resize images, sequences and volumes."),
        (STEP.format("{op: resize, in: images, si|ze: 2, out: x}"), "output size, one number for each spatial axis"),
        (HEAD + "write: {writer: web|dataset, path: x}\n", "Tar files for webdataset"),
        (HEAD + "wri|te: {writer: webdataset, path: x}\n", "Tar files for webdataset"),
    ],
)
def test_hover_shows_the_help_and_no_list_of_everything(text: str, shown: str, server: Server) -> None:
    found = server.hover(text)
    assert shown in found
    assert len(found) < 1000


@pytest.mark.parametrize("config", sorted((ROOT / "configs").glob("*.yaml")), ids=lambda p: p.stem)
def test_configs_name_their_schema_and_nothing_is_underlined(config: Path, server: Server) -> None:
    assert config.read_text().startswith(HEAD.splitlines()[0])
    assert server.problems(config.read_text()) == []


@pytest.mark.parametrize(
    ("step", "problem"),
    [
        ("{op: resize, in: images, sise: 3, out: x}", "Property sise is not allowed."),
        ("{op: resize, in: images, size: big, out: x}", "Expected one of number, boolean"),
        ("{op: resize, in: images, size: 3}", 'Missing property "out"'),
        ("{op: resise, in: images, out: x}", '"resize"'),
    ],
)
def test_slips_are_underlined(step: str, problem: str, server: Server) -> None:
    assert problem in " ".join(server.problems(STEP.format(step)))
