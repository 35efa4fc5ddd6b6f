"""A pod parsed from its status, and which pods are the newest of their nodes."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from typing import Any

from dist_train import env
from launchers._kubernetes.state.verdict import Verdict, read_verdict

# Where the controllers write a pod's index.
_INDEX = "batch.kubernetes.io/job-completion-index"
_VOLCANO_INDEX = "VC_TASK_INDEX"
_JOB_SET_RESTART = "jobset.sigs.k8s.io/restart-attempt"


@dataclass(frozen=True)
class Container:
    """The agent's container: not started (`waiting`), running, or terminated (`exit_code`)."""

    name: str
    image: str = ""
    waiting: str = ""
    message: str = ""
    running: bool = False
    exit_code: int | None = None
    reason: str = ""
    restarts: int = 0
    finished: datetime | None = None
    verdict: Verdict | None = None
    # Its memory limit, as in the pod's manifest: `2Gi`.
    memory: str = ""
    # Of the image on its machine, where a tag may mean another one. Hexadecimal, without `sha256:`.
    digest: str = ""


@dataclass(frozen=True)
class Pod:
    """One pod; `node` is its number among the job's nodes, `host` the machine it was put on."""

    name: str
    uid: str
    created: str
    phase: str
    container: Container
    node: int | None = None
    host: str = ""
    reason: str = ""
    message: str = ""
    conditions: Mapping[str, tuple[str, str, str]] = field(default_factory=dict)
    # The end of its grace, where it is being deleted.
    deadline: datetime | None = None
    # Containers that are not ours and still run.
    other_containers: tuple[str, ...] = ()
    restarts: int = 0
    # resourceVersion: orders a deleted pod and its successors, whose names have no order.
    version: int = 0

    @property
    def ended(self) -> bool:
        """Whether its agent has ended; it is not started again in this pod."""
        return self.phase in ("Succeeded", "Failed") or self.container.exit_code is not None

    @property
    def started(self) -> bool:
        """Whether its agent runs or ran: then it has a log."""
        return self.container.running or self.container.exit_code is not None

    @property
    def deleting(self) -> bool:
        """Whether it is being deleted."""
        return self.deadline is not None

    @property
    def host_unresponsive(self) -> bool:
        """Whether its machine does not respond: a pod without probes is not ready for this reason only."""
        not_ready = self.condition("Ready", "False") is not None
        return self.container.running and not_ready and self.condition("ContainersReady") is not None

    @property
    def verdict(self) -> Verdict | None:
        """The termination message of its agent."""
        return self.container.verdict

    def condition(self, name: str, status: str = "True") -> tuple[str, str] | None:
        """Return (reason, message) of a condition that has this status."""
        found = self.conditions.get(name)
        return found[1:] if found is not None and found[0] == status else None


def read_pod(body: Mapping[str, Any]) -> Pod:
    """Parse the API's object; every field may be missing in a pod that was just created."""
    head, spec, status = body.get("metadata") or {}, body.get("spec") or {}, body.get("status") or {}
    agent = _agent(spec.get("containers") or [])
    states = {str(entry.get("name")): entry for entry in status.get("containerStatuses") or ()}
    labels = head.get("labels") or {}
    others = [name for name, entry in states.items() if name != agent["name"] and _running(entry)]
    state = states.get(agent["name"]) or {}
    return Pod(
        name=str(head.get("name")),
        uid=str(head.get("uid") or head.get("name")),
        created=str(head.get("creationTimestamp") or ""),
        phase=str(status.get("phase") or "Pending"),
        container=replace(
            _container(str(agent["name"]), str(agent.get("image") or ""), state),
            memory=str(((agent.get("resources") or {}).get("limits") or {}).get("memory") or ""),
            digest=str(state.get("imageID") or "").rpartition("sha256:")[2],
        ),
        node=_node_index(labels, head.get("annotations") or {}, agent),
        host=str(spec.get("nodeName") or ""),
        reason=str(status.get("reason") or ""),
        message=str(status.get("message") or ""),
        conditions={
            str(entry.get("type")): (
                str(entry.get("status") or ""),
                str(entry.get("reason") or ""),
                str(entry.get("message") or ""),
            )
            for entry in status.get("conditions") or ()
        },
        deadline=read_time(head.get("deletionTimestamp")),
        other_containers=tuple(others),
        restarts=int(labels.get(_JOB_SET_RESTART) or 0)
        if str(labels.get(_JOB_SET_RESTART, "")).isdigit()
        else 0,
        version=int(version) if (version := str(head.get("resourceVersion") or "")).isdigit() else 0,
    )


