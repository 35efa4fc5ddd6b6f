"""Object store of etcd and the API server: objects, versions, finalizers, graceful deletion.

Everything that is not HTTP: clients come in by server.py, controllers call the store directly.
Not emulated: managedFields, server-side apply, limit/continue, conversion between versions.
"""

from __future__ import annotations

import copy
import threading
import uuid
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

from cluster.api.defaults import set_defaults
from cluster.api.errors import already_exists, bad_request, conflict, invalid, not_found
from cluster.api.selectors import Test
from cluster.api.validation import check_change, check_values
from cluster.objects import (
    BUILT_IN,
    JOBS,
    NAMESPACES,
    PODS,
    Manifest,
    Resource,
    earlier,
    finalizers,
    generated_name,
    is_deleting,
    now,
)

Key = tuple[Resource, str, str]
Admit = Callable[[Resource, Manifest, Callable[[str], None]], None]
FOREGROUND, ORPHAN = "foregroundDeletion", "orphan"
_OUTDATED = "the object has been modified; please apply your changes to the latest version and try again"
# Set by the server alone; values that a client sends are ignored.
_SERVER_FIELDS = (
    "uid",
    "resourceVersion",
    "creationTimestamp",
    "deletionTimestamp",
    "deletionGracePeriodSeconds",
)


@dataclass(frozen=True)
class Change:
    """One entry of the history, which watches read."""

    revision: int
    kind: str
    resource: Resource
    obj: Manifest
    before: Manifest | None


@dataclass(frozen=True)
class Deletion:
    """metav1.DeleteOptions."""

    grace_s: int | None = None
    policy: str | None = None
    uid: str | None = None
    resource_version: str | None = None


