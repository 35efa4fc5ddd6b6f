"""A pod as tests look at it."""

from __future__ import annotations

from dataclasses import dataclass

from k8s_job_pods import index_of
from k8s_objects import Manifest, is_deleting


@dataclass(frozen=True)
class Pod:
    """What was there when it was asked for; ask the cluster again for news."""

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
        """Its completion index; -1 without one."""
        return index_of(self.manifest)

    @property
    def node(self) -> str:
        """Empty while it has none."""
        return str(self.manifest["spec"].get("nodeName", ""))

    @property
    def phase(self) -> str:
        return str(self.manifest["status"]["phase"])

    @property
    def has_ended(self) -> bool:
        return self.phase in ("Succeeded", "Failed")

    @property
    def is_terminating(self) -> bool:
        """Being removed, and not yet ended."""
        return is_deleting(self.manifest) and not self.has_ended

    @property
    def word(self) -> str:
        """The phase, or Terminating."""
        return "Terminating" if self.is_terminating else self.phase

    @property
    def state(self) -> Manifest:
        """Of the first container: {"waiting": …}, {"running": …} or {"terminated": …}."""
        statuses = self.manifest["status"].get("containerStatuses") or [{"state": {}}]
        state: Manifest = statuses[0]["state"]
        return state

    @property
    def waiting(self) -> str:
        """ImagePullBackOff, ContainerCreating, ...; empty when it does not wait."""
        return str(self.state.get("waiting", {}).get("reason", ""))

    @property
    def exit_code(self) -> int | None:
        """Of the first container."""
        code = self.state.get("terminated", {}).get("exitCode")
        return None if code is None else int(code)

    @property
    def message(self) -> str:
        """The termination message of the first container."""
        return str(self.state.get("terminated", {}).get("message", ""))

    def __str__(self) -> str:
        said = self.manifest["status"].get("conditions") or []
        conditions = " ".join(f"{one['type']}={one['status']}" for one in said)
        return f"{self.name} ({self.uid}) on {self.node or 'no node'}: {self.word} {self.state} {conditions}"
