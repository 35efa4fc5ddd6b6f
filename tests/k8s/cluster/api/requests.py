"""Handle requests for objects: verb and resource from the path, the answer from the store.

Emulated: create, get, list, watch (from a resourceVersion; 410), update, patch (three formats), delete with
DeleteOptions, deletecollection, /status, /log (follow, timestamps, sinceTime, tailLines, limitBytes),
dryRun=All, label and field selectors, Warning headers, 400 403 404 409 410 415 422 as Status objects, a
namespace that does not exist.
Not emulated: authentication, tables, limit/continue, bookmarks, exec, the eviction subresource, OpenAPI, TLS.
"""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import AsyncIterator, Callable, Mapping
from dataclasses import dataclass
from typing import Any, Self

from aiohttp import web

from cluster.api.discovery import discovery
from cluster.api.errors import ApiError, bad_request, expired
from cluster.api.log_streams import LogStreams
from cluster.api.patches import apply_patch
from cluster.api.rules import Call, Rules
from cluster.api.selectors import Test, field_test, label_test
from cluster.api.store import Change, Deletion, Store
from cluster.api.validation import check_schema
from cluster.objects import JOBS, PODS, Manifest

_PATH = re.compile(
    r"^/(?:api/(?P<core>v1)|apis/(?P<group>[^/]+)/(?P<version>[^/]+))"
    r"(?:/namespaces/(?P<namespace>[^/]+)(?=/))?/(?P<plural>[^/]+)(?:/(?P<name>[^/]+))?(?:/(?P<sub>.+))?$"
)
_VERBS = {"POST": "create", "PUT": "update", "PATCH": "patch"}
_ORPHANS = (
    "child pods are preserved by default when jobs are deleted; set propagationPolicy=Background to remove "
    "them or set propagationPolicy=Orphan to suppress this warning"
)


@dataclass
class Request:
    """One request of a client, as recorded.

    Attributes:
        path: without the query.
        body: its bytes.
        code: status code of the response; 0 before there is one.
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


class RequestHandler:
    """aiohttp handler of requests for objects; all other paths go to kmock."""

    def __init__(
        self,
        store: Store,
        rules: Rules,
        logs: LogStreams,
        received: list[Request],
        next_change: Callable[[], asyncio.Event],
    ) -> None:
        self._store = store
        self._rules = rules
        self._logs = logs
        self._received = received
        self._next_change = next_change
        self._discovery = discovery(store.resources)

    async def __aenter__(self) -> Self:
        await self._discovery.__aenter__()
        return self

    async def __aexit__(self, *error: object) -> None:
        await self._discovery.__aexit__(None, None, None)

    async def __call__(self, raw: web.BaseRequest) -> web.StreamResponse:
        body = await raw.read()
        request = Request(raw.method, raw.path, dict(raw.query), dict(raw.headers), body)
        self._received.append(request)
        try:
            answer = await self._answer(raw, request)
        except ApiError as error:
            answer = web.json_response(error.status, status=error.code)
        request.code = answer.status
        return answer

    async def _answer(self, raw: web.BaseRequest, request: Request) -> web.StreamResponse:
        found = _PATH.match(request.path)
        if found is None:
            # kmock serves no path with a trailing slash; the client asks for /apis/.
            return await self._discovery(raw.clone(rel_url=request.path.rstrip("/") or "/"))
        call = self._call(found, request)
        if call is None:
            # A real server's response when a CustomResourceDefinition is not installed.
            return web.Response(status=404, text="404 page not found\n")
        warnings = self._rules.check(call)
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

    # Verbs; each returns the object of the response.

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
            check_schema(call.resource, body)
        dry_run = request.query.get("dryRun") == "All"
        return self._store.create(call.resource, call.namespace, body, dry_run, warnings.append)

    def _update(self, call: Call, request: Request, warnings: list[str]) -> Manifest:
        body = _loaded(request)
        return self._change(call, lambda old: body)

    def _patch(self, call: Call, request: Request, warnings: list[str]) -> Manifest:
        body, kind = _loaded(request), request.headers.get("Content-Type", "")
        return self._change(call, lambda old: apply_patch(call.resource, old, body, kind))

    def _change(self, call: Call, change: Callable[[Manifest], Manifest]) -> Manifest:
        if call.subresource not in ("", "status"):
            raise ApiError(404, "NotFound", "the server could not find the requested resource")
        return self._store.update(
            call.resource, call.namespace, call.name, change, subresource=call.subresource
        )

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
            pass  # the client disconnected
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
            changed = self._next_change()
            with self._store.lock:
                compacted = start < self._store.oldest
                changes = [change for change in self._store.history if change.revision > start]
            if compacted:
                # https://kubernetes.io/docs/reference/using-api/api-concepts/#410-gone-responses
                yield _event("ERROR", expired(f"too old resource version: {start}").status)
                return
            for change in changes:
                start = change.revision
                if chunk := _watch_event(change, call, tests):
                    yield chunk
            try:
                await asyncio.wait_for(changed.wait(), left)
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
        return await self._stream(raw, "text/plain", self._logs.read(pod, container, request.query))


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
    options = {**(body or {}), **request.query}
    conditions = (body or {}).get("preconditions") or {}
    grace = options.get("gracePeriodSeconds")
    return Deletion(
        grace_s=None if grace is None else int(grace),
        policy=options.get("propagationPolicy"),
        uid=conditions.get("uid"),
        resource_version=conditions.get("resourceVersion"),
    )


def _event(kind: str, obj: Manifest) -> bytes:
    return json.dumps({"type": kind, "object": obj}).encode() + b"\n"


def _watch_event(change: Change, call: Call, tests: list[Test]) -> bytes:
    """Event of a watch with selectors: ADDED when the object begins to match, DELETED when it stops."""
    if change.resource != call.resource:
        return b""
    if call.namespace and change.obj["metadata"].get("namespace") != call.namespace:
        return b""
    matches = all(test(change.obj) for test in tests)
    matched = change.before is not None and all(test(change.before) for test in tests)
    if change.kind == "MODIFIED" and matches != matched:
        return _event("ADDED" if matches else "DELETED", change.obj)
    return _event(change.kind, change.obj) if matches or matched else b""
