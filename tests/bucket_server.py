"""A real S3 server on loopback (localbucket), which can fail any one request in a stated way.

It stores each bucket as a folder, so that a test may look at what is there, and flip a bit of it.
"""

from __future__ import annotations

import os
import signal
import socket
import struct
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http import HTTPStatus
from http.server import ThreadingHTTPServer
from pathlib import Path
from typing import Any

from localbucket import S3Error, S3Handler

BUCKET = "bucket"
SECRET = "s3cr3t-of-the-test"
# How a request fails: (status and code), or by its name in `BucketServer._fault`.
ERRORS = {
    "500": (HTTPStatus.INTERNAL_SERVER_ERROR, "InternalError"),
    "503": (HTTPStatus.SERVICE_UNAVAILABLE, "SlowDown"),
    "403": (HTTPStatus.FORBIDDEN, "SignatureDoesNotMatch"),
}


class BucketServer:
    """The server and its log of requests.

    Attributes:
        log: method and path of every request, in order; without those that only repeat a failed one.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        (folder / BUCKET).mkdir(parents=True, exist_ok=True)
        self.log: list[str] = []
        self.fault: Callable[[int, str], str | None] = lambda number, line: None
        self.writer_pid = 0
        self.ignores_conditions = False
        self.slow_s = 0.2
        self._lock = threading.Lock()
        handler = type("Handler", (_Handler,), {"data_root": folder, "owner": self})
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
        self._server.daemon_threads = True
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.05,), daemon=True)

    @property
    def endpoint(self) -> str:
        return f"http://127.0.0.1:{self._server.server_address[1]}"

    @property
    def environ(self) -> dict[str, str]:
        """What a process needs to use it."""
        return {
            "AWS_ENDPOINT_URL": self.endpoint,
            "AWS_ACCESS_KEY_ID": "test-key-id",
            "AWS_SECRET_ACCESS_KEY": SECRET,
            "AWS_REGION": "us-east-1",
            "AWS_EC2_METADATA_DISABLED": "true",
        }

    def fail(self, at: int, how: str, *, times: int = 1) -> None:
        """Let the request of this number (from 1) fail, and `times - 1` after it."""
        self.fault = lambda number, _line: how if at <= number < at + times else None

    def forget(self) -> None:
        """Begin to count from 1 again, and fail nothing more."""
        self.log, self.fault = [], lambda number, line: None

    def objects(self) -> dict[str, Path]:
        """Key -> file, of all that is there."""
        root = self.folder / BUCKET
        return {str(p.relative_to(root)): p for p in sorted(root.rglob("*")) if p.is_file()}

    def begin(self, line: str) -> str | None:
        """Count a request; return how it is to fail."""
        with self._lock:
            self.log.append(line)
            return self.fault(len(self.log), line)

    def __enter__(self) -> BucketServer:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()


class _Handler(S3Handler):  # type: ignore[misc]
    owner: BucketServer
    # Else head and body of each answer are two packets, and the second waits 40 ms for an acknowledgement.
    wbufsize = 1 << 16
    disable_nagle_algorithm = True

    def log_message(self, format: str, *args: Any) -> None:
        pass

    def _dispatch(self, action: Callable[[str, str], None]) -> None:
        how = self.owner.begin(f"{self.command} {self.path}")
        if self.owner.ignores_conditions:
            del self.headers["If-None-Match"]
        if how in ERRORS:
            status, code = ERRORS[how]
            self._read_body()
            self._send_error(S3Error(status, code, f"as the test asked for; AWSAccessKeyId {SECRET}"))
        elif how == "slow":
            time.sleep(self.owner.slow_s)
            super()._dispatch(action)
        elif how == "reset before":
            self._reset()
        elif how == "reset after":
            self._without_answer(action)
            self._reset()
        elif how == "kill before":
            os.kill(self.owner.writer_pid, signal.SIGKILL)
            self._reset()
        elif how == "kill after":
            self._without_answer(action)
            os.kill(self.owner.writer_pid, signal.SIGKILL)
            self._reset()
        else:
            super()._dispatch(action)

    def _without_answer(self, action: Callable[[str, str], None]) -> None:
        answer, self.wfile = self.wfile, open(os.devnull, "wb")  # noqa: SIM115
        super()._dispatch(action)
        self.wfile.close()
        self.wfile = answer

    def _reset(self) -> None:
        self.close_connection = True
        # Closed at once, with what was not read: the client sees a reset, not an end.
        self.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self.connection.close()


@contextmanager
def bucket_server(folder: Path, patch: Any = None) -> Iterator[BucketServer]:
    """Serve a folder; with `patch`, a MonkeyPatch, this process uses it."""
    with BucketServer(folder) as server:
        if patch is not None:
            for name in list(os.environ):
                if name.startswith("AWS_"):
                    patch.delenv(name)
            for name, value in server.environ.items():
                patch.setenv(name, value)
        yield server
