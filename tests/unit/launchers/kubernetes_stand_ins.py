"""A fake API server over real HTTP: it stores objects, and sends configured responses.

It has no controllers: tests put the objects as a cluster would leave them. tests/k8s has controllers.
"""

from __future__ import annotations

import json
import re
import socket
import threading
from collections.abc import Iterable
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

from kubernetes_bodies import NOW, Body, job

from dist_train.jobs import JobHandle

# The job of the fixture `submitted`.
DIGITS = JobHandle("kubernetes:job/default/digits")
JOBS = "/apis/batch/v1/namespaces/default/jobs"
PODS = "/api/v1/namespaces/default/pods"
SERVICES = "/api/v1/namespaces/default/services"
EVENTS = "/api/v1/namespaces/default/events"
CLAIMS = "/api/v1/namespaces/default/persistentvolumeclaims"
_DEFAULT_NAMESPACE = "/api/v1/namespaces/default"
_COLLECTION = re.compile(r"(/api/v1|/apis/[^/]+/[^/]+)/namespaces/[^/]+/[^/]+")
_INSTALLED = ("/api/v1/", "/apis/batch/v1/", "/apis/networking.k8s.io/v1/")


@dataclass(frozen=True)
class ReceivedRequest:
    """A request that was received."""

    method: str
    path: str
    query: dict[str, str]
    body: Any
    content_type: str = ""
    token: str = ""


@dataclass
class ConfiguredResponse:
    """A response instead of the usual one, `times` times (None: always)."""

    method: str
    path: str
    status: int
    body: Any
    headers: tuple[tuple[str, str], ...] = ()
    times: int | None = None


@dataclass
class Log:
    """A container's lines; `ended`: no more will follow. `cut`: the connection breaks after so many."""

    lines: list[tuple[str, str]] = field(default_factory=list)
    ended: bool = True
    cut: int | None = None


class Api:
    """The server; `url` is where it listens."""

    def __init__(self) -> None:
        self.objects: dict[str, Body] = {}
        self.requests: list[ReceivedRequest] = []
        self.responses: list[ConfiguredResponse] = []
        self.logs: dict[str, Log] = {}
        # One list of events, or a status object, for each watch in turn; then watches are held open.
        self.watches: list[Iterable[Body]] = []
        self.installed = list(_INSTALLED)
        self.date: str | None = None
        # Objects whose removal takes until the test removes them.
        self.lingering: set[str] = set()
        self.changed = threading.Condition()
        self.closing = False
        self._version = 100
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), _handler(self))
        self._server.daemon_threads = True
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.02,), daemon=True)
        self._thread.start()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self._server.server_port}"

    def close(self) -> None:
        """Stop the server and every open connection."""
        with self.changed:
            self.closing = True
            self.changed.notify_all()
        self._server.shutdown()
        self._server.server_close()
        self._thread.join(5)

    def answer(
        self,
        method: str,
        path: str,
        status: int,
        body: Any,
        headers: Body | None = None,
        times: int | None = None,
    ) -> None:
        """Send this response from now on; `path`: a regular expression for the whole path."""
        self.responses.insert(
            0, ConfiguredResponse(method, path, status, body, tuple((headers or {}).items()), times)
        )

    def refuse(
        self, method: str, path: str, status: int, message: str, reason: str = "", **more: Any
    ) -> None:
        """Respond with a Status object."""
        self.answer(method, path, status, status_object(status, message, reason, **more))

    def put(self, path: str, body: Body) -> Body:
        """Store an object as a controller would have created it."""
        self._version += 1
        head = body.setdefault("metadata", {})
        head.setdefault("uid", f"uid-{self._version}")
        head.setdefault("creationTimestamp", NOW)
        head["resourceVersion"] = str(self._version)
        with self.changed:
            self.objects[path] = body
            self.changed.notify_all()
        return body

    def bodies(self, method: str) -> list[Any]:
        """The bodies of the requests of this method, in order."""
        return [request.body for request in self.requests if request.method == method]

    def paths(self, method: str) -> list[str]:
        """Their paths."""
        return [request.path for request in self.requests if request.method == method]

    def create(self, collection: str, body: Body) -> tuple[int, Body]:
        path = f"{collection}/{body['metadata']['name']}"
        if path in self.objects:
            name = body["metadata"]["name"]
            return 409, status_object(409, f'{body["kind"]} "{name}" already exists', "AlreadyExists")
        return 201, self.put(path, json.loads(json.dumps(body)))

    def remove(self, path: str) -> tuple[int, Body]:
        found = self.objects.get(path)
        if found is None:
            return 404, not_found(path)
        if path in self.lingering:
            found["metadata"]["deletionTimestamp"] = NOW
            return 200, found
        with self.changed:
            del self.objects[path]
            self.changed.notify_all()
        return 200, found

    def find(self, collection: str, query: dict[str, str]) -> Body:
        inside = [body for path, body in self.objects.items() if path.rpartition("/")[0] == collection]
        wanted = dict(word.split("=", 1) for word in query.get("labelSelector", "").split(",") if word)
        chosen = [
            body
            for body in inside
            if all((body["metadata"].get("labels") or {}).get(key) == value for key, value in wanted.items())
        ]
        return {"kind": "List", "metadata": {"resourceVersion": str(self._version)}, "items": chosen}


