"""Where things lie in a pod, and by which name pod 0 is reached: the same job, seen from inside."""

from __future__ import annotations

import os.path
from dataclasses import replace
from pathlib import Path, PurePosixPath

from dist_train.errors import ConfigError
from dist_train.jobs import JobSpec, Target
from launchers._kubernetes.manifest.names import object_name
from launchers._kubernetes.manifest.options import Options

POD_RUN_ROOT = "/runs"
CONFIG_FOLDER = "/etc/dist-train"
CONFIG_NAME = "config.yaml"
RDZV_PORT = 29400
# The pod of node 0, as each kind's controller calls it.
_POD_0 = {
    "job": "{name}-0",
    "jobset": "{name}-node-0-0",
    "trainjob": "{name}-node-0-0",
    "volcano": "{name}-trainer-0-0",
}


def in_pod(spec: JobSpec, options: Options) -> JobSpec:
    """The job as its pods see it: run directory, target and code folder are paths there."""
    run_dir = Path(POD_RUN_ROOT) / spec.name
    return replace(spec, run_dir=run_dir, target=_target(spec.target, options))


def rendezvous(spec: JobSpec, options: Options) -> str:
    """Where the agents meet: pod 0 by its DNS name, in the headless service called as the job."""
    name = object_name(spec)
    return f"tcp://{_POD_0[options.kind].format(name=name)}.{name}:{RDZV_PORT}"


def _target(target: Target, options: Options) -> Target:
    if target.kind == "script":
        value = _moved(target.value, options)
        if value is None:
            raise ConfigError(
                f"the script {target.value} is not in {options.source}",
                cause=f"that folder is {options.workdir} in the pods; nothing else of this machine is there",
                mend="launch from the folder that the image holds; --workdir says where it is there",
            )
        return replace(target, value=value, folder=str(PurePosixPath(value).parent))
    # A config from elsewhere travels by itself; its own modules, if any, are at workdir.
    folder = _moved(target.folder, options) or options.workdir
    if target.kind == "config":
        return replace(target, value=f"{CONFIG_FOLDER}/{CONFIG_NAME}", folder=folder)
    return replace(target, folder=folder)


def _moved(path: str, options: Options) -> str | None:
    """A path below the launch's folder, as it is in the image; None for one elsewhere."""
    source = PurePosixPath(os.path.normpath(options.source))
    here = PurePosixPath(os.path.normpath(source / path))
    if here != source and source not in here.parents:
        return None
    return str(PurePosixPath(options.workdir) / here.relative_to(source))
