"""The pods' network: one bridge in a namespace of its own, a cable to each pod, names by hosts files.

The host's own network is not touched. A pod's file has its own name and, as cluster DNS would answer, the
pods of each headless Service whose selector chooses them and that are ready (or publishNotReadyAddresses).
https://kubernetes.io/docs/concepts/services-networking/dns-pod-service/
Not emulated: cluster IPs, NetworkPolicy, caches of old answers.
"""

from __future__ import annotations

import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from k8s_objects import SERVICES, Manifest, is_true
from k8s_selectors import matches
from k8s_store import Store

BINARIES = ("ip", "nsenter", "unshare", "setpriv")
DOMAIN = "svc.cluster.local"
# The kernel kills it when the thread that started it has gone, so that no namespace is left.
WITH_US = ("setpriv", "--pdeathsig", "KILL")
SLEEP = "exec sleep infinity"


class NetworkError(RuntimeError):
    """A command of iproute2 failed."""


class Network:
    """The bridge, from `start` to `stop`."""

    def __init__(self) -> None:
        self._holder: subprocess.Popen[bytes] | None = None
        self._count = 0

    def start(self) -> None:
        """Make the bridge."""
        script = f"ip link add cluster type bridge && ip link set cluster up && echo && {SLEEP}"
        self._holder = held([*WITH_US, "unshare", "--net", "sh", "-c", script])

    def stop(self) -> None:
        """All cables go with it."""
        if self._holder is not None:
            self._holder.kill()
            self._holder.wait()

    def attach(self, pid: int) -> tuple[str, str]:
        """A cable to the network namespace of a process: its name, and an address that nobody had before."""
        assert self._holder is not None
        self._count += 1
        cable, address = f"pod{self._count}", f"10.244.{self._count // 250}.{self._count % 250 + 1}"
        _ip(
            self._holder.pid,
            f"link add {cable} type veth peer name eth0 netns {pid}",
            f"link set {cable} master cluster up",
        )
        _ip(pid, f"address add {address}/16 dev eth0", "link set eth0 up")
        return cable, address

    def cut(self, cable: str) -> None:
        """The pod hears and says nothing more, and lives on."""
        assert self._holder is not None
        _ip(self._holder.pid, f"link set {cable} down")

    def heal(self, cable: str) -> None:
        """Plug it in again."""
        assert self._holder is not None
        _ip(self._holder.pid, f"link set {cable} up")


def held(argv: Sequence[str]) -> subprocess.Popen[bytes]:
    """Start a process that holds namespaces open; it says a line once they are made."""
    pipe = subprocess.PIPE
    holder = subprocess.Popen(argv, stdin=subprocess.DEVNULL, stdout=pipe, stderr=pipe)
    assert holder.stdout is not None
    assert holder.stderr is not None
    with holder.stdout as out, holder.stderr as err:
        if not out.readline():
            raise NetworkError(f"{' '.join(argv)}: {err.read().decode().strip()}")
    return holder


def _ip(pid: int, *lines: str) -> None:
    words = ["nsenter", "--target", str(pid), "--net", "ip", "-batch", "-"]
    text = "".join(f"{line}\n" for line in lines)
    done = subprocess.run(words, input=text, capture_output=True, text=True, timeout=10)
    if done.returncode:
        raise NetworkError(f"ip {'; '.join(lines)}: {done.stderr.strip()}")


@dataclass(frozen=True)
class Place:
    """A pod that has an address."""

    pod: Manifest
    address: str

    @property
    def namespace(self) -> str:
        return str(self.pod["metadata"]["namespace"])

    @property
    def hostname(self) -> str:
        return str(self.pod["spec"].get("hostname") or self.pod["metadata"]["name"])

    @property
    def full_name(self) -> str:
        """As `hostname -f` says; the bare one where there is no subdomain."""
        subdomain = self.pod["spec"].get("subdomain")
        return f"{self.hostname}.{subdomain}.{self.namespace}.{DOMAIN}" if subdomain else self.hostname


def names_of(store: Store, places: Sequence[Place]) -> Mapping[str, str]:
    """The hosts file of each pod, by its uid."""
    records = [(place, service) for place in places for service in _services(store, place)]
    return {reader.pod["metadata"]["uid"]: _file(reader, records) for reader in places}


def _services(store: Store, place: Place) -> list[str]:
    """Headless Services that publish this pod's name: its subdomain, if the Service chooses it."""
    ready = is_true(place.pod, "Ready")
    labels = place.pod["metadata"].get("labels")
    return [
        service["metadata"]["name"]
        for service in store.select(SERVICES, place.namespace)
        if service["spec"].get("clusterIP") == "None"
        and service["metadata"]["name"] == place.pod["spec"].get("subdomain")
        and matches(labels, service["spec"].get("selector") or {})
        and (ready or service["spec"].get("publishNotReadyAddresses"))
    ]


def _file(reader: Place, records: Sequence[tuple[Place, str]]) -> str:
    own = [reader.full_name, reader.hostname]
    lines = ["127.0.0.1 localhost", f"{reader.address} {' '.join(dict.fromkeys(own))}"]
    for place, service in records:
        name, where = f"{place.hostname}.{service}", place.namespace
        words = [f"{name}.{where}.{DOMAIN}", f"{name}.{where}.svc", f"{name}.{where}"]
        # The search list of resolv.conf begins with the reader's namespace.
        words += [name] if where == reader.namespace else []
        lines.append(f"{place.address} {' '.join(words)}")
    return "\n".join([*lines, ""])


def rewrite(path: Path, text: str) -> None:
    """In place, for the file is mounted in a pod: never empty, never gone."""
    data = text.encode()
    with path.open("r+b" if path.exists() else "w+b", buffering=0) as file:
        if file.read() != data:
            file.seek(0)
            file.write(data)
            file.truncate()
