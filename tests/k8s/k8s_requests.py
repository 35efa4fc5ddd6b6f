"""Requests for objects: verb and resource from the path, the answer from the store.

Emulated: create, get, list, watch (from a resourceVersion; 410), update, patch (three formats), delete with
DeleteOptions, deletecollection, /status, /log (follow, timestamps, sinceTime, tailLines, limitBytes),
dryRun=All, label and field selectors, Warning headers, 400 403 404 409 410 415 422 as Status objects,
namespaces that must exist.
Not emulated: authentication, tables, limit/continue, bookmarks, exec, eviction as a door, OpenAPI, TLS.
"""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import AsyncIterator, Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol, Self

import kmock
from aiohttp import web
from k8s_log_lines import LogLines
from k8s_objects import JOBS, PODS, Manifest, Resource
from k8s_patches import patched
from k8s_rules import Call, Rules
from k8s_selectors import Test, field_test, label_test
from k8s_status import ApiError, bad_request, expired
from k8s_store import Change, Deletion, Store
from k8s_validation import VERSION, check_form

_PATH = re.compile(
    r"^/(?:api/(?P<core>v1)|apis/(?P<group>[^/]+)/(?P<version>[^/]+))"
    r"(?:/namespaces/(?P<namespace>[^/]+)(?=/))?/(?P<plural>[^/]+)(?:/(?P<name>[^/]+))?(?:/(?P<sub>.+))?$"
)
_ALL_VERBS = ["create", "delete", "deletecollection", "get", "list", "patch", "update", "watch"]
_VERBS = {"POST": "create", "PUT": "update", "PATCH": "patch"}
_ORPHANS = (
    "child pods are preserved by default when jobs are deleted; set propagationPolicy=Background to remove "
    "them or set propagationPolicy=Orphan to suppress this warning"
)
_POLL_S = 0.03
_VERSION = {
    "major": "1",
    "minor": VERSION.partition(".")[2],
    "gitVersion": f"v{VERSION}.0",
    "gitCommit": "0" * 40,
    "gitTreeState": "clean",
    "buildDate": "2025-08-27T00:00:00Z",
    "goVersion": "go1.24",
    "compiler": "gc",
    "platform": "linux/amd64",
}


@dataclass
class Request:
    """What a client sent.

    Attributes:
        path: without the query.
        body: its bytes.
        code: of the answer; 0 before there is one.
    """

    method: str
    path: str
    query: Mapping[str, str]
    headers: Mapping[str, str]
    body: bytes
    code: int = 0

    @property
    def manifest(self) -> Manifest:
        """The body's JSON."""
        loaded = json.loads(self.body)
        assert isinstance(loaded, dict)
        return loaded


class Logs(Protocol):
    """Who has the containers' output."""

    def log(self, pod: Manifest, container: str) -> Path:
        """The file; ApiError when the container has not started."""

    def is_writing(self, pod: Manifest, container: str) -> bool:
        """Whether more may come."""


class NoLogs:
    """A cluster without nodes."""

    def log(self, pod: Manifest, container: str) -> Path:
        """There is none."""
        raise bad_request(f'container "{container}" in pod "{pod["metadata"]["name"]}" is waiting to start')

    def is_writing(self, pod: Manifest, container: str) -> bool:
        """Nothing is written."""
        return False


