"""One namespace of one cluster, by the official client's ApiClient: bodies go out exactly as rendered."""

from __future__ import annotations

import email.utils
import json
import re
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any
from urllib.parse import quote

from launchers._kubernetes.api.connection import Connection, connect
from launchers._kubernetes.api.kinds import NAMESPACE, POD, Kind, kind_of
from launchers._kubernetes.api.refusals import (
    Expired,
    Forbidden,
    Gone,
    Question,
    Taken,
    Unreachable,
    no_answer,
    no_namespace,
    refusal,
)
from launchers._kubernetes.api.streams import Stream

# To connect, and to answer.
_TIMEOUT_S = (5.0, 30.0)
_STREAM_TIMEOUT_S = (5.0, 60.0)
_WATCH_S = 50
_PAGE = 500
_TRIES = 4
_MERGE_PATCH = "application/merge-patch+json"
_TEXTS = re.compile(r'\d{3} \S+ "((?:[^"\\]|\\.)*)"')

Body = dict[str, Any]


@dataclass(frozen=True)
class Listing:
    """Objects, and the version at which a watch goes on."""

    items: tuple[Body, ...]
    version: str


class Cluster:
    """Asks and orders; raises our errors alone (launchers/_kubernetes/api/refusals.py)."""

    def __init__(self, connection: Connection, namespace: str) -> None:
        self._connection = connection
        self.namespace = namespace
        self.warnings: list[str] = []
        self._open: set[Stream] = set()
        self._server_clock: tuple[datetime, float] | None = None

    @classmethod
    def open(cls, context: str | None, namespace: str) -> Cluster:
        """By the kubeconfig, or from within a pod; raises ConfigError where neither is there."""
        return cls(connect(context), namespace)

    @property
    def server(self) -> str:
        """The API server's address."""
        return self._connection.server

    @property
    def context(self) -> str | None:
        """The kubeconfig context by name."""
        return self._connection.context

    def hang_up(self) -> None:
        """End every stream that another thread reads."""
        for stream in tuple(self._open):
            stream.interrupt()

    def now(self) -> datetime:
        """The server's time, by the last answer: clocks of two machines are never compared."""
        if self._server_clock is None:
            return datetime.now(UTC)
        at, seen = self._server_clock
        return at + timedelta(seconds=time.monotonic() - seen)

    def create(self, body: Mapping[str, Any]) -> Body:
        """POST the manifest as it is; raises Taken where the name is in use."""
        asked = self._asked("create", kind_of(body), str(body["metadata"]["name"]))
        for _ in range(_TRIES):
            try:
                return self._call("POST", self._path(asked.kind), asked, body=body)
            except Taken as error:
                # Not a name in use: two requests met in a quota's counter.
                if "the object has been modified" not in error.what:
                    raise
        raise Unreachable(
            f"{asked.what}: the namespace's quota is being changed all the time", mend="try again"
        )

    def get(self, kind: Kind, name: str) -> Body | None:
        """The object, or None where there is none of this name."""
        try:
            return self._call("GET", self._path(kind, name), self._asked("get", kind, name))
        except Gone:
            return None

    def find(self, kind: Kind, labels: str = "", fields: str = "") -> Listing:
        """Every object that the selectors choose, page by page."""
        items: list[Body] = []
        query = [("limit", str(_PAGE)), *_selectors(labels, fields)]
        more = ""
        while True:
            asked = self._asked("list", kind)
            page = self._call(
                "GET", self._path(kind), asked, [*query, *([("continue", more)] if more else [])]
            )
            # A list's items do not say their kind.
            items += [
                {"apiVersion": kind.api_version, "kind": kind.kind, **item}
                for item in page.get("items") or ()
            ]
            head = page.get("metadata") or {}
            more = head.get("continue") or ""
            if not more:
                return Listing(tuple(items), str(head.get("resourceVersion") or ""))

    def delete(self, kind: Kind, name: str, propagation: str = "Background", uid: str | None = None) -> bool:
        """Order its removal; False where it is not there. `uid`: only if it is still that very object."""
        options: Body = {"apiVersion": "v1", "kind": "DeleteOptions", "propagationPolicy": propagation}
        if uid is not None:
            options["preconditions"] = {"uid": uid}
        try:
            self._call("DELETE", self._path(kind, name), self._asked("delete", kind, name), body=options)
        except Gone:
            return False
        except Taken:
            return False  # another object has the name now
        return True

    def patch(self, kind: Kind, name: str, change: Body) -> Body:
        """A merge patch."""
        asked = self._asked("patch", kind, name)
        return self._call("PATCH", self._path(kind, name), asked, body=change, content_type=_MERGE_PATCH)

    def watch(self, kind: Kind, labels: str, version: str) -> Iterator[tuple[str, Body]]:
        """(ADDED | MODIFIED | DELETED | BOOKMARK, object) until the server ends it; raises Expired (410)."""
        query = [("watch", "true"), ("allowWatchBookmarks", "true"), ("timeoutSeconds", str(_WATCH_S))]
        query += [("resourceVersion", version), *_selectors(labels, "")]
        asked = self._asked("watch", kind)
        with self._stream(self._path(kind), asked, query) as stream, _told(asked):
            for line in stream.lines():
                event = json.loads(line)
                if event.get("type") == "ERROR":
                    status = event.get("object") or {}
                    if status.get("code") == 410:
                        raise Expired(f"{asked.what}: {status.get('message')}")
                    raise Unreachable(f"{asked.what}: the watch has failed: {status.get('message')}")
                yield str(event["type"]), event["object"]

    @contextmanager
    def log(self, pod: str, container: str, follow: bool, since: str = "") -> Iterator[Stream]:
        """A container's output with the kubelet's time stamps; raises NoLogYet and Gone.

        Args:
            since: whole seconds (RFC 3339): the server knows no finer ones.
        """
        query = [("container", container), ("timestamps", "true")]
        query += [("follow", "true")] if follow else []
        query += [("sinceTime", since)] if since else []
        asked = self._asked("log", POD, pod)
        with self._stream(f"{self._path(POD, pod)}/log", asked, query) as stream, _told(asked):
            yield stream

    def require_namespace(self) -> None:
        """Raises ConfigError where it is not there; who may not look is not stopped."""
        try:
            if self.get(NAMESPACE, self.namespace) is None:
                raise no_namespace(self._asked("get", NAMESPACE))
        except Forbidden:
            return

    def _asked(self, verb: str, kind: Kind, name: str = "") -> Question:
        return Question(verb, kind, self.namespace, name, self.server, self.context)

    def _path(self, kind: Kind, name: str = "") -> str:
        place = f"/namespaces/{quote(self.namespace, safe='')}" if kind.namespaced else ""
        return f"{kind.root}{place}/{kind.plural}" + (f"/{quote(name, safe='')}" if name else "")

    def _call(
        self,
        method: str,
        path: str,
        asked: Question,
        query: list[tuple[str, str]] | None = None,
        body: Mapping[str, Any] | None = None,
        content_type: str = "application/json",
    ) -> Body:
        with _told(asked):
            answer, _, headers = self._connection.client.call_api(
                path,
                method,
                query_params=query or [],
                header_params={"Accept": "application/json", "Content-Type": content_type},
                body=body,
                auth_settings=["BearerToken"],
                response_types_map={200: "object", 201: "object", 202: "object"},
                _return_http_data_only=False,
                _request_timeout=_TIMEOUT_S,
            )
        self._note(headers)
        if not isinstance(answer, dict):
            raise Unreachable(f"{self.server} is no Kubernetes API server: {method} {path} gave no object")
        return answer

    @contextmanager
    def _stream(self, path: str, asked: Question, query: list[tuple[str, str]]) -> Iterator[Stream]:
        with _told(asked):
            response = self._connection.client.call_api(
                path,
                "GET",
                query_params=query,
                header_params={"Accept": "*/*" if asked.verb == "log" else "application/json"},
                auth_settings=["BearerToken"],
                _preload_content=False,
                _request_timeout=_STREAM_TIMEOUT_S,
            )
        stream = Stream(response)
        self._open.add(stream)
        try:
            yield stream
        finally:
            self._open.discard(stream)
            stream.close()

    def _note(self, headers: Any) -> None:
        date = headers.get("Date")
        if date:
            try:
                self._server_clock = (
                    email.utils.parsedate_to_datetime(date).astimezone(UTC),
                    time.monotonic(),
                )
            except ValueError:
                pass
        for text in _warning_texts(headers):
            if text not in self.warnings:
                self.warnings.append(text)


