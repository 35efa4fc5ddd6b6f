"""What a plan needs and an option alone cannot know: found wrong here, before anything is rendered."""

from __future__ import annotations

import re
from pathlib import PurePosixPath

from dist_train import env
from dist_train.errors import ConfigError
from dist_train.jobs import JobSpec
from launchers._kubernetes.manifest.options import EMPTY_DIR, Options
from launchers._kubernetes.manifest.places import POD_RUN_ROOT

# Kubernetes itself, or the agent, sets these; Kubeflow's Trainer refuses its own.
_RESERVED = ("JOB_COMPLETION_INDEX", "TORCHX_", "VC_", *env.TORCHRUN_NAMES, "TORCHELASTIC_")
_FILE_URL = "file://"


def check(spec: JobSpec, options: Options) -> None:
    """Raises ConfigError for what is missing or contradicts itself."""
    _refuse_undecodable(spec)
    _needs_image(options)
    _needs_shared_volume(spec, options)
    _refuse_reserved_names(spec, options)
    _refuse_two_values(spec, options)
    _refuse_root(options)
    _refuse_time_limit(spec, options)
    _refuse_unshared_init_method(spec, options)


def secrets(spec: JobSpec, options: Options) -> dict[str, tuple[str, str]]:
    """Variable -> (Secret, key): --secret HF_TOKEN alone means the key HF_TOKEN of the Secret hf-token."""
    by_name = {name: (name.lower().replace("_", "-").strip("-"), name) for name in spec.secrets}
    return {**by_name, **options.secret_places}


def _refuse_undecodable(spec: JobSpec) -> None:
    """Bytes of the command line that are no UTF-8: no manifest can hold them."""
    for word in (*spec.target.args, *(value for _, value in spec.env)):
        if word != word.encode(errors="replace").decode():
            raise ConfigError(
                f"{word!r} is no valid UTF-8, and a manifest is",
                mend="rename what it names, or put the value into a file",
            )


def _needs_image(options: Options) -> None:
    if options.image is None:
        raise ConfigError(
            "no image: the kubernetes launcher needs one",
            cause="pods run dist-train and your code from it",
            mend="--image REGISTRY/NAME:TAG   (k8s/Dockerfile makes one)",
        )


def _needs_shared_volume(spec: JobSpec, options: Options) -> None:
    if spec.nodes == 1 or options.claim is not None:
        return
    given = "an emptyDir is each pod's own" if options.run_volume == EMPTY_DIR else "none was given"
    raise ConfigError(
        f"{spec.nodes} nodes need a run volume that all of them see; {given}",
        cause="checkpoints, logs and the run's records are shared",
        mend="--run-volume pvc/NAME, a claim with ReadWriteMany (k8s/pvc.yaml makes one)",
    )


def _refuse_reserved_names(spec: JobSpec, options: Options) -> None:
    names = [name for name, _ in spec.env] + list(secrets(spec, options))
    for name in names:
        ours = name.startswith("DIST_TRAIN_") and name != env.INJECT
        if ours or any(_is(name, reserved) for reserved in _RESERVED):
            raise ConfigError(
                f"the variable {name} cannot be given to the pods",
                cause="dist-train or the cluster sets it, and two values would contradict each other",
                mend="give it another name",
            )
        if options.kind == "trainjob" and name.startswith("PET_"):
            raise ConfigError(
                f"the variable {name} cannot be given to a TrainJob",
                cause="Kubeflow's Trainer keeps PET_* for itself",
                mend="drop it: dist-train needs none of them",
            )


def _is(name: str, reserved: str) -> bool:
    return name.startswith(reserved) if reserved.endswith("_") else name == reserved


def _refuse_two_values(spec: JobSpec, options: Options) -> None:
    both = sorted({name for name, _ in spec.env} & set(secrets(spec, options)))
    if both:
        raise ConfigError(
            f"{both[0]} is given as a variable and as a secret", mend="drop it from --env, or from --secret"
        )


def _refuse_root(options: Options) -> None:
    if options.run_as_user == 0 and not options.rdma:
        raise ConfigError(
            "--run-as-user 0: the pods run at the restricted level, which forbids root",
            mend="another user id; where RDMA needs root: --rdma yes",
        )


def _refuse_time_limit(spec: JobSpec, options: Options) -> None:
    if spec.time_limit_s == 0:
        raise ConfigError("a time limit of 0 would end the job at once", mend="drop --time for none")
    if options.kind == "volcano" and spec.time_limit_s is not None:
        raise ConfigError(
            f"a time limit ({spec.time_limit_s} s) cannot be kept by --kind volcano",
            cause="a Volcano job has none, and a pod's own would start anew with every restart",
            mend="drop --time, or use --kind job, jobset or trainjob",
        )


def _refuse_unshared_init_method(spec: JobSpec, options: Options) -> None:
    if spec.nodes == 1 or not spec.init_method.startswith(_FILE_URL):
        return
    path = re.sub(r"^file:/+", "/", spec.init_method)
    if PurePosixPath(POD_RUN_ROOT) not in PurePosixPath(path).parents:
        raise ConfigError(
            f"--init-method {spec.init_method}: the pods do not share {path}",
            mend=f"a file on the run volume: file://{POD_RUN_ROOT}/{spec.name}/control/init",
        )
