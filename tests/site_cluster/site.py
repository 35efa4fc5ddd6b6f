"""The cluster that `make test-cluster` was given, and the command lines for it."""

from __future__ import annotations

import os
import secrets
import shlex
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

CONFIG = Path(__file__).resolve().parents[2] / "examples" / "digits.yaml"
# Make's variables, as its command line exports them.
_SESSION = "DIST_TRAIN_SITE_SESSION"


class Missing(Exception):
    """Something that the target needs is not there: what, and what to do."""


@dataclass(frozen=True)
class Site:
    """What was given. `session`: begins each run's name, and is the folder on the run volume."""

    namespace: str
    image: str
    claim: str
    options: tuple[str, ...]
    session: str

    def launch(self, name: str, *words: str, nodes: int = 2) -> list[str]:
        """The arguments of a launch of digits on the CPU, one rank a node."""
        size = ("--device", "cpu", "--nodes", str(nodes), "--gpus-per-node", "1", "--mem", "2Gi")
        place = ("--namespace", self.namespace, "--run-volume", f"pvc/{self.claim}:{self.session}")
        named = ("--name", self.run(name), "--run-id", self.run(name))
        head = ("launch", str(CONFIG), "--launcher", "kubernetes", "--image", self.image)
        return [*head, *place, *size, *named, *self.options, *words]

    def run(self, name: str) -> str:
        """The name and id of a run of this session."""
        return f"{self.session}-{name}"

    @property
    def environ(self) -> dict[str, str]:
        """For the tests' process."""
        given = {"NAMESPACE": self.namespace, "IMAGE": self.image, "CLAIM": self.claim}
        return {**given, "OPTIONS": shlex.join(self.options), _SESSION: self.session}


def read_site(environ: Mapping[str, str] = os.environ) -> Site:
    """Read make's variables; raises Missing with all that were not given."""
    hints = {
        "KUBECONFIG": "the kubeconfig of the cluster",
        "NAMESPACE": "a namespace in which the tests may create and delete Jobs and pods",
        "IMAGE": "an image with this dist-train and torch (k8s/Dockerfile builds one)",
    }
    if missing := [f"{name}=…  {hint}" for name, hint in hints.items() if not environ.get(name)]:
        raise Missing("not given: " + "; ".join(missing))
    return Site(
        environ["NAMESPACE"],
        environ["IMAGE"],
        environ.get("CLAIM") or "runs",
        tuple(shlex.split(environ.get("OPTIONS") or "")),
        environ.get(_SESSION) or f"dt-test-{secrets.token_hex(3)}",
    )
