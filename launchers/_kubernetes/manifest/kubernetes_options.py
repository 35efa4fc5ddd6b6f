"""The options of the Kubernetes launcher, validated before anything is rendered."""

from __future__ import annotations

from pathlib import Path, PurePosixPath
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field, field_validator

from launchers._kubernetes.kubernetes_option_rows import OPTION_ROWS
from launchers._kubernetes.manifest import option_values, pod_patch_file, validators
from launchers._kubernetes.manifest.quantities import mebibytes


def _text(name: str, default: str | None = None) -> Any:
    return OPTION_ROWS[name].field(default, min_length=1)


def _list(name: str) -> Any:
    return OPTION_ROWS[name].field(())


def _id(name: str) -> Any:
    return OPTION_ROWS[name].field(ge=0, le=2**31 - 1)


class Options(BaseModel):
    """Options of `--launcher kubernetes`; what Kubernetes would refuse is refused here, more clearly."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    image: str | None = _text("image")
    kind: Literal["job", "jobset", "volcano", "trainjob"] = OPTION_ROWS["kind"].field("job")
    namespace: str = _text("namespace", "default")
    context: str | None = _text("context")
    queue: str | None = _text("queue")
    run_volume: str | None = _text("run_volume")
    pod_patch: dict[str, Any] | None = OPTION_ROWS["pod_patch"].field()
    python: str = _text("python", "python")
    workdir: str = _text("workdir", "/workspace")
    service_account: str | None = _text("service_account")
    priority_class: str | None = _text("priority_class")
    image_pull_secret: str | None = _text("image_pull_secret")
    resource: tuple[str, ...] = _list("resource")
    gpu_resource: str = _text("gpu_resource", option_values.GPU)
    node_selector: tuple[str, ...] = _list("node_selector")
    toleration: tuple[str, ...] = _list("toleration")
    annotation: tuple[str, ...] = _list("annotation")
    secret_ref: tuple[str, ...] = _list("secret_ref")
    shm: str | None = _text("shm")
    run_as_user: int | None = _id("run_as_user")
    fs_group: int | None = _id("fs_group")
    rdma: bool = OPTION_ROWS["rdma"].field(False)
    network_policy: bool = OPTION_ROWS["network_policy"].field(False)
    ttl: str = _text("ttl", "7d")
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