class Front:
    """Takes requests for objects; what it does not know goes to kmock."""

    def __init__(
        self,
        store: Store,
        rules: Rules,
        logs: Logs,
        lines: LogLines,
        seen: list[Request],
        bell: Callable[[], asyncio.Event],
    ) -> None:
        self._store = store
        self._rules = rules
        self._logs = logs
        self._log_lines = lines
        self._seen = seen
        self._bell = bell
        self._discovery = kmock.KubernetesScaffold()
        self._discovery["get /version"] << _VERSION
        # kmock calls the core group "/v1", which kubectl does not understand.
        core = [_described(resource) for resource in store.resources if not resource.group]
        listed = {"kind": "APIResourceList", "groupVersion": "v1", "resources": core}
        self._discovery["get /api/v1"] << listed
        for resource in store.resources:
            known = self._discovery.resources[f"{resource.api_version}/{resource.plural}"]
            known.kind, known.namespaced, known.singular = (
                resource.kind,
                resource.namespaced,
                resource.kind.lower(),
            )
            known.verbs = set(_ALL_VERBS)

    async def __aenter__(self) -> Self:
        await self._discovery.__aenter__()
        return self

    async def __aexit__(self, *error: object) -> None:
        await self._discovery.__aexit__(None, None, None)

    async def __call__(self, raw: web.BaseRequest) -> web.StreamResponse:
        body = await raw.read()
        request = Request(raw.method, raw.path, dict(raw.query), dict(raw.headers), body)
        self._seen.append(request)
        try:
            answer = await self._answer(raw, request)
        except ApiError as error:
            answer = web.json_response(error.status, status=error.code)
        request.code = answer.status
        return answer

    async def _answer(self, raw: web.BaseRequest, request: Request) -> web.StreamResponse:
        found = _PATH.match(request.path)
        if found is None:
            # kmock knows no path with a slash at its end; the client asks for /apis/.
            return await self._discovery(raw.clone(rel_url=request.path.rstrip("/") or "/"))
        call = self._call(found, request)
        if call is None:
            # As a real server answers when a CustomResourceDefinition is not installed.
            return web.Response(status=404, text="404 page not found\n")
        warnings = self._rules.judge(call)
        if call.verb == "watch":
            return await self._stream(raw, "application/json", self._watch(call, request))
        if call.subresource == "log":
            return await self._log(raw, call, request)
        code = 201 if call.verb == "create" else 200
        answer = getattr(self, f"_{call.verb}")(call, request, warnings)
        response = web.json_response(answer, status=code)
        for text in warnings:
            response.headers.add("Warning", f'299 - "{text}"')
        return response

    def _call(self, found: re.Match[str], request: Request) -> Call | None:
        group, version = found["group"] or "", found["version"] or found["core"]
        wanted = (group, version, found["plural"])
        resource = next((r for r in self._store.resources if (r.group, r.version, r.plural) == wanted), None)
        if resource is None:
            return None
        name = found["name"] or ""
        if request.method == "GET":
            watching = request.query.get("watch", "").lower() in ("true", "1")
            verb = "watch" if watching else "get" if name else "list"
        elif request.method == "DELETE":
            verb = "delete" if name else "deletecollection"
        else:
            verb = _VERBS.get(request.method, "")
        if not verb or (verb in _VERBS.values() and (verb == "create") == bool(name)):
            raise ApiError(405, "MethodNotAllowed", "the server does not allow this method on the resource")
        return Call(verb, resource, found["namespace"] or "", name, found["sub"] or "")

    # Verbs; each returns the answer's object.

    def _get(self, call: Call, request: Request, warnings: list[str]) -> Manifest:
        return self._store.get(call.resource, call.namespace, call.name)

    def _list(self, call: Call, request: Request, warnings: list[str]) -> Manifest:
        with self._store.lock:
            items = self._store.select(call.resource, call.namespace, *_tests(request.query))
            metadata = {"resourceVersion": str(self._store.revision)}
        kind, version = call.resource.kind, call.resource.api_version
        return {"kind": f"{kind}List", "apiVersion": version, "metadata": metadata, "items": items}

    def _create(self, call: Call, request: Request, warnings: list[str]) -> Manifest:
        body = _loaded(request)
        if isinstance(body, dict):
            check_form(call.resource, body)
        dry_run = request.query.get("dryRun") == "All"
        return self._store.create(call.resource, call.namespace, body, dry_run, warnings.append)

    def _update(self, call: Call, request: Request, warnings: list[str]) -> Manifest:
        body = _loaded(request)
        return self._change(call, lambda old: body)

    def _patch(self, call: Call, request: Request, warnings: list[str]) -> Manifest:
        body, kind = _loaded(request), request.headers.get("Content-Type", "")
        return self._change(call, lambda old: patched(call.resource, old, body, kind))

    def _change(self, call: Call, change: Callable[[Manifest], Manifest]) -> Manifest:
        if call.subresource not in ("", "status"):
            raise ApiError(404, "NotFound", "the server could not find the requested resource")
        return self._store.update(call.resource, call.namespace, call.name, change, door=call.subresource)

    def _delete(self, call: Call, request: Request, warnings: list[str]) -> Manifest:
        how = _deletion(request)
        if call.resource == JOBS and how.policy is None:
            warnings.append(_ORPHANS)
        return self._store.delete(call.resource, call.namespace, call.name, how)

    def _deletecollection(self, call: Call, request: Request, warnings: list[str]) -> Manifest:
        answer = self._list(call, request, warnings)
        for obj in answer["items"]:
            self._store.delete(call.resource, call.namespace, obj["metadata"]["name"], _deletion(request))
        return answer

    # Streams.

    async def _stream(
        self, raw: web.BaseRequest, kind: str, chunks: AsyncIterator[bytes]
    ) -> web.StreamResponse:
        response = web.StreamResponse(headers={"Content-Type": kind})
        try:
            await response.prepare(raw)
            async for chunk in chunks:
                await response.write(chunk)
            await response.write_eof()
        except ConnectionError:
            pass  # the client has gone
        return response

    async def _watch(self, call: Call, request: Request) -> AsyncIterator[bytes]:
        tests = _tests(request.query)
        if call.name:
            tests = [*tests, field_test(f"metadata.name={call.name}")]
        seconds = float(request.query.get("timeoutSeconds") or 3600)
        end = asyncio.get_running_loop().time() + seconds
        start = int(request.query.get("resourceVersion") or 0)
        if not start:
            with self._store.lock:
                start = self._store.revision
                found = self._store.select(call.resource, call.namespace, *tests)
            for obj in found:
                yield _event("ADDED", obj)
        while (left := end - asyncio.get_running_loop().time()) > 0:
            bell = self._bell()
            with self._store.lock:
                gone = start < self._store.oldest
                changes = [change for change in self._store.history if change.revision > start]
            if gone:
                # https://kubernetes.io/docs/reference/using-api/api-concepts/#410-gone-responses
                yield _event("ERROR", expired(f"too old resource version: {start}").status)
                return
            for change in changes:
                start = change.revision
                if chunk := _seen(change, call, tests):
                    yield chunk
            try:
                await asyncio.wait_for(bell.wait(), left)
            except TimeoutError:
                return

    async def _log(self, raw: web.BaseRequest, call: Call, request: Request) -> web.StreamResponse:
        pod = self._store.get(PODS, call.namespace, call.name)
        names = [container["name"] for container in pod["spec"]["containers"]]
        container = request.query.get("container") or names[0]
        if container not in names:
            raise bad_request(f"container {container} is not valid for pod {call.name}")
        if len(names) > 1 and "container" not in request.query:
            raise bad_request(
                f"a container name must be specified for pod {call.name}, choose one of: {names}"
            )
        path = self._logs.log(pod, container)
        follow = request.query.get("follow", "").lower() in ("true", "1")
        stamped = request.query.get("timestamps", "").lower() in ("true", "1")
        read = self._stamped_lines if stamped else self._lines
        return await self._stream(raw, "text/plain", read(pod, container, path, follow, request.query))

    async def _lines(
        self, pod: Manifest, container: str, path: Path, follow: bool, query: Mapping[str, str]
    ) -> AsyncIterator[bytes]:
        with path.open("rb") as log:
            log.seek(_tail_start(path, query.get("tailLines")))
            if limit := int(query.get("limitBytes") or 0):
                yield log.read(limit)
                return
            while True:
                writing = follow and self._logs.is_writing(pod, container)
                while chunk := log.read(65536):
                    yield chunk
                if not writing:
                    return
                await asyncio.sleep(_POLL_S)

    async def _stamped_lines(
        self, pod: Manifest, container: str, path: Path, follow: bool, query: Mapping[str, str]
    ) -> AsyncIterator[bytes]:
        index, since = 0, query.get("sinceTime", "")
        while True:
            writing = self._logs.is_writing(pod, container)
            index, lines = self._log_lines.read(path, index, not writing, since)
            if lines:
                yield lines
            if not (follow and writing):
                return
            await asyncio.sleep(_POLL_S)