def status_object(status: int, message: str, reason: str = "", **details: Any) -> Body:
    """The Status of an error response."""
    body: Body = {"kind": "Status", "apiVersion": "v1", "status": "Failure", "code": status}
    return {**body, "message": message, "reason": reason, "details": details}


def not_found(path: str) -> Body:
    plural, name = path.split("/")[-2:]
    return status_object(404, f'{plural} "{name}" not found', "NotFound", name=name, kind=plural)


def put(api: Api, *pods: Body) -> None:
    """Store these pods."""
    for body in pods:
        api.put(f"{PODS}/{body['metadata']['name']}", body)


def set_job(api: Api, **more: Any) -> None:
    """Write the job's status as its controller; the object keeps its uid."""
    head = api.objects[f"{JOBS}/digits"]["metadata"]
    api.put(f"{JOBS}/digits", {**job(**more), "metadata": head})


def write_kubeconfig(path: Path, servers: dict[str, str], token: str = "t0ken") -> None:
    """A context for each server, the first the current one."""
    names = list(servers)
    tree = {
        "apiVersion": "v1",
        "kind": "Config",
        "current-context": names[0],
        "clusters": [{"name": name, "cluster": {"server": url}} for name, url in servers.items()],
        "users": [{"name": "me", "user": {"token": token}}],
        "contexts": [{"name": name, "context": {"cluster": name, "user": "me"}} for name in names],
    }
    path.write_text(json.dumps(tree))  # JSON is YAML