@dataclass
class Store:
    """Objects by resource, namespace and name; every method is safe from any thread.

    Attributes:
        revision: of the last write; resourceVersion of lists.
        ticks: writes and pokes so far; read it before reading objects, and pass it to `wait`.
        oldest: revisions up to this one are compacted: watches from there get 410.
        resources: served kinds; operators add theirs.
        admission: admission plug-ins for new objects: they raise ApiError, or warn.
    """

    revision: int = 1
    ticks: int = 0
    oldest: int = 0
    resources: list[Resource] = field(default_factory=lambda: list(BUILT_IN))
    admission: list[Admit] = field(default_factory=list)
    history: list[Change] = field(default_factory=list)
    listeners: list[Callable[[], None]] = field(default_factory=list)
    _objects: dict[Key, Manifest] = field(default_factory=dict)
    lock: threading.RLock = field(default_factory=threading.RLock)

    def __post_init__(self) -> None:
        self._changed = threading.Condition(self.lock)

    # Reading.

    def get(self, resource: Resource, namespace: str, name: str) -> Manifest:
        """Return a copy; 404 when there is none."""
        with self.lock:
            return copy.deepcopy(self._find(resource, namespace, name))

    def find(self, resource: Resource, namespace: str, name: str) -> Manifest | None:
        """Return a copy, or None."""
        with self.lock:
            return copy.deepcopy(self._objects.get((resource, namespace, name)))

    def select(self, resource: Resource, namespace: str = "", *tests: Test) -> list[Manifest]:
        """Return copies of the objects that pass the tests, oldest first; an empty namespace means all."""
        with self.lock:
            found = [
                obj
                for (kind, where, _), obj in self._objects.items()
                if kind == resource and (not namespace or where == namespace)
            ]
            return [copy.deepcopy(obj) for obj in found if all(test(obj) for test in tests)]

    def everything(self) -> Iterable[tuple[Resource, Manifest]]:
        """Return copies of all objects."""
        with self.lock:
            return [(key[0], copy.deepcopy(obj)) for key, obj in self._objects.items()]

    def wait(self, ticks: int, timeout_s: float) -> None:
        """Block until a write or a poke after `ticks` was read, or the timeout."""
        with self._changed:
            if self.ticks == ticks:
                self._changed.wait(timeout_s)

    def poke(self) -> None:
        """Wake all waiters without a write."""
        with self._changed:
            self.ticks += 1
            self._changed.notify_all()

    # Writing.

    def create(
        self,
        resource: Resource,
        namespace: str,
        body: Manifest,
        dry_run: bool = False,
        warn: Callable[[str], None] = lambda text: None,
    ) -> Manifest:
        """Add an object; returns it as stored."""
        obj = copy.deepcopy(body)
        with self.lock:
            if resource.namespaced:
                self._find(NAMESPACES, "", namespace)
            self._begin(resource, namespace, obj)
            name = obj["metadata"]["name"]
            set_defaults(resource, obj)
            check_values(resource, obj)
            for admit in self.admission:
                admit(resource, obj, warn)
            if (resource, namespace, name) in self._objects:
                raise already_exists(resource, name)
            if not dry_run:
                self._put("ADDED", resource, obj, None)
            return copy.deepcopy(obj)

    def _begin(self, resource: Resource, namespace: str, obj: Manifest) -> None:
        wanted = {"kind": resource.kind, "apiVersion": resource.api_version}
        got = {key: obj.setdefault(key, value) for key, value in wanted.items()}
        if got != wanted:
            raise bad_request(f"the object provided is unrecognized: expected {wanted}, got {got}")
        metadata = obj.setdefault("metadata", {})
        for name in _SERVER_FIELDS:
            metadata.pop(name, None)
        if resource.namespaced and metadata.setdefault("namespace", namespace) != namespace:
            raise bad_request("the namespace of the object does not match the namespace of the request")
        if "name" not in metadata:
            if "generateName" not in metadata:
                why = "Required value: name or generateName is required"
                raise invalid(resource.kind, "", "metadata.name", why)
            metadata["name"] = generated_name(metadata["generateName"])
        metadata |= {"uid": str(uuid.uuid4()), "creationTimestamp": now()}
        if resource.has_status:
            metadata["generation"] = 1
            obj.pop("status", None)

    def update(
        self,
        resource: Resource,
        namespace: str,
        name: str,
        change: Callable[[Manifest], Manifest | None],
        subresource: str | None = None,
    ) -> Manifest:
        """Change an object by a function that modifies a copy or returns a new one.

        Args:
            subresource: "status" or "" of a client's request; None: a controller, which may change all.
        """
        with self.lock:
            old = self._find(resource, namespace, name)
            draft = copy.deepcopy(old)
            new = change(draft)
            new = draft if new is None else new
            _restore_protected_fields(resource, old, new, subresource)
            sent = new["metadata"].get("resourceVersion") or old["metadata"]["resourceVersion"]
            if sent != old["metadata"]["resourceVersion"]:
                raise conflict(resource, name, _OUTDATED)
            if new == old:
                return copy.deepcopy(old)
            if subresource == "":
                check_change(resource, old, new)
            if resource.has_status and new.get("spec") != old.get("spec"):
                new["metadata"]["generation"] = old["metadata"].get("generation", 0) + 1
            self._put("MODIFIED", resource, new, old)
            self._remove_when_released(resource, new)
            return copy.deepcopy(new)

    def delete(self, resource: Resource, namespace: str, name: str, how: Deletion | None = None) -> Manifest:
        """Delete now, or once grace period and finalizers are over; returns the last state.

        https://kubernetes.io/docs/concepts/architecture/garbage-collection/#foreground-deletion
        """
        how = how or Deletion()
        with self.lock:
            old = self._find(resource, namespace, name)
            for what, wanted in (("uid", how.uid), ("resourceVersion", how.resource_version)):
                if wanted is not None and wanted != old["metadata"][what]:
                    raise conflict(resource, name, f"Precondition failed: {what}")
            new = copy.deepcopy(old)
            _mark_deleted(resource, new, how)
            if new == old:
                return copy.deepcopy(old)
            if _is_released(new):
                self._put("DELETED", resource, new, old)
            else:
                self._put("MODIFIED", resource, new, old)
            return copy.deepcopy(new)

    def forget(self) -> None:
        """Compact the history: watches, and clients with an older version, get 410 and must list again."""
        with self.lock:
            self.revision += 1
            self.oldest = self.revision
            self.history.clear()
            self._notify()

    def pass_time(self, by_s: float) -> None:
        """Simulate the passing of time: move every timestamp of every object back."""
        with self.lock:
            for (resource, _, _), old in list(self._objects.items()):
                new = earlier(old, by_s)
                self._put("MODIFIED", resource, new, old)

    def _find(self, resource: Resource, namespace: str, name: str) -> Manifest:
        try:
            return self._objects[(resource, namespace, name)]
        except KeyError:
            raise not_found(resource, name) from None

    def _put(self, kind: str, resource: Resource, obj: Manifest, before: Manifest | None) -> None:
        self.revision += 1
        obj["metadata"]["resourceVersion"] = str(self.revision)
        key = (resource, obj["metadata"].get("namespace", ""), obj["metadata"]["name"])
        if kind == "DELETED":
            del self._objects[key]
        else:
            self._objects[key] = obj
        self.history.append(Change(self.revision, kind, resource, copy.deepcopy(obj), before))
        self._notify()

    def _remove_when_released(self, resource: Resource, obj: Manifest) -> None:
        if is_deleting(obj) and _is_released(obj):
            self._put("DELETED", resource, copy.deepcopy(obj), obj)

    def _notify(self) -> None:
        self.poke()
        for listener in self.listeners:
            listener()


