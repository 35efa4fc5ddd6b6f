"""Client of one namespace of one cluster: create, get, find, delete, patch, watch and log."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime
from typing import Any
from urllib.parse import quote

from launchers._kubernetes.api.api_errors import (
    AlreadyExists,
    ApiRequest,
    Expired,
    Forbidden,
    ObjectNotFound,
    Unreachable,
    no_namespace,
)
from launchers._kubernetes.api.connection import Connection, connect
from launchers._kubernetes.api.http_transport import HttpTransport
from launchers._kubernetes.api.kinds import NAMESPACE, POD, Body, Kind, kind_of
from launchers._kubernetes.api.line_stream import LineStream

# The server ends a watch after this; it is opened again.
_WATCH_S = 50
_PAGE = 500
_TRIES = 4
_MERGE_PATCH = "application/merge-patch+json"


@dataclass(frozen=True)
class Listing:
    """The objects of a list, and the resourceVersion from which a watch continues."""

    items: tuple[Body, ...]
    version: str


class Cluster:
    """Requests in one namespace; raises only the errors of launchers/_kubernetes/api/api_errors.py.

    Bodies are sent exactly as rendered: no default is added, no field is dropped.
    """

    def __init__(self, connection: Connection, namespace: str) -> None:
        self._connection = connection
        self._http = HttpTransport(connection)
        self.namespace = namespace

    @classmethod
    def open(cls, context: str | None, namespace: str) -> Cluster:
        """Connect by the kubeconfig, or from within a pod; raises ConfigError where there is neither."""
        return cls(connect(context), namespace)

    @property
    def server(self) -> str:
        """The API server's address."""
        return self._connection.server

    @property
    def context(self) -> str | None:
        """The name of the kubeconfig context."""
        return self._connection.context

    @property
    def warnings(self) -> list[str]:
        """Texts of the server's Warning headers; the caller clears them once they are printed."""
        return self._http.warnings

    def close_streams(self) -> None:
        """End every stream that another thread reads."""
        self._http.close_streams()

    def now(self) -> datetime:
        """Return the server's time."""
        return self._http.now()

    def create(self, body: Mapping[str, Any]) -> Body:
        """POST the manifest; raises AlreadyExists where the name is in use."""
        request = self._request("create", kind_of(body), str(body["metadata"]["name"]))
        for _ in range(_TRIES):
            try:
                return self._http.call("POST", self._path(request.kind), request, body=body)
            except AlreadyExists as error:
                # 409 is not always a name in use: two requests may meet in a quota's counter.
                if "the object has been modified" not in error.what:
                    raise
        raise Unreachable(
            f"{request.what}: the namespace's quota is being changed all the time", hint="try again"
        )

    def get(self, kind: Kind, name: str) -> Body | None:
        """Return the object, or None where there is none of this name."""
        try:
            return self._http.call("GET", self._path(kind, name), self._request("get", kind, name))
        except ObjectNotFound:
            return None

    def find(self, kind: Kind, labels: str = "", fields: str = "") -> Listing:
        """List every object that the selectors choose, page by page."""
        items: list[Body] = []
        query = [("limit", str(_PAGE)), *_selectors(labels, fields)]
        token = ""
        while True:
            pages = [("continue", token)] if token else []
            page = self._http.call("GET", self._path(kind), self._request("list", kind), [*query, *pages])
            # The items of a list have no apiVersion and kind of their own.
            items += [
                {"apiVersion": kind.api_version, "kind": kind.kind, **item}
                for item in page.get("items") or ()
            ]
            head = page.get("metadata") or {}
            token = head.get("continue") or ""
            if not token:
                return Listing(tuple(items), str(head.get("resourceVersion") or ""))

    def delete(self, kind: Kind, name: str, propagation: str = "Background", uid: str | None = None) -> bool:
        """Request the deletion; False where there is no such object. `uid`: only if it is still that one."""
        options: Body = {"apiVersion": "v1", "kind": "DeleteOptions", "propagationPolicy": propagation}
        if uid is not None:
            options["preconditions"] = {"uid": uid}
        request = self._request("delete", kind, name)
        try:
            self._http.call("DELETE", self._path(kind, name), request, body=options)
        except (ObjectNotFound, AlreadyExists):  # the second: another object has the name now
            return False
        return True

    def patch(self, kind: Kind, name: str, change: Body) -> Body:
        """Apply a merge patch."""
        request = self._request("patch", kind, name)
        return self._http.call(
            "PATCH", self._path(kind, name), request, body=change, content_type=_MERGE_PATCH
        )

    def watch(self, kind: Kind, labels: str, version: str) -> Iterator[tuple[str, Body]]:
        """Yield (ADDED | MODIFIED | DELETED | BOOKMARK, object) until the server ends the watch.

        Raises Expired (410) where the version is too old.
        """
        query = [("watch", "true"), ("allowWatchBookmarks", "true"), ("timeoutSeconds", str(_WATCH_S))]
        query += [("resourceVersion", version), *_selectors(labels, "")]
        request = self._request("watch", kind)
        with self._http.stream(self._path(kind), request, query) as stream:
            for line in stream.lines():
                event = json.loads(line)
                if event.get("type") == "ERROR":
                    status = event.get("object") or {}
                    if status.get("code") == 410:
                        raise Expired(f"{request.what}: {status.get('message')}")
                    raise Unreachable(f"{request.what}: the watch has failed: {status.get('message')}")
                yield str(event["type"]), event["object"]

    @contextmanager
    def log(self, pod: str, container: str, follow: bool, since: str = "") -> Iterator[LineStream]:
        """Open a container's output with the kubelet's time stamps; raises NoLogYet and ObjectNotFound.

        Args:
            since: whole seconds (RFC 3339): the server supports no finer ones.
        """
        query = [("container", container), ("timestamps", "true")]
        query += [("follow", "true")] if follow else []
        query += [("sinceTime", since)] if since else []
        request = self._request("log", POD, pod)
        with self._http.stream(f"{self._path(POD, pod)}/log", request, query) as stream:
            yield stream

    def require_namespace(self) -> None:
        """Raise ConfigError where the namespace does not exist; without the right to look, continue."""
        try:
            if self.get(NAMESPACE, self.namespace) is None:
                raise no_namespace(self._request("get", NAMESPACE))
        except Forbidden:
            return

    def _request(self, verb: str, kind: Kind, name: str = "") -> ApiRequest:
        return ApiRequest(verb, kind, self.namespace, name, self.server, self.context)

    def _path(self, kind: Kind, name: str = "") -> str:
        namespace = f"/namespaces/{quote(self.namespace, safe='')}" if kind.namespaced else ""
        return f"{kind.root}{namespace}/{kind.plural}" + (f"/{quote(name, safe='')}" if name else "")


def _selectors(labels: str, fields: str) -> list[tuple[str, str]]:
    found = [("labelSelector", labels)] if labels else []
    return [*found, ("fieldSelector", fields)] if fields else found
