"""A Job's pods as real containers: made from its template as the Job controller would, run by podman."""

from __future__ import annotations

import copy
import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import yaml
from k8s_defaults import complete
from k8s_image import Image
from k8s_job_pods import pod_of
from k8s_network import DOMAIN
from k8s_objects import JOBS, PODS, Manifest
from k8s_selectors import matches
from podman_engine import GATEWAY, NETWORK, Engine, EngineError
from podman_flags import run_words
from podman_image import import_words, mount_words, write_tar
from podman_place import Place, write_pod_files

_NODE = "machine"
# https://kubernetes.io/docs/tasks/debug/debug-application/determine-reason-pod-failure/
_MESSAGE_BYTES = 4096


@dataclass(frozen=True)
class Manifests:
    """What `launch --dry-run` printed.

    Attributes:
        config_maps: their data, by name.
    """

    job: Manifest
    services: Sequence[Manifest]
    config_maps: Mapping[str, Mapping[str, str]]

    @classmethod
    def parse(cls, text: str) -> Manifests:
        """Every object of the stream; an unknown kind is an error."""
        found: dict[str, list[Manifest]] = {"Job": [], "Service": [], "ConfigMap": []}
        for one in yaml.safe_load_all(text):
            found[one["kind"]].append(one)
        (job,) = found["Job"]
        job["metadata"]["uid"] = str(uuid.uuid4())
        complete(JOBS, job)
        config_maps = {one["metadata"]["name"]: one["data"] for one in found["ConfigMap"]}
        return cls(job, found["Service"], config_maps)

    def pod(self, index: int) -> Manifest:
        """A new one, on a node."""
        pod = pod_of(copy.deepcopy(self.job), index)
        pod["metadata"] |= {"uid": str(uuid.uuid4()), "namespace": self.job["metadata"]["namespace"]}
        complete(PODS, pod)
        pod["spec"]["nodeName"] = _NODE
        return pod

    def names(self, pod: Manifest) -> list[str]:
        """In the cluster's DNS: headless Services that are its subdomain and choose it."""
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
    """One pod, its container created."""

    engine: Engine
    manifest: Manifest
    place: Place

    @property
    def name(self) -> str:
        return str(self.manifest["metadata"]["name"])

    @property
    def grace_s(self) -> float:
        return float(self.manifest["spec"]["terminationGracePeriodSeconds"])

    def facts(self) -> ProcessFacts:
        """Of the first process, while it runs."""
        return ProcessFacts(self.engine.process(self.name))

    def execute(self, *argv: str) -> str:
        """A command in the running container: what it prints."""
        return self.engine.podman("exec", self.name, *argv)

    @property
    def title(self) -> str:
        """The words of its first process."""
        return " ".join(self.execute("cat", "/proc/1/cmdline").strip("\0").split("\0"))

    def stop(self) -> None:
        """TERM, and KILL after the template's grace."""
        self.engine.podman("stop", self.name, timeout_s=self.grace_s + 30)

    def wait(self, within_s: float = 150) -> int:
        """Its exit code."""
        return int(self.engine.podman("wait", self.name, timeout_s=within_s))

    def log(self) -> str:
        """All that it printed."""
        return self.engine.run("sh", "-c", 'podman logs "$0" 2>&1', self.name)

    def message(self) -> str:
        """What a kubelet would tell; without a termination log, the log's end."""
        return self.place.termination_log.read_bytes()[:_MESSAGE_BYTES].decode() or self.log()[-2048:]


@dataclass(frozen=True)
class ProcessFacts:
    """What the kernel says of a container's first process."""

    text: str

    def _line(self, key: str) -> list[str]:
        (line,) = (line for line in self.text.splitlines() if line.startswith(f"{key}:"))
        return line.split()[1:]

    @property
    def pid(self) -> int:
        """As it sees itself."""
        return int(self._line("NSpid")[-1])

    @property
    def user(self) -> tuple[int, int]:
        return int(self._line("Uid")[1]), int(self._line("Gid")[1])

    @property
    def groups(self) -> set[int]:
        return {int(word) for word in self._line("Groups")}

    @property
    def capabilities(self) -> int:
        """All five sets."""
        sets = ("CapInh", "CapPrm", "CapEff", "CapBnd", "CapAmb")
        return sum(int(self._line(name)[0], 16) for name in sets)

    @property
    def gains_nothing(self) -> bool:
        """No new privileges, system calls filtered."""
        return self._line("NoNewPrivs") == ["1"] and self._line("Seccomp") == ["2"]

    def mount(self, target: str) -> tuple[str, list[str]]:
        """File system and options of what lies there."""
        rows = [line.split() for line in self.text.splitlines()]
        found = [(row[2], row[3].split(",")) for row in rows if len(row) == 6 and row[1] == target]
        return found[-1]


class PodmanPods:
    """A machine that runs pods of Jobs.

    Attributes:
        volume: the claim `runs`.
    """

    def __init__(self, engine: Engine, folder: Path) -> None:
        self.engine = engine
        self.volume = folder / "runs-volume"
        self.volume.mkdir()
        self._folder = folder
        self._names: list[str] = []

    def image(self, name: str, image: Image) -> None:
        """Make it."""
        scratch = self._folder / "image"
        path = write_tar(image, scratch)
        self.engine.podman("import", *import_words(image), str(path), name)

    def start(self, manifests: Manifests, index: int) -> PodmanPod:
        """A new pod of the Job, running."""
        manifest = manifests.pod(index)
        place = Place(
            folder=self._folder / str(manifest["metadata"]["uid"]),
            claims={"runs": self.volume},
            network=NETWORK,
            address=self.engine.new_address(),
            dns=GATEWAY,
        )
        words = run_words(manifest, place)
        pod = PodmanPod(self.engine, manifest, place)
        write_pod_files(manifest, place, manifests.config_maps)
        self._check_user(manifest)
        self.engine.podman("run", "--detach", *self.engine.words, *mount_words(), *words)
        self._names += [f"{place.address} {name}\n" for name in manifests.names(manifest)]
        self.engine.zone.write_text("".join(self._names))
        return pod

    def _check_user(self, pod: Manifest) -> None:
        """As a kubelet: runAsNonRoot wants a number that is not 0, of the pod's or of the image's."""
        context, image = pod["spec"]["securityContext"], pod["spec"]["containers"][0]["image"]
        user = str(context.get("runAsUser", self.engine.inspect(image)["Config"]["User"].partition(":")[0]))
        if context["runAsNonRoot"] and not (user.isdigit() and int(user)):
            raise EngineError(f"container has runAsNonRoot and image will run as {user or 'root'}")
