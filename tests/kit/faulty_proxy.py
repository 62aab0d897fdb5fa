"""A proxy in front of an S3 server that fails, stalls, truncates and reorders answers, determined by a seed."""

from __future__ import annotations

import http.client
import random
import socket
import threading
import time
from collections import Counter
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import urlsplit

BUSY = b"<?xml version='1.0'?><Error><Code>SlowDown</Code><Message>Please reduce your request rate.</Message></Error>"


class FaultyProxy:
    """Proxy that forwards requests to ``target``, except one in ``every``, which meets a fault. A context manager;
    ``url`` is the proxy's own."""

    def __init__(self, target: str, every: int, seed: int = 0) -> None:
        self.faults: Counter[str] = Counter()
        self.requests = 0
        draw, lock = random.Random(seed), threading.Lock()
        place = urlsplit(target)
        outer = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def log_message(self, *_: Any) -> None: ...

            def forward(self) -> None:
                with lock:
                    outer.requests += 1
                    fault = (
                        draw.choice(("busy", "reset", "late reset", "stall", "cut", "slow"))
                        if every and draw.randrange(every) == 0
                        else ""
                    )
                    pause = draw.random() * 0.02  # so that answers overtake each other
                    outer.faults[fault] += bool(fault)
                size = int(self.headers.get("Content-Length") or 0)
                body = self.rfile.read(size) if size else None
                if "chunked" in (self.headers.get("Transfer-Encoding") or ""):
                    body = self.chunks()
                time.sleep(pause)
                if fault == "busy":
                    self.answer(503, [("Content-Type", "application/xml")], BUSY)
                    return
                if fault == "reset":
                    self.hang_up()
                    return
                if fault == "stall":
                    time.sleep(1.5)
                server = http.client.HTTPConnection(place.hostname or "", place.port)
                headers = {k: v for k, v in self.headers.items() if k.lower() not in ("transfer-encoding",)}
                if body is not None:
                    headers["Content-Length"] = str(len(body))
                server.request(self.command, self.path, body, headers)
                found = server.getresponse()
                data = found.read()
                told = [
                    (k, v)
                    for k, v in found.getheaders()
                    if k.lower() not in ("transfer-encoding", "content-length", "connection")
                ]
                server.close()
                if fault == "late reset":  # the request succeeded, but the client gets no answer
                    self.hang_up()
                    return
                if fault == "cut" and len(data) > 1:
                    self.answer(found.status, told, data[: len(data) // 2], len(data))
                    self.hang_up()
                    return
                if fault == "slow":
                    time.sleep(0.5)
                length = int(found.getheader("Content-Length") or len(data)) if self.command == "HEAD" else len(data)
                self.answer(found.status, told, data, length)

            def chunks(self) -> bytes:
                data = b""
                while n := int(self.rfile.readline().split(b";")[0], 16):
                    data += self.rfile.read(n)
                    self.rfile.readline()
                self.rfile.readline()
                return data

            def answer(
                self, status: int, headers: list[tuple[str, str]], data: bytes, length: int | None = None
            ) -> None:
                self.send_response_only(status)
                for name, value in headers:
                    self.send_header(name, value)
                self.send_header("Content-Length", str(len(data) if length is None else length))
                self.end_headers()
                if self.command != "HEAD":
                    self.wfile.write(data)

            def hang_up(self) -> None:
                self.close_connection = True
                self.wfile.flush()
                self.connection.shutdown(socket.SHUT_RDWR)

        for method in ("GET", "PUT", "POST", "DELETE", "HEAD"):
            setattr(Handler, f"do_{method}", Handler.forward)

        class Server(ThreadingHTTPServer):
            daemon_threads = True

            def handle_error(self, *_: Any) -> None: ...

        self._server = Server(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self._server.server_address[1]}"

    def __enter__(self) -> FaultyProxy:
        threading.Thread(target=self._server.serve_forever, daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        self._server.shutdown()
        self._server.server_close()
