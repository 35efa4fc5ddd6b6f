"""The options of the Kubernetes launcher, validated before anything is rendered."""

from __future__ import annotations

from pathlib import Path, PurePosixPath
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field, field_validator

from launchers._kubernetes.manifest import option_values, pod_patch_file, validators
from launchers._kubernetes.manifest.quantities import mebibytes


def _text(description: str, metavar: str, default: str | None = None) -> Any:
    return Field(
        default=default, min_length=1, description=description, json_schema_extra={"metavar": metavar}
    )


def _list(description: str, metavar: str) -> Any:
    return Field(
        default=(), description=f"{description}  (repeatable)", json_schema_extra={"metavar": metavar}
    )


def _yes_no(description: str) -> Any:
    return Field(default=False, description=description, json_schema_extra={"metavar": "yes|no"})


class Options(BaseModel):
    """Options of `--launcher kubernetes`; what Kubernetes would refuse is refused here, more clearly."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    image: str | None = _text("Image with dist-train, torch and your code; a digest is safest.", "IMAGE")
    kind: Literal["job", "jobset", "volcano", "trainjob"] = Field(
        default="job",
        description="job needs nothing installed; the others need JobSet, Volcano or Kubeflow Trainer.  "
        "[default: job]",
        json_schema_extra={"metavar": "job|jobset|volcano|trainjob"},
    )
    namespace: str = _text("Namespace.  [default: default]", "NS", "default")
    context: str | None = _text("Context of the kubeconfig.  [default: its current one]", "NAME")
    queue: str | None = _text("Kueue's local queue; with volcano, its queue.", "QUEUE")
    run_volume: str | None = _text(
        "Where runs are kept, mounted at /runs: pvc/NAME[:FOLDER] or emptydir.", "VOLUME"
    )
    pod_patch: dict[str, Any] | None = Field(
        default=None,
        description="YAML merged into the pod template last (metadata:, spec:).",
        json_schema_extra={"metavar": "FILE"},
    )
    python: str = _text("Python in the image.  [default: python]", "PYTHON", "python")
    workdir: str = _text(
        "Where the current directory's code is in the image or on a volume.  [default: /workspace]",
        "DIR",
        "/workspace",
    )
    service_account: str | None = _text("Service account of the pods.", "NAME")
    priority_class: str | None = _text("Priority class of the pods.", "NAME")
    image_pull_secret: str | None = _text("Secret for pulling the image.", "NAME")
    resource: tuple[str, ...] = _list(
        "Any other resource: rdma/ib=1. ephemeral-storage=50Gi, or none, which is the default with Kueue's "
        "--queue.",
        "NAME=N",
    )
    gpu_resource: str = _text(
        "What a GPU is called in the cluster: amd.com/gpu, or a MIG profile such as nvidia.com/mig-1g.5gb.  "
        "[default: nvidia.com/gpu]",
        "NAME",
        option_values.GPU,
    )
    node_selector: tuple[str, ...] = _list("Label that the nodes must have.", "K=V")
    toleration: tuple[str, ...] = _list("Taint to tolerate.", "KEY[=V][:EFFECT]")
    annotation: tuple[str, ...] = _list("Annotation of the pods.", "K=V")
    secret_ref: tuple[str, ...] = _list(
        "A variable from a key of a Secret in the namespace. --secret HF_TOKEN alone means "
        "HF_TOKEN=hf-token/HF_TOKEN.",
        "NAME=SECRET/KEY",
    )
    shm: str | None = _text(
        "Size of /dev/shm, a part of --mem.  [default: a quarter of --mem, at most 8Gi]", "16Gi"
    )
    run_as_user: int | None = Field(
        default=None,
        ge=0,
        le=2**31 - 1,
        description="User id of the pods.  [default: the image's, which must be numeric]",
        json_schema_extra={"metavar": "UID"},
    )
    fs_group: int | None = Field(
        default=None,
        ge=0,
        le=2**31 - 1,
        description="Group that may write the volumes.  [default: none is set]",
        json_schema_extra={"metavar": "GID"},
    )
    rdma: bool = _yes_no("Add what RDMA needs and the restricted level forbids (IPC_LOCK).  [default: no]")
    network_policy: bool = _yes_no("Let the pods talk to each other and to DNS alone.  [default: no]")
    ttl: str = _text(
        "When the ended job is removed from the cluster: 30m, 12h, 7d or never.  [default: 7d]", "TIME", "7d"
    )
    # No option of the command line, but kept with the run: resume may be called from any directory.
    source: str = Field(
        default_factory=lambda: str(Path.cwd()),
        description="The folder here that workdir is in the pods.  [default: the current directory]",
        json_schema_extra={"flags": False},
    )

    @field_validator("image")
    @classmethod
    def _image(cls, value: str | None) -> str | None:
        return value if value is None else validators.image(value)

    @field_validator("namespace", "queue")
    @classmethod
    def _label(cls, value: str | None) -> str | None:
        return value if value is None else validators.dns_label(value)

    @field_validator("service_account", "priority_class", "image_pull_secret")
    @classmethod
    def _name(cls, value: str | None) -> str | None:
        return value if value is None else validators.dns_name(value)

    @field_validator("context")
    @classmethod
    def _printable(cls, value: str | None) -> str | None:
        if value is not None and not value.isprintable():
            raise ValueError("it holds control characters")
        return value

    @field_validator("run_volume")
    @classmethod
    def _volume(cls, value: str | None) -> str | None:
        if value is not None:
            option_values.volume_claim(value)
        return value

    @field_validator("pod_patch", mode="before")
    @classmethod
    def _patch(cls, value: object) -> object:
        patch = pod_patch_file.read(value) if isinstance(value, str) else value
        if patch is not None:
            pod_patch_file.check(patch)
        return patch

    @field_validator("workdir")
    @classmethod
    def _absolute(cls, value: str) -> str:
        if not value.startswith("/"):
            raise ValueError("expected an absolute path in the image")
        return str(PurePosixPath(value))

    @field_validator("resource", "node_selector", "toleration", "annotation", "secret_ref", mode="before")
    @classmethod
    def _pairs(cls, value: object) -> object:
        return validators.as_pairs(value)

    @field_validator("resource")
    @classmethod
    def _resource(cls, value: tuple[str, ...]) -> tuple[str, ...]:
        option_values.check_resources(value)
        return value

    @field_validator("gpu_resource")
    @classmethod
    def _gpu_resource(cls, value: str) -> str:
        option_values.check_gpu_resource(value)
        return value

    @field_validator("node_selector")
    @classmethod
    def _selector(cls, value: tuple[str, ...]) -> tuple[str, ...]:
        for key, text in validators.pairs(value).items():
            validators.label_key(key)
            validators.label_value(text)
        return value

    @field_validator("toleration")
    @classmethod
    def _tolerations(cls, value: tuple[str, ...]) -> tuple[str, ...]:
        for text in value:
            validators.toleration(text)
        return value

    @field_validator("annotation")
    @classmethod
    def _annotations(cls, value: tuple[str, ...]) -> tuple[str, ...]:
        for key in validators.pairs(value):
            validators.label_key(key)
        return value

    @field_validator("secret_ref")
    @classmethod
    def _secret_refs(cls, value: tuple[str, ...]) -> tuple[str, ...]:
        option_values.secret_keys(value)
        return value

    @field_validator("shm")
    @classmethod
    def _shm(cls, value: str | None) -> str | None:
        if value is not None and mebibytes(value) == 0:
            raise ValueError("/dev/shm needs some memory")
        return value

    @field_validator("ttl")
    @classmethod
    def _ttl(cls, value: str) -> str:
        option_values.ttl_seconds(value)
        return value

    @property
    def claim(self) -> tuple[str, str | None] | None:
        """The run volume's claim and the folder in it; None for an emptyDir."""
        return None if self.run_volume is None else option_values.volume_claim(self.run_volume)

    @property
    def kueue(self) -> bool:
        """Whether Kueue admits the job; a Volcano job waits in a queue of Volcano."""
        return self.queue is not None and self.kind != "volcano"

    @property
    def ttl_s(self) -> int | None:
        """Seconds until an ended job is removed; None: never."""
        return option_values.ttl_seconds(self.ttl)

    @property
    def secret_keys(self) -> dict[str, tuple[str, str]]:
        """--secret-ref: variable -> (Secret, key)."""
        return option_values.secret_keys(self.secret_ref)
