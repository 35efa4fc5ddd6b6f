"""Pods of a Job as real containers: built from its template by the Job controller's code, run by podman."""

from __future__ import annotations

import copy
import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import yaml

from cluster.api.defaults import set_defaults
from cluster.api.selectors import matches
from cluster.controllers.job_pods import new_pod
from cluster.nodes.image import Image
from cluster.nodes.network import DOMAIN
from cluster.objects import JOBS, PODS, Manifest
from cluster.podman.engine import GATEWAY, NETWORK, Engine, EngineError
from cluster.podman.image import import_args, mount_args, write_tar
from cluster.podman.placement import Placement, write_pod_files
from cluster.podman.run_flags import run_args

_NODE = "machine"
# https://kubernetes.io/docs/tasks/debug/debug-application/determine-reason-pod-failure/
_MESSAGE_BYTES = 4096


@dataclass(frozen=True)
class Manifests:
    """Objects printed by `launch --dry-run`.

    Attributes:
        config_maps: data of each, by name.
    """

    job: Manifest
    services: Sequence[Manifest]
    config_maps: Mapping[str, Mapping[str, str]]

    @classmethod
    def parse(cls, text: str) -> Manifests:
        """Parse a stream of objects; an unknown kind is an error."""
        found: dict[str, list[Manifest]] = {"Job": [], "Service": [], "ConfigMap": []}
        for one in yaml.safe_load_all(text):
            found[one["kind"]].append(one)
        (job,) = found["Job"]
        job["metadata"]["uid"] = str(uuid.uuid4())
        set_defaults(JOBS, job)
        config_maps = {one["metadata"]["name"]: one["data"] for one in found["ConfigMap"]}
        return cls(job, found["Service"], config_maps)

    def pod(self, index: int) -> Manifest:
        """Build a pod that is bound to a node."""
        pod = new_pod(copy.deepcopy(self.job), index)
        pod["metadata"] |= {"uid": str(uuid.uuid4()), "namespace": self.job["metadata"]["namespace"]}
        set_defaults(PODS, pod)
        pod["spec"]["nodeName"] = _NODE
        return pod

    def names(self, pod: Manifest) -> list[str]:
        """DNS names of a pod: of headless Services named as its subdomain and selecting it."""
        spec, where = pod["spec"], f"{pod['metadata']['namespace']}.{DOMAIN}"
        return [
            f"{spec['hostname']}.{service['metadata']['name']}.{where}"
            for service in self.services
            if service["spec"]["clusterIP"] == "None"
            and service["spec"]["publishNotReadyAddresses"]
            and service["metadata"]["name"] == spec["subdomain"]
            and matches(pod["metadata"]["labels"], service["spec"]["selector"])
        ]


@dataclass(frozen=True)
class PodmanPod:
    """One pod whose container was created."""

    engine: Engine
    manifest: Manifest
    place: Placement

    @property
    def name(self) -> str:
        return str(self.manifest["metadata"]["name"])

    @property
    def grace_s(self) -> float:
        return float(self.manifest["spec"]["terminationGracePeriodSeconds"])

    def facts(self) -> ProcessFacts:
        """Facts of the first process, while it runs."""
        return ProcessFacts(self.engine.process(self.name))

    def execute(self, *argv: str) -> str:
        """Run a command in the container; returns stdout."""
        return self.engine.podman("exec", self.name, *argv)

    @property
    def title(self) -> str:
        """Command line of its first process."""
        return " ".join(self.execute("cat", "/proc/1/cmdline").strip("\0").split("\0"))

    def stop(self) -> None:
        """SIGTERM, then SIGKILL after the template's grace period."""
        self.engine.podman("stop", self.name, timeout_s=self.grace_s + 30)

    def wait(self, within_s: float = 150) -> int:
        """Wait for the end; returns the exit code."""
        return int(self.engine.podman("wait", self.name, timeout_s=within_s))

    def log(self) -> str:
        """Its output."""
        return self.engine.run("sh", "-c", 'podman logs "$0" 2>&1', self.name)

    def message(self) -> str:
        """Termination message as a kubelet reads it; without a termination log the end of the log."""
        return self.place.termination_log.read_bytes()[:_MESSAGE_BYTES].decode() or self.log()[-2048:]


@dataclass(frozen=True)
class ProcessFacts:
    """Facts of a container's first process, from /proc."""

    text: str

    def _line(self, key: str) -> list[str]:
        (line,) = (line for line in self.text.splitlines() if line.startswith(f"{key}:"))
        return line.split()[1:]

    @property
    def pid(self) -> int:
        """Its pid in its own namespace."""
        return int(self._line("NSpid")[-1])

    @property
    def user(self) -> tuple[int, int]:
        return int(self._line("Uid")[1]), int(self._line("Gid")[1])

    @property
    def groups(self) -> set[int]:
        return {int(group) for group in self._line("Groups")}

    @property
    def capabilities(self) -> int:
        """Union of all five capability sets; 0 for none."""
        sets = ("CapInh", "CapPrm", "CapEff", "CapBnd", "CapAmb")
        return sum(int(self._line(name)[0], 16) for name in sets)

    @property
    def gains_nothing(self) -> bool:
        """Whether no_new_privs and a seccomp filter are set."""
        return self._line("NoNewPrivs") == ["1"] and self._line("Seccomp") == ["2"]

    def mount(self, target: str) -> tuple[str, list[str]]:
        """File system and options of the mount at a path."""
        rows = [line.split() for line in self.text.splitlines()]
        found = [(row[2], row[3].split(",")) for row in rows if len(row) == 6 and row[1] == target]
        return found[-1]


class PodmanPods:
    """Run pods of Jobs by podman.

    Attributes:
        volume: folder of the claim `runs`.
    """

    def __init__(self, engine: Engine, folder: Path) -> None:
        self.engine = engine
        self.volume = folder / "runs-volume"
        self.volume.mkdir()
        self._folder = folder
        self._names: list[str] = []

    def image(self, name: str, image: Image) -> None:
        """Build and import the image."""
        scratch = self._folder / "image"
        path = write_tar(image, scratch)
        self.engine.podman("import", *import_args(image), str(path), name)

    def start(self, manifests: Manifests, index: int) -> PodmanPod:
        """Start a pod of the Job."""
        manifest = manifests.pod(index)
        place = Placement(
            folder=self._folder / str(manifest["metadata"]["uid"]),
            claims={"runs": self.volume},
            network=NETWORK,
            address=self.engine.new_address(),
            dns=GATEWAY,
        )
        args = run_args(manifest, place)
        pod = PodmanPod(self.engine, manifest, place)
        write_pod_files(manifest, place, manifests.config_maps)
        self._check_user(manifest)
        self.engine.podman("run", "--detach", *self.engine.run_args, *mount_args(), *args)
        self._names += [f"{place.address} {name}\n" for name in manifests.names(manifest)]
        self.engine.zone.write_text("".join(self._names))
        return pod

    def _check_user(self, pod: Manifest) -> None:
        """Check runAsNonRoot as a kubelet does: a numeric user other than 0, of the pod or the image."""
        context, image = pod["spec"]["securityContext"], pod["spec"]["containers"][0]["image"]
        user = str(context.get("runAsUser", self.engine.inspect(image)["Config"]["User"].partition(":")[0]))
        if context["runAsNonRoot"] and not (user.isdigit() and int(user)):
            raise EngineError(f"container has runAsNonRoot and image will run as {user or 'root'}")
