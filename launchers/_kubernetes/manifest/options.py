"""What only the Kubernetes launcher knows: its options, checked before anything is rendered."""

from __future__ import annotations

import re
from pathlib import Path, PurePosixPath
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field, field_validator

from launchers._kubernetes.manifest import patch_file, words
from launchers._kubernetes.manifest.quantities import is_quantity, mebibytes

EMPTY_DIR = "emptydir"
_VOLUME = re.compile(r"pvc/(?P<name>[^:/]+)(?::(?P<sub>.+))?")
_SECRET_REF = re.compile(r"(?P<secret>[^/]+)/(?P<key>[A-Za-z0-9._-]+)")
_ENV_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_TTL = re.compile(r"(\d+)([smhd])")
_SECONDS = {"s": 1, "m": 60, "h": 3600, "d": 86400}
# Resources that an option of dist-train sets.
_OURS = {
    "cpu": "--cpus-per-gpu",
    "memory": "--mem",
    "nvidia.com/gpu": "--gpus-per-node (or --device cpu for none)",
}


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
    """What is asked of the cluster; what Kubernetes would refuse is refused here, with better words."""

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
    resource: tuple[str, ...] = _list("Any other resource: rdma/ib=1, ephemeral-storage=50Gi.", "NAME=N")
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
    # Not asked for on the command line, but kept with the run: resume may be called anywhere.
    source: str = Field(
        default_factory=lambda: str(Path.cwd()),
        description="The folder here that workdir is in the pods.  [default: the current directory]",
        json_schema_extra={"flags": False},
    )

    @field_validator("image")
    @classmethod
    def _image(cls, value: str | None) -> str | None:
        return value if value is None else words.image(value)

    @field_validator("namespace", "queue")
    @classmethod
    def _label(cls, value: str | None) -> str | None:
        return value if value is None else words.dns_label(value)

    @field_validator("service_account", "priority_class", "image_pull_secret")
    @classmethod
    def _name(cls, value: str | None) -> str | None:
        return value if value is None else words.dns_name(value)

    @field_validator("context")
    @classmethod
    def _printable(cls, value: str | None) -> str | None:
        if value is not None and not value.isprintable():
            raise ValueError("it holds control characters")
        return value

    @field_validator("run_volume")
    @classmethod
    def _volume(cls, value: str | None) -> str | None:
        if value is None or value == EMPTY_DIR:
            return value
        if (found := _VOLUME.fullmatch(value)) is None:
            raise ValueError("expected pvc/NAME, pvc/NAME:FOLDER or emptydir")
        words.dns_name(found["name"])
        if found["sub"] and (found["sub"].startswith("/") or ".." in PurePosixPath(found["sub"]).parts):
            raise ValueError(f"the folder {found['sub']!r} must lie in the volume: no leading /, no ..")
        return value

    @field_validator("pod_patch", mode="before")
    @classmethod
    def _patch(cls, value: object) -> object:
        patch = patch_file.read(value) if isinstance(value, str) else value
        if patch is not None:
            patch_file.check(patch)
        return patch

    @field_validator("workdir")
    @classmethod
    def _absolute(cls, value: str) -> str:
        if not value.startswith("/"):
            raise ValueError("expected an absolute path in the image")
        return str(PurePosixPath(value))

    @field_validator("resource", "node_selector", "toleration", "annotation", "secret_ref", mode="before")
    @classmethod
    def _words(cls, value: object) -> object:
        return words.as_words(value)

    @field_validator("resource")
    @classmethod
    def _resource(cls, value: tuple[str, ...]) -> tuple[str, ...]:
        for name, amount in words.pairs(value).items():
            if name in _OURS:
                raise ValueError(f"{name} is set by {_OURS[name]}")
            words.label_key(name)
            if not is_quantity(amount):
                raise ValueError(f"{name}={amount}: expected a count or an amount such as 4 or 50Gi")
            if "/" in name and not amount.isdigit():
                raise ValueError(f"{name}={amount}: devices come in whole numbers")
        return value

    @field_validator("node_selector")
    @classmethod
    def _selector(cls, value: tuple[str, ...]) -> tuple[str, ...]:
        for key, text in words.pairs(value).items():
            words.label_key(key)
            words.label_value(text)
        return value

    @field_validator("toleration")
    @classmethod
    def _tolerations(cls, value: tuple[str, ...]) -> tuple[str, ...]:
        for word in value:
            words.toleration(word)
        return value

    @field_validator("annotation")
    @classmethod
    def _annotations(cls, value: tuple[str, ...]) -> tuple[str, ...]:
        for key in words.pairs(value):
            words.label_key(key)
        return value

    @field_validator("secret_ref")
    @classmethod
    def _secret_refs(cls, value: tuple[str, ...]) -> tuple[str, ...]:
        for name, place in words.pairs(value).items():
            if _ENV_NAME.fullmatch(name) is None:
                raise ValueError(f"{name!r} is not the name of an environment variable")
            # The value itself is not quoted: it may be the secret, given by mistake.
            if (found := _SECRET_REF.fullmatch(place)) is None or _is_no_name(found["secret"]):
                raise ValueError(
                    f"{name}=… is not of the form NAME=SECRET/KEY: a Secret's name and a key of it"
                )
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
        if value != "never" and _TTL.fullmatch(value) is None:
            raise ValueError("expected 45s, 30m, 12h, 7d or never")
        return value

    @property
    def claim(self) -> tuple[str, str | None] | None:
        """The run volume's claim and the folder in it; None for an emptyDir."""
        found = _VOLUME.fullmatch(self.run_volume or "")
        return None if found is None else (found["name"], found["sub"])

    @property
    def ttl_s(self) -> int | None:
        """Seconds until an ended job is removed; None: never."""
        found = _TTL.fullmatch(self.ttl)
        return None if found is None else int(found[1]) * _SECONDS[found[2]]

    @property
    def secret_places(self) -> dict[str, tuple[str, str]]:
        """--secret-ref: variable -> (Secret, key)."""
        found = {name: place.partition("/") for name, place in words.pairs(self.secret_ref).items()}
        return {name: (secret, key) for name, (secret, _, key) in found.items()}


def _is_no_name(text: str) -> bool:
    try:
        words.dns_name(text)
    except ValueError:
        return True
    return False
