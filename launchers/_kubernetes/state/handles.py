"""Job handles: `kubernetes:KIND/NAMESPACE/NAME`, with `@CONTEXT` where one was given."""

from __future__ import annotations

import re
from dataclasses import dataclass

from dist_train.jobs import JobHandle
from launchers._kubernetes.api.kinds import JOB_KINDS, Kind

_HANDLE = re.compile(r"(\w+)/([a-z0-9.-]+)/([a-z0-9.-]+)(?:@(.+))?")


@dataclass(frozen=True)
class Job:
    """A reference to the job object; `context`: of the kubeconfig (None: the current one)."""

    kind: str
    namespace: str
    name: str
    context: str | None = None

    @property
    def api_kind(self) -> Kind:
        """The API kind of the job object."""
        return JOB_KINDS[self.kind]

    @property
    def handle(self) -> JobHandle:
        """The handle, as job.json stores it."""
        at = f"@{self.context}" if self.context else ""
        return JobHandle(f"kubernetes:{self.kind}/{self.namespace}/{self.name}{at}")

    @property
    def app_id(self) -> str:
        """The id for TorchX: it must have no slash, which a context may have."""
        return f"{self.kind}:{self.namespace}:{self.name}"

    def kubectl(self, arguments: str) -> str:
        """Return a kubectl command for this cluster and namespace."""
        context = f" --context {self.context}" if self.context else ""
        return f"kubectl{context} -n {self.namespace} {arguments}"


def read_handle(handle: JobHandle) -> Job | None:
    """The job of a handle; None for text of another form."""
    match = _HANDLE.fullmatch(handle.id)
    if match is None or match[1] not in JOB_KINDS:
        return None
    return Job(match[1], match[2], match[3], match[4])


def read_app_id(app_id: str) -> Job:
    """The inverse of `Job.app_id`."""
    kind, namespace, name = app_id.split(":")
    return Job(kind, namespace, name)