def _described(resource: Resource) -> Manifest:
    kind = {"kind": resource.kind, "singularName": resource.kind.lower(), "namespaced": resource.namespaced}
    return {"name": resource.plural, "verbs": _ALL_VERBS, **kind}


def _loaded(request: Request) -> Any:
    try:
        return json.loads(request.body)
    except ValueError as error:
        raise bad_request(f"the object provided is unrecognized: {error}") from None


def _tests(query: Mapping[str, str]) -> list[Test]:
    made = []
    if selector := query.get("labelSelector"):
        made.append(label_test(selector))
    if selector := query.get("fieldSelector"):
        made.append(field_test(selector))
    return made


def _deletion(request: Request) -> Deletion:
    body = _loaded(request) if request.body else {}
    asked = {**(body or {}), **request.query}
    conditions = (body or {}).get("preconditions") or {}
    grace = asked.get("gracePeriodSeconds")
    return Deletion(
        grace_s=None if grace is None else int(grace),
        policy=asked.get("propagationPolicy"),
        uid=conditions.get("uid"),
        resource_version=conditions.get("resourceVersion"),
    )


def _event(kind: str, obj: Manifest) -> bytes:
    return json.dumps({"type": kind, "object": obj}).encode() + b"\n"


def _seen(change: Change, call: Call, tests: list[Test]) -> bytes:
    """The change as a watch with selectors sees it: into sight is ADDED, out of it DELETED."""
    if change.resource != call.resource:
        return b""
    if call.namespace and change.obj["metadata"].get("namespace") != call.namespace:
        return b""
    there = all(test(change.obj) for test in tests)
    was = change.before is not None and all(test(change.before) for test in tests)
    if change.kind == "MODIFIED" and there != was:
        return _event("ADDED" if there else "DELETED", change.obj)
    return _event(change.kind, change.obj) if there or was else b""


def _tail_start(path: Path, lines: str | None) -> int:
    if lines is None:
        return 0
    text = path.read_bytes()
    kept = text.splitlines(keepends=True)[-int(lines) :] if int(lines) else []
    return len(text) - sum(map(len, kept))
