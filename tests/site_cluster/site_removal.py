"""Remove everything of a session: its objects by their labels, and its folder on the volume by a pod."""

from __future__ import annotations

import subprocess
import sys
import tempfile
import time
from typing import Any

from site_cluster.site import Site

from launchers._kubernetes.api.cluster import Cluster
from launchers._kubernetes.api.kinds import CONFIG_MAP, JOB, NETWORK_POLICY, POD, SERVICE, Kind
from launchers._kubernetes.manifest.names import RUN_LABEL
from launchers._kubernetes.manifest.render import from_yaml

# Of all kinds; jobs first, so that no pod is created again.
_KINDS = (JOB, SERVICE, CONFIG_MAP, NETWORK_POLICY, POD)
_MANAGED = "app.kubernetes.io/managed-by=dist-train"
# A pod may save for its whole grace.
_GONE_S, _CLEAN_S, _POLL_S = 180.0, 180.0, 0.5
_REMOVE = "import shutil, sys; shutil.rmtree(sys.argv[1], ignore_errors=True)"


def remove_session(cluster: Cluster, site: Site) -> list[str]:
    """Remove it; returns what is left, in words."""
    problems = _remove_objects(cluster, site)
    try:
        problems += _remove_folder(cluster, site)
    finally:
        problems += _remove_objects(cluster, site)
    return problems


def objects_of(cluster: Cluster, site: Site) -> list[tuple[Kind, str]]:
    """The objects of the session that exist."""
    return [
        (kind, str(body["metadata"]["name"]))
        for kind in _KINDS
        for body in cluster.find(kind, _MANAGED).items
        if str((body["metadata"].get("labels") or {}).get(RUN_LABEL)).startswith(f"{site.session}-")
    ]


def _remove_objects(cluster: Cluster, site: Site) -> list[str]:
    deadline = time.monotonic() + _GONE_S
    asked = set[tuple[Kind, str]]()
    while found := objects_of(cluster, site):
        for kind, name in found:
            if (kind, name) not in asked:
                cluster.delete(kind, name)
                asked.add((kind, name))
        if time.monotonic() > deadline:
            return [f"{kind.kind} {name} is still there" for kind, name in found]
        time.sleep(_POLL_S)
    return []


def _remove_folder(cluster: Cluster, site: Site) -> list[str]:
    job = _cleaning_job(site)
    cluster.create(job)
    name, deadline = str(job["metadata"]["name"]), time.monotonic() + _CLEAN_S
    while time.monotonic() < deadline:
        status = (cluster.get(JOB, name) or {}).get("status") or {}
        if status.get("succeeded"):
            return []
        if any(one["type"] == "Failed" and one["status"] == "True" for one in status.get("conditions") or ()):
            break
        time.sleep(_POLL_S)
    return [f"the folder {site.session} on the claim {site.claim} is still there: its pod did not succeed"]


def _cleaning_job(site: Site) -> dict[str, Any]:
    """The Job of a launch with the site's options, whose pod removes the folder instead of training."""
    words = site.launch("clean", "--dry-run", nodes=1)
    argv = [sys.executable, "-P", "-m", "dist_train.cli.main", *words]
    with tempfile.TemporaryDirectory() as folder:
        done = subprocess.run(argv, cwd=folder, capture_output=True, check=True)
    job: dict[str, Any] = from_yaml(done.stdout)[-1]
    pod = job["spec"]["template"]["spec"]
    (container,) = pod["containers"]
    mounts = [mount for mount in container["volumeMounts"] if mount["name"] != "config"]
    for mount in mounts:
        mount.pop("subPath", None)
    pod["volumes"] = [volume for volume in pod["volumes"] if volume["name"] != "config"]
    container |= {"command": ["python", "-c", _REMOVE, f"/runs/{site.session}"], "volumeMounts": mounts}
    container |= {"workingDir": "/"}
    return job
