"""A job's name between commands: `kubernetes:KIND/NAMESPACE/NAME`, with `@CONTEXT` where one was given."""

from __future__ import annotations

import re
from dataclasses import dataclass

from dist_train.jobs import JobHandle
from launchers._kubernetes.api.kinds import TOP, Kind

_HANDLE = re.compile(r"(\w+)/([a-z0-9.-]+)/([a-z0-9.-]+)(?:@(.+))?")


@dataclass(frozen=True)
class Job:
    """Which object is the job, and through which kubeconfig context it is reached (None: the current)."""

    kind: str
    namespace: str
    name: str
    context: str | None = None

    @property
    def top(self) -> Kind:
        """The kind of the object that is the job."""
        return TOP[self.kind]

    @property
    def handle(self) -> JobHandle:
        """As job.json keeps it."""
        at = f"@{self.context}" if self.context else ""
        return JobHandle(f"kubernetes:{self.kind}/{self.namespace}/{self.name}{at}")

    @property
    def app_id(self) -> str:
        """TorchX's id: it must hold no slash, which a context may."""
        return f"{self.kind}:{self.namespace}:{self.name}"

    def kubectl(self, words: str) -> str:
        """A command for a person, for this cluster and namespace."""
        context = f" --context {self.context}" if self.context else ""
        return f"kubectl{context} -n {self.namespace} {words}"


def read_handle(handle: JobHandle) -> Job | None:
    """The job of a handle; None for text that is none of ours."""
    match = _HANDLE.fullmatch(handle.id)
    if match is None or match[1] not in TOP:
        return None
    return Job(match[1], match[2], match[3], match[4])


def read_app_id(app_id: str) -> Job:
    """The inverse of `Job.app_id`."""
    kind, namespace, name = app_id.split(":")
    return Job(kind, namespace, name)