def _restore_protected_fields(
    resource: Resource, old: Manifest, new: Manifest, subresource: str | None
) -> None:
    """Undo changes of server fields, and of status or spec by the wrong subresource."""
    for name in (*_SERVER_FIELDS, "name", "namespace", "generation"):
        if name == "resourceVersion":
            continue
        if name in old["metadata"]:
            new["metadata"][name] = old["metadata"][name]
        else:
            new["metadata"].pop(name, None)
    if resource.has_status and subresource is not None:
        others = {*old, *new} - {"status", "metadata"}
        kept = {"status"} if subresource == "" else others
        for key in kept:
            if key in old:
                new[key] = old[key]
            else:
                new.pop(key, None)


def _mark_deleted(resource: Resource, obj: Manifest, how: Deletion) -> None:
    metadata = obj["metadata"]
    held = [name for name in finalizers(obj) if name not in (FOREGROUND, ORPHAN)]
    policy = how.policy or _default_policy(resource, finalizers(obj))
    held += {"Foreground": [FOREGROUND], "Orphan": [ORPHAN]}.get(policy, [])
    metadata["finalizers"] = held
    if not held:
        del metadata["finalizers"]
    grace = _grace(resource, obj, how)
    if not is_deleting(obj) or grace < metadata["deletionGracePeriodSeconds"]:
        metadata["deletionTimestamp"] = now(after_s=grace)
        metadata["deletionGracePeriodSeconds"] = grace


def _default_policy(resource: Resource, held: Iterable[str]) -> str:
    if FOREGROUND in held:
        return "Foreground"
    # Deleting a Job by batch/v1 without a propagationPolicy leaves its pods, with a warning.
    return "Orphan" if resource == JOBS or ORPHAN in held else "Background"


def _grace(resource: Resource, obj: Manifest, how: Deletion) -> int:
    """https://kubernetes.io/docs/concepts/workloads/pods/pod-lifecycle/#pod-termination"""
    if resource != PODS or "nodeName" not in obj["spec"] or obj["status"]["phase"] in ("Succeeded", "Failed"):
        return 0
    return obj["spec"]["terminationGracePeriodSeconds"] if how.grace_s is None else how.grace_s


def _is_released(obj: Manifest) -> bool:
    return not finalizers(obj) and not obj["metadata"].get("deletionGracePeriodSeconds")
