"""Checks of job and options together, before anything is rendered."""

from __future__ import annotations

import re
from pathlib import PurePosixPath

from dist_train import env
from dist_train.errors import ConfigError
from dist_train.jobs import JobSpec
from launchers._kubernetes.manifest.kubernetes_options import Options
from launchers._kubernetes.manifest.option_values import EMPTY_DIR
from launchers._kubernetes.manifest.pod_paths import POD_RUN_ROOT

# Kubernetes itself, or the agent, sets these; Kubeflow's Trainer refuses its own.
_RESERVED = ("JOB_COMPLETION_INDEX", "TORCHX_", "VC_", *env.TORCHRUN_NAMES, "TORCHELASTIC_")
_FILE_URL = "file://"


def check_plan(spec: JobSpec, options: Options) -> None:
    """Raise ConfigError for what is missing or contradictory."""
    _refuse_undecodable(spec)
    _require_image(options)
    _require_shared_volume(spec, options)
    _refuse_reserved_names(spec, options)
    _refuse_two_values(spec, options)
    _refuse_root(options)
    _refuse_time_limit(spec, options)
    _refuse_unshared_init_file(spec, options)


def secrets(spec: JobSpec, options: Options) -> dict[str, tuple[str, str]]:
    """Variable -> (Secret, key): --secret HF_TOKEN means the key HF_TOKEN of the Secret hf-token."""
    by_name = {name: (name.lower().replace("_", "-").strip("-"), name) for name in spec.secrets}
    return {**by_name, **options.secret_keys}


def _refuse_undecodable(spec: JobSpec) -> None:
    """Raise for bytes of the command line that are not UTF-8: a manifest cannot hold them."""
    for text in (*spec.target.args, *(value for _, value in spec.env)):
        if text != text.encode(errors="replace").decode():
            raise ConfigError(
                f"{text!r} is no valid UTF-8, and a manifest is",
                hint="rename the file or folder, or put the value into a file",
            )


def _require_image(options: Options) -> None:
    if options.image is None:
        raise ConfigError(
            "no image: the kubernetes launcher needs one",
            cause="pods run dist-train and your code from it",
            hint="--image REGISTRY/NAME:TAG   (k8s/Dockerfile makes one)",
        )


def _require_shared_volume(spec: JobSpec, options: Options) -> None:
    if spec.nodes == 1 or options.claim is not None:
        return
    if _checkpoints_are_at_a_url(spec):
        _require_run_key(spec, options)
        return
    given = "an emptyDir is each pod's own" if options.run_volume == EMPTY_DIR else "none was given"
    raise ConfigError(
        f"{spec.nodes} nodes need a run volume that all of them can mount; {given}",
        cause="checkpoints, logs and the run's records are shared",
        hint="--run-volume pvc/NAME, a claim with ReadWriteMany (k8s/pvc.yaml makes one); or let a config's "
        "checkpoints go to a bucket: checkpoint.directory=s3://BUCKET/{run}",
    )


def _checkpoints_are_at_a_url(spec: JobSpec) -> bool:
    if spec.config_yaml is None:
        return False
    import yaml

    config = yaml.safe_load(spec.config_yaml)
    checkpoint = config.get("checkpoint") if isinstance(config, dict) else None
    return isinstance(checkpoint, dict) and checkpoint.get("directory") is not None


def _require_run_key(spec: JobSpec, options: Options) -> None:
    if env.RUN_KEY in secrets(spec, options):
        return
    raise ConfigError(
        f"{spec.nodes} nodes without a run volume of all of them need a key for the run",
        cause="each keeps its own records, and the agents know each other by a key that none can read there",
        hint="kubectl create secret generic dist-train-run-key --from-literal=DIST_TRAIN_RUN_KEY="
        '"$(openssl rand -hex 32)", then launch with --secret DIST_TRAIN_RUN_KEY; or --run-volume pvc/NAME',
    )


def _refuse_reserved_names(spec: JobSpec, options: Options) -> None:
    names = [name for name, _ in spec.env] + list(secrets(spec, options))
    for name in names:
        ours = name.startswith("DIST_TRAIN_") and name != env.INJECT
        # As a secret alone: what is given by --env stands in the manifest.
        ours = ours and not (name == env.RUN_KEY and name in secrets(spec, options))
        if ours or any(_matches(name, reserved) for reserved in _RESERVED):
            raise ConfigError(
                f"the variable {name} cannot be given to the pods",
                cause="dist-train or the cluster sets it, and two values would contradict each other",
                hint="give it another name",
            )
        if options.kind == "trainjob" and name.startswith("PET_"):
            raise ConfigError(
                f"the variable {name} cannot be given to a TrainJob",
                cause="Kubeflow's Trainer keeps PET_* for itself",
                hint="drop it: dist-train needs none of them",
            )


def _matches(name: str, reserved: str) -> bool:
    return name.startswith(reserved) if reserved.endswith("_") else name == reserved


def _refuse_two_values(spec: JobSpec, options: Options) -> None:
    both = sorted({name for name, _ in spec.env} & set(secrets(spec, options)))
    if both:
        raise ConfigError(
            f"{both[0]} is given as a variable and as a secret", hint="drop it from --env, or from --secret"
        )


def _refuse_root(options: Options) -> None:
    if options.run_as_user == 0 and not options.rdma:
        raise ConfigError(
            "--run-as-user 0: the pods run at the restricted level, which forbids root",
            hint="another user id; where RDMA needs root: --rdma yes",
        )


def _refuse_time_limit(spec: JobSpec, options: Options) -> None:
    if spec.time_limit_s == 0:
        raise ConfigError("a time limit of 0 would end the job at once", hint="drop --time for none")
    if options.kind == "volcano" and spec.time_limit_s is not None:
        raise ConfigError(
            f"a time limit ({spec.time_limit_s} s) cannot be kept by --kind volcano",
            cause="a Volcano job has none, and a pod's own would start again with every restart",
            hint="drop --time, or use --kind job, jobset or trainjob",
        )


def _refuse_unshared_init_file(spec: JobSpec, options: Options) -> None:
    if spec.nodes == 1 or not spec.init_method.startswith(_FILE_URL):
        return
    path = re.sub(r"^file:/+", "/", spec.init_method)
    if PurePosixPath(POD_RUN_ROOT) not in PurePosixPath(path).parents:
        raise ConfigError(
            f"--init-method {spec.init_method}: the pods do not share {path}",
            hint=f"a file on the run volume: file://{POD_RUN_ROOT}/{spec.name}/control/init",
        )
