"""An HTTP proxy before a storage server, which counts the requests of a job and disturbs the N-th.

It passes requests on as they came, with their Host: S3 signs it, and the GCS emulator names itself by it. Before the
GCS emulator, which ignores preconditions, it enforces `ifGenerationMatch`.
"""

import http.client
import http.server
import json
import re
import socket
import sys
import threading
import time
import urllib.parse
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from typing import Literal

Disturbance = Literal["none", "drop", "cut request", "lose answer", "cut body", "503", "delay", "kill"]
"""What happens to the N-th request.

drop: the connection is closed, the request goes nowhere. cut request: the server gets half of its body. lose answer:
the request takes effect, and its answer does not arrive; cut body: half of it does. 503: that is the
answer. delay: for `PAUSE` seconds. kill: the job is killed.
"""
PAUSE = 0.3
"""Seconds."""
_HOP = ("connection", "keep-alive", "transfer-encoding", "expect", "proxy-connection")
_WRITES = ("POST", "PUT", "DELETE", "PATCH")


@dataclass(frozen=True, slots=True)
class _Answer:
    status: int
    reason: str
    headers: tuple[tuple[str, str], ...]
    body: bytes


@dataclass
class Proxy:
    """A proxy on loopback.

    Attributes:
        upstream: the port of the server.
        preconditions: enforce GCS's.
        kill: kills the job.
        port: where the proxy listens.
        count: requests since `arm`.
        seen: what was disturbed since then: method and path.
    """

    upstream: int
    preconditions: bool = False
    kill: Callable[[], None] = lambda: None
    port: int = 0
    count: int = 0
    seen: list[str] = field(default_factory=list)
    _kind: Disturbance = "none"
    _at: int = 0
    _every: int = 0
    _busy: int = 0
    _uploads: dict[str, tuple[str, str]] = field(default_factory=dict)
    _counting: threading.Condition = field(default_factory=threading.Condition)
    _writing: threading.RLock = field(default_factory=threading.RLock)

    def arm(self, kind: Disturbance = "none", at: int = 0, every: int = 0) -> None:
        """Counts from 1 again, and disturbs the N-th request; with `every`, after it each that is so many later."""
        with self._counting:
            self.count, self._kind, self._at, self._every, self.seen = 0, kind, at, every, []

    def settle(self) -> None:
        """Waits until no request is on its way: those of a killed job, too."""
        with self._counting:
            if not self._counting.wait_for(lambda: self._busy == 0, 30):
                raise AssertionError("a request is on its way for half a minute")

    @contextmanager
    def _counted(self, what: str) -> Iterator[Disturbance]:
        with self._counting:
            self.count += 1
            self._busy += 1
            later = self.count - self._at
            hit = later == 0 or (later > 0 and self._every > 0 and later % self._every == 0)
            kind = self._kind if hit else "none"
            if hit:
                self.seen.append(what)
        try:
            yield kind
        finally:
            with self._counting:
                self._busy -= 1
                self._counting.notify_all()

    def answer(self, method: str, path: str, headers: Mapping[str, str], body: bytes) -> _Answer:
        """The server's answer; with `preconditions`, 412 in place of a request whose precondition does not hold."""
        if not self.preconditions:
            return self._forward(method, path, headers, body)
        parts = urllib.parse.urlsplit(path)
        query = {name: values[0] for name, values in urllib.parse.parse_qs(parts.query).items()}
        name, wanted = _object(parts.path, query, body), query.get("ifGenerationMatch")
        upload = query.get("upload_id")
        if upload is not None and upload in self._uploads:
            name, wanted = self._uploads[upload]
        if wanted is None and method not in _WRITES:
            return self._forward(method, path, headers, body)
        with self._writing:
            if wanted is not None and name is not None and self._version(name) != wanted:
                text = json.dumps({"error": {"code": 412, "message": "Precondition Failed"}}).encode()
                return _Answer(412, "Precondition Failed", (("Content-Type", "application/json"),), text)
            found = self._forward(method, path, headers, body)
            location = dict(found.headers).get("Location", "")
            if wanted is not None and name is not None and "upload_id=" in location:
                made = urllib.parse.parse_qs(urllib.parse.urlsplit(location).query)["upload_id"][0]
                self._uploads[made] = name, wanted
            return found

    def _version(self, name: str) -> str:
        bucket, _, rest = name.partition("/")
        path = f"/storage/v1/b/{bucket}/o/{urllib.parse.quote(rest, safe='')}"
        found = self._forward("GET", path, {"Host": f"127.0.0.1:{self.upstream}"}, b"")
        return str(json.loads(found.body)["generation"]) if found.status == 200 else "0"

    def _forward(self, method: str, path: str, headers: Mapping[str, str], body: bytes) -> _Answer:
        connection = http.client.HTTPConnection("127.0.0.1", self.upstream, timeout=60)
        try:
            _send(connection, method, path, headers, len(body))
            connection.send(body)
            found = connection.getresponse()
            return _Answer(found.status, found.reason, tuple(found.getheaders()), found.read())
        finally:
            connection.close()

    def cut_request(self, method: str, path: str, headers: Mapping[str, str], body: bytes) -> None:
        """Sends half of a request's body to the server."""
        connection = http.client.HTTPConnection("127.0.0.1", self.upstream, timeout=60)
        _send(connection, method, path, headers, len(body))
        connection.send(body[: len(body) // 2])
        connection.sock.shutdown(socket.SHUT_WR)
        with suppress(OSError, http.client.HTTPException):  # it may answer, or not
            connection.getresponse().read()
        connection.close()


def _send(
    connection: http.client.HTTPConnection, method: str, path: str, headers: Mapping[str, str], size: int
) -> None:
    connection.putrequest(method, path, skip_host=True, skip_accept_encoding=True)
    for name, value in headers.items():
        if name.lower() not in (*_HOP, "content-length"):
            connection.putheader(name, value)
    if size or method in ("POST", "PUT"):
        connection.putheader("Content-Length", str(size))
    connection.endheaders()


def _object(path: str, query: Mapping[str, str], body: bytes) -> str | None:
    """`bucket/name` of the object that a request to GCS is about."""
    found = re.search(r"/b/([^/]+)/o(?:/([^/]+))?$", path)
    if found is None:
        return None
    name = found[2] and urllib.parse.unquote(found[2])
    if name is None:
        name = query.get("name")
    if name is None and "upload_id" not in query and (start := body.find(b"{")) >= 0:
        text = body[start:].decode("utf-8", "replace")
        name = json.JSONDecoder().raw_decode(text)[0].get("name")
    return None if name is None else f"{found[1]}/{name}"


class _Handler(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    timeout = 120
    proxy: Proxy

    def _handle(self) -> None:
        body, path = self._body(), self.path
        headers = dict(self.headers.items())
        with self.proxy._counted(f"{self.command} {path}") as kind:
            if kind in ("drop", "kill") or (kind == "cut request" and not body):
                if kind == "kill":
                    self.proxy.kill()
                self._hang_up()
                return
            if kind == "cut request":
                self.proxy.cut_request(self.command, path, headers, body)
                self._hang_up()
                return
            if kind.startswith("503"):
                self._give(_Answer(503, "Service Unavailable", (), b""))
                return
            if kind == "delay":
                time.sleep(PAUSE)
            found = self.proxy.answer(self.command, path, headers, body)
        if kind in ("lose answer", "cut body"):
            head, content = self._bytes(found)
            self.wfile.write(b"" if kind == "lose answer" else head + content[: len(content) // 2])
            self._hang_up()
            return
        self._give(found)

    do_GET = do_HEAD = do_PUT = do_POST = do_DELETE = do_PATCH = _handle

    def _body(self) -> bytes:
        if "chunked" in self.headers.get("Transfer-Encoding", ""):
            parts = []
            while size := int(self.rfile.readline().split(b";")[0], 16):
                parts.append(self.rfile.read(size))
                self.rfile.readline()
            self.rfile.readline()
            return b"".join(parts)
        return self.rfile.read(int(self.headers.get("Content-Length", 0)))

    def _bytes(self, answer: _Answer) -> tuple[bytes, bytes]:
        lines = [f"HTTP/1.1 {answer.status} {answer.reason}"]
        named = [(name, value) for name, value in answer.headers if name.lower() not in _HOP]
        if self.command != "HEAD" and answer.status not in (204, 304):
            named = [(name, value) for name, value in named if name.lower() != "content-length"]
            named.append(("Content-Length", str(len(answer.body))))
        lines += [f"{name}: {value}" for name, value in named]
        body = b"" if self.command == "HEAD" else answer.body
        return "\r\n".join([*lines, "", ""]).encode("latin-1"), body

    def _give(self, answer: _Answer) -> None:
        with suppress(OSError):  # the job is gone
            self.wfile.write(b"".join(self._bytes(answer)))

    def _hang_up(self) -> None:
        self.close_connection = True
        with suppress(OSError):
            self.connection.shutdown(socket.SHUT_RDWR)

    def log_message(self, format: str, *given: object) -> None:
        """Nothing."""


class _Server(http.server.ThreadingHTTPServer):
    daemon_threads = True
    request_queue_size = 128

    def handle_error(self, request: object, client_address: object) -> None:
        if not isinstance(sys.exception(), OSError):  # a killed job closes its connections
            super().handle_error(request, client_address)  # type: ignore[arg-type]


@contextmanager
def proxy_before(upstream: int, preconditions: bool) -> Iterator[Proxy]:
    """A proxy before the server on a port, while the block lasts."""
    made = Proxy(upstream, preconditions)
    handler = type("Handler", (_Handler,), {"proxy": made})
    with _Server(("127.0.0.1", 0), handler) as server:
        made.port = server.server_address[1]
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True)
        thread.start()
        try:
            yield made
        finally:
            server.shutdown()
            thread.join()
