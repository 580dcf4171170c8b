"""A server on this machine that can be told to misbehave, for the tests of downloads."""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer


@dataclass
class Server:
    """What a server has, and how it misbehaves."""

    files: dict[str, bytes] = field(default_factory=dict)
    tags: dict[str, str] = field(default_factory=dict)
    cut: list[int] = field(default_factory=list)  # bytes after which answers break off, in turn
    ranges: bool = True
    shift: list[int] = field(default_factory=list)  # bytes by which ranges are wrong, in turn
    status: list[int] = field(default_factory=list)  # answers to give before any file
    delay: float = 0.0
    sent: Counter[str] = field(default_factory=Counter)
    asked: list[tuple[str, str | None, str | None]] = field(default_factory=list)
    url: str = ""

    def add(self, name: str, content: bytes) -> str:
        self.files[name] = content
        self.tags[name] = '"one"'
        return f"{self.url}/{name}"


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: ThreadingHTTPServer

    def log_message(self, *_: object) -> None:
        pass

    def do_GET(self) -> None:
        state: Server = self.server.state  # type: ignore[attr-defined]
        name = self.path.lstrip("/")
        wanted, condition = self.headers.get("Range"), self.headers.get("If-Range")
        state.asked.append((name, wanted, condition))
        if state.status or name not in state.files:
            self.send_response(state.status.pop(0) if state.status else 404)
            self.send_header("Content-Length", "0")
            self.end_headers()
            return
        content, tag, start = state.files[name], state.tags.get(name), 0
        if wanted and state.ranges and condition in (None, tag):
            start = int(wanted.removeprefix("bytes=").rstrip("-"))
            start += state.shift.pop(0) if state.shift else 0
            if start >= len(content):
                self.send_response(416)
                self.send_header("Content-Length", "0")
                self.end_headers()
                return
        body = content[start:]
        self.send_response(206 if start else 200)
        if start:
            whole = len(content)
            self.send_header("Content-Range", f"bytes {start}-{whole - 1}/{whole}")
        if tag:
            self.send_header("ETag", tag)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        if state.cut:
            body = body[: state.cut.pop(0)]
            self.close_connection = True
        for place in range(0, len(body), 1 << 15):
            piece = body[place : place + (1 << 15)]
            # Counted first: the other side may end its test as soon as it has the last piece.
            state.sent[name] += len(piece)
            try:
                self.wfile.write(piece)
            except OSError:  # the other side was interrupted
                return
            time.sleep(state.delay)


@contextmanager
def serve() -> Iterator[Server]:
    """A server without files yet, until the block ends."""
    http = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    http.daemon_threads = True
    state = Server(url=f"http://127.0.0.1:{http.server_port}")
    http.state = state  # type: ignore[attr-defined]
    thread = threading.Thread(target=http.serve_forever, args=(0.01,), daemon=True)
    thread.start()
    yield state
    http.shutdown()
    http.server_close()
    thread.join(2)
