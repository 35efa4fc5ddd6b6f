"""HTTP requests by the official client's ApiClient: JSON calls and line streams, failures as our errors."""

from __future__ import annotations

import email.utils
import json
import re
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from typing import Any

from launchers._kubernetes.api.api_errors import ApiRequest, Unreachable, error_of_response, unreachable
from launchers._kubernetes.api.connection import Connection
from launchers._kubernetes.api.kinds import Body
from launchers._kubernetes.api.line_stream import LineStream

# (connect, read).
_TIMEOUT_S = (5.0, 30.0)
_STREAM_TIMEOUT_S = (5.0, 60.0)
_WARNING_TEXT = re.compile(r'\d{3} \S+ "((?:[^"\\]|\\.)*)"')


class HttpTransport:
    """Requests to one API server; keeps its warnings, its clock and the streams that are open."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self._open: set[LineStream] = set()
        self._server_clock: tuple[datetime, float] | None = None
        self.warnings: list[str] = []

    def now(self) -> datetime:
        """Return the server's time, by its last response: clocks of two machines are never compared."""
        if self._server_clock is None:
            return datetime.now(UTC)
        at, seen = self._server_clock
        return at + timedelta(seconds=time.monotonic() - seen)

    def call(
        self,
        method: str,
        path: str,
        request: ApiRequest,
        query: list[tuple[str, str]] | None = None,
        body: Mapping[str, Any] | None = None,
        content_type: str = "application/json",
    ) -> Body:
        """Send one request and return the JSON object of its response."""
        with converted_errors(request):
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
        self._read_headers(headers)
        if not isinstance(answer, dict):
            server = self._connection.server
            raise Unreachable(f"{server} is no Kubernetes API server: {method} {path} gave no object")
        return answer

    @contextmanager
    def stream(self, path: str, request: ApiRequest, query: list[tuple[str, str]]) -> Iterator[LineStream]:
        """Open a response that is read line by line (a watch, a log)."""
        with converted_errors(request):
            response = self._connection.client.call_api(
                path,
                "GET",
                query_params=query,
                header_params={"Accept": "*/*" if request.verb == "log" else "application/json"},
                auth_settings=["BearerToken"],
                _preload_content=False,
                _request_timeout=_STREAM_TIMEOUT_S,
            )
        stream = LineStream(response)
        self._open.add(stream)
        try:
            with converted_errors(request):
                yield stream
        finally:
            self._open.discard(stream)
            stream.close()

    def close_streams(self) -> None:
        """End every stream that another thread reads."""
        for stream in tuple(self._open):
            stream.interrupt()

    def _read_headers(self, headers: Any) -> None:
        date = headers.get("Date")
        if date:
            try:
                at = email.utils.parsedate_to_datetime(date).astimezone(UTC)
                self._server_clock = (at, time.monotonic())
            except ValueError:
                pass
        for text in _warning_texts(headers):
            if text not in self.warnings:
                self.warnings.append(text)


def _warning_texts(headers: Any) -> list[str]:
    """Parse `Warning: 299 - "would violate PodSecurity …"`, one header or several."""
    values = headers.getlist("Warning") if hasattr(headers, "getlist") else [headers.get("Warning") or ""]
    return [text.replace('\\"', '"') for value in values for text in _WARNING_TEXT.findall(value)]


@contextmanager
def converted_errors(request: ApiRequest) -> Iterator[None]:
    """Raise the errors of the client and of urllib3 as those of api_errors.py."""
    from kubernetes.client.exceptions import ApiException
    from kubernetes.config.config_exception import ConfigException
    from urllib3.exceptions import HTTPError  # type: ignore[import-untyped]

    try:
        yield
    except ApiException as error:
        raise _of_api_exception(error, request) from error
    except (HTTPError, OSError, ConfigException) as error:
        raise unreachable(error, request) from error
    except AttributeError as error:
        # The client fails while it reports a TLS error, which has no body to decode.
        if isinstance(error.__context__, ApiException):
            raise unreachable(error.__context__, request) from error
        raise
    except json.JSONDecodeError as error:
        raise Unreachable(f"{request.what}: the response was cut off: {error}") from error


def _of_api_exception(error: Any, request: ApiRequest) -> Exception:
    if not error.status:
        return unreachable(error, request)
    body = error.body.decode(errors="replace") if isinstance(error.body, bytes) else error.body
    found = error_of_response(int(error.status), str(error.reason or ""), body, request)
    assert isinstance(found, Exception)
    return found