def _handler(api: Api) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"
        disable_nagle_algorithm = True

        def log_message(self, *_: object) -> None:
            pass

        def date_time_string(self, timestamp: float | None = None) -> str:
            return api.date or super().date_time_string(timestamp)

        def do_GET(self) -> None:
            self._answer()

        do_POST = do_DELETE = do_PATCH = do_GET  # noqa: N815

        def _answer(self) -> None:
            parts = urlsplit(self.path)
            query = {key: values[-1] for key, values in parse_qs(parts.query).items()}
            length = int(self.headers.get("Content-Length") or 0)
            body = json.loads(self.rfile.read(length)) if length else None
            heads = (self.headers.get("Content-Type") or "", self.headers.get("Authorization") or "")
            request = ReceivedRequest(self.command, parts.path, query, body, *heads)
            api.requests.append(request)
            for response in list(api.responses):
                if response.method == request.method and re.fullmatch(response.path, request.path):
                    if response.times is not None:
                        response.times -= 1
                        if response.times == 0:
                            api.responses.remove(response)
                    if response.status == 0:
                        self._cut()  # no answer at all
                        return
                    self._send(response.status, response.body, response.headers)
                    return
            self._usual(request)

        def _usual(self, request: ReceivedRequest) -> None:
            if not request.path.startswith(tuple(api.installed)):
                self._send(404, "404 page not found\n", ())
            elif request.path.endswith("/log"):
                self._log(request)
            elif request.query.get("watch"):
                self._watch()
            elif request.method == "POST":
                self._send(*api.create(request.path, request.body), ())
            elif request.method == "DELETE":
                self._send(*api.remove(request.path), ())
            elif _COLLECTION.fullmatch(request.path):
                self._send(200, api.find(request.path, request.query), ())
            elif request.path not in api.objects and not request.path.startswith(
                "/api/v1/namespaces/default"
            ):
                self._send(404, not_found(request.path), ())
            elif request.path == _DEFAULT_NAMESPACE:
                self._send(200, {"kind": "Namespace", "metadata": {"name": "default"}}, ())
            elif request.path not in api.objects:
                self._send(404, not_found(request.path), ())
            else:
                found = api.objects[request.path]
                if request.method == "PATCH":
                    found["metadata"] |= request.body["metadata"]
                self._send(200, found, ())

        def _send(self, status: int, body: Any, headers: Iterable[tuple[str, str]]) -> None:
            content = body.encode() if isinstance(body, str) else json.dumps(body).encode()
            self.send_response(status)
            kind = "text/plain" if isinstance(body, str) else "application/json"
            for name, value in (("Content-Type", kind), ("Content-Length", str(len(content))), *headers):
                self.send_header(name, value)
            self.end_headers()
            self.wfile.write(content)

        def _cut(self) -> None:
            self.close_connection = True
            self.connection.shutdown(socket.SHUT_RDWR)

        def _begin_chunks(self) -> None:
            self.send_response(200)
            self.send_header("Transfer-Encoding", "chunked")
            self.end_headers()

        def _chunk(self, content: bytes) -> None:
            self.wfile.write(f"{len(content):x}\r\n".encode() + content + b"\r\n")
            self.wfile.flush()

        def _watch(self) -> None:
            events = api.watches.pop(0) if api.watches else None
            if isinstance(events, dict):
                self._send(int(events["code"]), events, ())
                return
            self._begin_chunks()
            for one in events or ():
                self._chunk(json.dumps(one).encode() + b"\n")
            if events is None:
                with api.changed:
                    api.changed.wait_for(lambda: api.closing, 20)
            self._chunk(b"")

        def _log(self, request: ReceivedRequest) -> None:
            name = request.path.split("/")[-2]
            log = api.logs.get(name)
            if log is None:
                there = request.path.removesuffix("/log") in api.objects
                waiting = f'container "node" in pod "{name}" is waiting to start: ContainerCreating'
                self._send(
                    400 if there else 404,
                    status_object(400, waiting, "BadRequest")
                    if there
                    else not_found(request.path.removesuffix("/log")),
                    (),
                )
                return
            self._begin_chunks()
            sent = 0
            while True:
                with api.changed:
                    fresh = log.lines[sent:]
                for at, text in fresh:
                    # The real one knows whole seconds alone.
                    if at[:19] >= request.query.get("sinceTime", "")[:19]:
                        self._chunk(f"{at} {text}\n".encode())
                    sent += 1
                    if log.cut is not None and sent >= log.cut:
                        log.cut = None
                        self._cut()
                        return
                with api.changed:
                    if (log.ended or "follow" not in request.query or api.closing) and sent >= len(log.lines):
                        break
                    api.changed.wait_for(
                        lambda seen=sent: api.closing or log.ended or len(log.lines) > seen, 20
                    )
            self._chunk(b"")

    return Handler
