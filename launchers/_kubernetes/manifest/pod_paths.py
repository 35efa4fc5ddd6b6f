"""Paths in the pods, and the DNS name of pod 0: the job spec as the pods see it."""

from __future__ import annotations

import os.path
from dataclasses import replace
from pathlib import Path, PurePosixPath

from dist_train.errors import ConfigError
from dist_train.jobs import JobSpec, Target
from launchers._kubernetes.manifest.kubernetes_options import Options
from launchers._kubernetes.manifest.names import object_name

POD_RUN_ROOT = "/runs"
CONFIG_FOLDER = "/etc/dist-train"
CONFIG_NAME = "config.yaml"
RDZV_PORT = 29400
# The name that each kind's controller gives the pod of node 0.
_POD_0 = {
    "job": "{name}-0",
    "jobset": "{name}-node-0-0",
    "trainjob": "{name}-node-0-0",
    "volcano": "{name}-trainer-0",
}


def in_pod(spec: JobSpec, options: Options) -> JobSpec:
    """Convert the job spec to paths in the pods: run directory, target and code folder."""
    run_dir = Path(POD_RUN_ROOT) / spec.name
    return replace(spec, run_dir=run_dir, target=_target(spec.target, options))


def rendezvous(spec: JobSpec, options: Options) -> str:
    """The rendezvous address: pod 0's DNS name, in the headless Service with the job's name."""
    name = object_name(spec)
    return f"tcp://{_POD_0[options.kind].format(name=name)}.{name}:{RDZV_PORT}"


def _target(target: Target, options: Options) -> Target:
    if target.kind == "script":
        value = _in_image(target.value, options)
        if value is None:
            raise ConfigError(
                f"the script {target.value} is not in {options.source}",
                cause=f"that folder is {options.workdir} in the pods; nothing else of this machine is there",
                hint="launch from the folder that the image holds; --workdir says where it is there",
            )
        return replace(target, value=value, folder=str(PurePosixPath(value).parent))
    # A config from another folder is mounted as a ConfigMap; its modules, if any, are at workdir.
    folder = _in_image(target.folder, options) or options.workdir
    if target.kind == "config":
        return replace(target, value=f"{CONFIG_FOLDER}/{CONFIG_NAME}", folder=folder)
    return replace(target, folder=folder)


def _in_image(path: str, options: Options) -> str | None:
    """The path in the image of a path below the launch folder; None for another one."""
    source = PurePosixPath(os.path.normpath(options.source))
    here = PurePosixPath(os.path.normpath(source / path))
    if here != source and source not in here.parents:
        return None
    return str(PurePosixPath(options.workdir) / here.relative_to(source))