def _agent(containers: Iterable[Mapping[str, Any]]) -> Mapping[str, Any]:
    """The container with the run's id in its environment; a cluster may inject others before it."""
    listed = list(containers)
    for container in listed:
        if any(variable.get("name") == env.RUN_ID for variable in container.get("env") or ()):
            return container
    return listed[0] if listed else {"name": "trainer"}


def _container(name: str, image: str, entry: Mapping[str, Any]) -> Container:
    state = entry.get("state") or {}
    restarts = int(entry.get("restartCount") or 0)
    if ended := state.get("terminated"):
        message = str(ended.get("message") or "")
        return Container(
            name,
            image,
            message=message,
            exit_code=int(ended.get("exitCode", 0)),
            reason=str(ended.get("reason") or ""),
            restarts=restarts,
            finished=read_time(ended.get("finishedAt")),
            verdict=read_verdict(message),
        )
    if waiting := state.get("waiting"):
        return Container(
            name,
            image,
            str(waiting.get("reason") or "Waiting"),
            str(waiting.get("message") or ""),
            restarts=restarts,
        )
    return Container(name, image, running="running" in state, restarts=restarts)


def _running(entry: Mapping[str, Any]) -> bool:
    return "running" in (entry.get("state") or {})


def _node_index(
    labels: Mapping[str, str], annotations: Mapping[str, str], container: Mapping[str, Any]
) -> int | None:
    variables = {str(entry.get("name")): entry.get("value") for entry in container.get("env") or ()}
    for value in (
        labels.get(_INDEX),
        annotations.get(_INDEX),
        # Of an earlier dist-train, whose Volcano jobs had a task for each node.
        variables.get(env.NODE_RANK),
        variables.get(_VOLCANO_INDEX),
    ):
        if value is not None and str(value).isdigit():
            return int(value)
    return None


def read_time(text: object) -> datetime | None:
    """Parse an RFC 3339 time of the API; None where there is none."""
    try:
        found = datetime.fromisoformat(str(text).replace("Z", "+00:00"))
    except ValueError:
        return None
    return found if found.tzinfo is not None else found.replace(tzinfo=UTC)


def newest_first(pods: Iterable[Pod]) -> list[Pod]:
    """Sort by creation; of one second: not deleted before deleted, running before ended, then by version."""
    return sorted(
        pods, key=lambda pod: (pod.created, not pod.deleting, not pod.ended, pod.version), reverse=True
    )


def newest_of_nodes(pods: Iterable[Pod]) -> dict[int, Pod]:
    """The newest pod of each node, by its index."""
    found: dict[int, Pod] = {}
    for pod in newest_first(pods):
        found.setdefault(pod.node or 0, pod)
    return dict(sorted(found.items()))


def newest_generation(pods: Iterable[Pod]) -> list[Pod]:
    """The pods of the newest start of the gang, by node.

    A node's newest pod may be of an earlier start (its later one was deleted): it ended before the newest
    pod of the job was created.
    """
    newest = list(newest_of_nodes(pods).values())
    begun = max((at for pod in newest if (at := read_time(pod.created)) is not None), default=None)
    if begun is None:
        return newest
    return [pod for pod in newest if pod.container.finished is None or pod.container.finished >= begun]
