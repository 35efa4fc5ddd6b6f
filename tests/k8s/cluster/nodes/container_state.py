"""State of a container and its entry in containerStatuses: waiting, running, terminated."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from cluster.nodes.sandbox import Container
from cluster.objects import Manifest, now

# https://kubernetes.io/docs/tasks/debug/debug-application/determine-reason-pod-failure/
_MESSAGE_BYTES = 4096
_LOG_BYTES, _LOG_LINES = 2048, 80


@dataclass
class ContainerState:
    """One container of a pod.

    Attributes:
        spec: its manifest.
        waiting: reason and message until it runs.
        exit_code: None until it has ended.
        oom: report its termination as OOMKilled.
    """

    spec: Manifest
    container: Container | None = None
    waiting: tuple[str, str] = ("ContainerCreating", "")
    exit_code: int | None = None
    oom: bool = False
    _reason: str = ""
    _message: str = ""
    _started_at: str = ""
    _finished_at: str = ""

    @property
    def name(self) -> str:
        return str(self.spec["name"])

    @property
    def has_ended(self) -> bool:
        return self.exit_code is not None

    @property
    def is_running(self) -> bool:
        """Whether it has a process."""
        return self.container is not None and self.exit_code is None

    @property
    def is_started(self) -> bool:
        """Whether its command was executed."""
        return self.container is not None and self.container.report.startswith("started")

    def wait(self, reason: str, message: str) -> bool:
        """Set the waiting state; returns whether that is a change."""
        changed = self.waiting != (reason, message)
        self.waiting = (reason, message)
        return changed

    def start(self, container: Container) -> None:
        """Set the started container."""
        self.container = container
        self._started_at = now()

    def poll(self) -> None:
        """Note the exit code once the process has ended."""
        if self.container is None or self.has_ended:
            return
        self.exit_code = self.container.exit_code()
        if self.exit_code is None:
            return
        self._finished_at = now()
        failure = self.container.report.removeprefix("started").strip()
        self._reason, _, self._message = failure.partition(" ") if failure else ("", "", "")
        if not self._reason:
            killed = "OOMKilled" if self.oom else "Error"
            self._reason = "Completed" if self.exit_code == 0 else killed
            self._message = self._termination_message()

    def _termination_message(self) -> str:
        """Content of terminationMessagePath, or the end of the log by FallbackToLogsOnError."""
        assert self.container is not None
        folder = self.container.log.parent
        text = _tail(folder / f"{self.name}.termination", _MESSAGE_BYTES)
        if not text and self.exit_code and self.spec["terminationMessagePolicy"] == "FallbackToLogsOnError":
            lines = _tail(self.container.log, _LOG_BYTES).splitlines(keepends=True)
            text = "".join(lines[-_LOG_LINES:])
        return text

    @property
    def status(self) -> Manifest:
        """Entry in containerStatuses."""
        running = self.is_running and self.is_started
        identity = f"containerd://{id(self):064x}"
        if self.has_ended:
            ended: Manifest = {"exitCode": self.exit_code, "reason": self._reason, "containerID": identity}
            ended |= {"startedAt": self._started_at, "finishedAt": self._finished_at}
            ended |= {"message": self._message} if self._message else {}
            state = {"terminated": ended}
        elif running:
            state = {"running": {"startedAt": self._started_at}}
        else:
            reason, message = self.waiting
            state = {"waiting": {"reason": reason, **({"message": message} if message else {})}}
        image = self.spec["image"]
        return {
            "name": self.name,
            "image": image,
            "imageID": f"{image.partition(':')[0]}@sha256:{'0' * 64}" if self.container else "",
            "containerID": identity if self.container else "",
            "restartCount": 0,
            "ready": running,
            "started": running,
            "state": state,
            "lastState": {},
        }


def _tail(path: Path, size: int) -> str:
    try:
        return path.read_bytes()[-size:].decode(errors="replace")
    except OSError:
        return ""
