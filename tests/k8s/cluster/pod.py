"""Pod: typed view of a pod's manifest, for tests."""

from __future__ import annotations

from dataclasses import dataclass

from cluster.controllers.job_pods import index_of
from cluster.objects import Manifest, is_deleting


@dataclass(frozen=True)
class Pod:
    """Snapshot of a pod; ask the cluster again for a newer one."""

    manifest: Manifest

    @property
    def name(self) -> str:
        return str(self.manifest["metadata"]["name"])

    @property
    def namespace(self) -> str:
        return str(self.manifest["metadata"]["namespace"])

    @property
    def uid(self) -> str:
        return str(self.manifest["metadata"]["uid"])

    @property
    def index(self) -> int:
        """Completion index; -1 without one."""
        return index_of(self.manifest)

    @property
    def node(self) -> str:
        """Name of its node; empty while it has none."""
        return str(self.manifest["spec"].get("nodeName", ""))

    @property
    def phase(self) -> str:
        return str(self.manifest["status"]["phase"])

    @property
    def has_ended(self) -> bool:
        return self.phase in ("Succeeded", "Failed")

    @property
    def is_terminating(self) -> bool:
        """Whether it has a deletionTimestamp and has not ended."""
        return is_deleting(self.manifest) and not self.has_ended

    @property
    def display_phase(self) -> str:
        """Phase as kubectl shows it: Terminating while being deleted."""
        return "Terminating" if self.is_terminating else self.phase

    @property
    def state(self) -> Manifest:
        """State of the first container: {"waiting": …}, {"running": …} or {"terminated": …}."""
        statuses = self.manifest["status"].get("containerStatuses") or [{"state": {}}]
        state: Manifest = statuses[0]["state"]
        return state

    @property
    def waiting(self) -> str:
        """Reason of the waiting state: ImagePullBackOff, ContainerCreating, ...; else empty."""
        return str(self.state.get("waiting", {}).get("reason", ""))

    @property
    def exit_code(self) -> int | None:
        """Exit code of the first container."""
        code = self.state.get("terminated", {}).get("exitCode")
        return None if code is None else int(code)

    @property
    def message(self) -> str:
        """Termination message of the first container."""
        return str(self.state.get("terminated", {}).get("message", ""))

    def __str__(self) -> str:
        found = self.manifest["status"].get("conditions") or []
        conditions = " ".join(f"{one['type']}={one['status']}" for one in found)
        node = self.node or "no node"
        return f"{self.name} ({self.uid}) on {node}: {self.display_phase} {self.state} {conditions}"