def _selectors(labels: str, fields: str) -> list[tuple[str, str]]:
    found = [("labelSelector", labels)] if labels else []
    return [*found, ("fieldSelector", fields)] if fields else found


def _warning_texts(headers: Any) -> list[str]:
    """`299 - "would violate PodSecurity …"`, one header or several."""
    values = headers.getlist("Warning") if hasattr(headers, "getlist") else [headers.get("Warning") or ""]
    return [text.replace('\\"', '"') for value in values for text in _TEXTS.findall(value)]


@contextmanager
def _told(asked: Question) -> Iterator[None]:
    """The client's and urllib3's errors as ours."""
    from kubernetes.client.exceptions import ApiException
    from kubernetes.config.config_exception import ConfigException
    from urllib3.exceptions import HTTPError  # type: ignore[import-untyped]

    try:
        yield
    except ApiException as error:
        raise _api_error(error, asked) from error
    except (HTTPError, OSError, ConfigException) as error:
        raise no_answer(error, asked) from error
    except AttributeError as error:
        # The client stumbles over its own report of a TLS fault, which has no body to decode.
        if isinstance(error.__context__, ApiException):
            raise no_answer(error.__context__, asked) from error
        raise
    except json.JSONDecodeError as error:
        raise Unreachable(f"{asked.what}: the answer was cut off: {error}") from error


def _api_error(error: Any, asked: Question) -> Exception:
    if not error.status:
        return no_answer(error, asked)
    body = error.body.decode(errors="replace") if isinstance(error.body, bytes) else error.body
    found = refusal(int(error.status), str(error.reason or ""), body, asked)
    assert isinstance(found, Exception)
    return found
