"""Pod network: a bridge in its own namespace, a veth pair to each pod, names by hosts files.

The host's network is not changed. A pod's hosts file has its own name and, as cluster DNS would resolve, the
pods of each headless Service that selects them and that are ready (or publishNotReadyAddresses).
https://kubernetes.io/docs/concepts/services-networking/dns-pod-service/
Not emulated: cluster IPs, NetworkPolicy, caches of old answers.
"""

from __future__ import annotations

import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from cluster.api.selectors import matches
from cluster.api.store import Store
from cluster.objects import SERVICES, Manifest, is_true

BINARIES = ("ip", "nsenter", "unshare", "setpriv")
DOMAIN = "svc.cluster.local"
# The kernel kills the process when the thread that started it ends, so that no namespace is left.
DIE_WITH_PARENT = ("setpriv", "--pdeathsig", "KILL")
SLEEP = "exec sleep infinity"


class NetworkError(RuntimeError):
    """A command of iproute2 failed."""


class Network:
    """The bridge, from `start` to `stop`."""

    def __init__(self) -> None:
        self._holder: subprocess.Popen[bytes] | None = None
        self._count = 0

    def start(self) -> None:
        """Create the bridge."""
        script = f"ip link add cluster type bridge && ip link set cluster up && echo && {SLEEP}"
        self._holder = start_holder([*DIE_WITH_PARENT, "unshare", "--net", "sh", "-c", script])

    def stop(self) -> None:
        """Remove the bridge, and all veth pairs with it."""
        if self._holder is not None:
            self._holder.kill()
            self._holder.wait()

    def attach(self, pid: int) -> tuple[str, str]:
        """Connect a process's network namespace; returns the veth's name and a new address."""
        assert self._holder is not None
        self._count += 1
        veth, address = f"pod{self._count}", f"10.244.{self._count // 250}.{self._count % 250 + 1}"
        _ip(
            self._holder.pid,
            f"link add {veth} type veth peer name eth0 netns {pid}",
            f"link set {veth} master cluster up",
        )
        _ip(pid, f"address add {address}/16 dev eth0", "link set eth0 up")
        return veth, address

    def disconnect(self, veth: str) -> None:
        """Take a pod's link down; its processes keep running."""
        assert self._holder is not None
        _ip(self._holder.pid, f"link set {veth} down")

    def reconnect(self, veth: str) -> None:
        """Bring the link up again."""
        assert self._holder is not None
        _ip(self._holder.pid, f"link set {veth} up")


def start_holder(argv: Sequence[str]) -> subprocess.Popen[bytes]:
    """Start a process that keeps namespaces open; it prints a line once they exist."""
    pipe = subprocess.PIPE
    holder = subprocess.Popen(argv, stdin=subprocess.DEVNULL, stdout=pipe, stderr=pipe)
    assert holder.stdout is not None
    assert holder.stderr is not None
    with holder.stdout as out, holder.stderr as err:
        if not out.readline():
            raise NetworkError(f"{' '.join(argv)}: {err.read().decode().strip()}")
    return holder


def _ip(pid: int, *lines: str) -> None:
    argv = ["nsenter", "--target", str(pid), "--net", "ip", "-batch", "-"]
    text = "".join(f"{line}\n" for line in lines)
    done = subprocess.run(argv, input=text, capture_output=True, text=True, timeout=10)
    if done.returncode:
        raise NetworkError(f"ip {'; '.join(lines)}: {done.stderr.strip()}")


@dataclass(frozen=True)
class Endpoint:
    """A pod and its address."""

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
        """Name of `hostname -f`; the short one without a subdomain."""
        subdomain = self.pod["spec"].get("subdomain")
        return f"{self.hostname}.{subdomain}.{self.namespace}.{DOMAIN}" if subdomain else self.hostname


def hosts_files(store: Store, endpoints: Sequence[Endpoint]) -> Mapping[str, str]:
    """Text of each pod's hosts file, by uid."""
    records = [(endpoint, service) for endpoint in endpoints for service in _services(store, endpoint)]
    return {reader.pod["metadata"]["uid"]: _file(reader, records) for reader in endpoints}


def _services(store: Store, endpoint: Endpoint) -> list[str]:
    """Headless Services that publish the pod: named as its subdomain, and selecting it."""
    ready = is_true(endpoint.pod, "Ready")
    labels = endpoint.pod["metadata"].get("labels")
    return [
        service["metadata"]["name"]
        for service in store.select(SERVICES, endpoint.namespace)
        if service["spec"].get("clusterIP") == "None"
        and service["metadata"]["name"] == endpoint.pod["spec"].get("subdomain")
        and matches(labels, service["spec"].get("selector") or {})
        and (ready or service["spec"].get("publishNotReadyAddresses"))
    ]


def _file(reader: Endpoint, records: Sequence[tuple[Endpoint, str]]) -> str:
    own = [reader.full_name, reader.hostname]
    lines = ["127.0.0.1 localhost", f"{reader.address} {' '.join(dict.fromkeys(own))}"]
    for endpoint, service in records:
        name, where = f"{endpoint.hostname}.{service}", endpoint.namespace
        names = [f"{name}.{where}.{DOMAIN}", f"{name}.{where}.svc", f"{name}.{where}"]
        # The search list of resolv.conf begins with the reader's namespace.
        names += [name] if where == reader.namespace else []
        lines.append(f"{endpoint.address} {' '.join(names)}")
    return "\n".join([*lines, ""])


def rewrite(path: Path, text: str) -> None:
    """Rewrite in place, since the file is mounted in a pod; it is never empty or missing."""
    data = text.encode()
    with path.open("r+b" if path.exists() else "w+b", buffering=0) as file:
        if file.read() != data:
            file.seek(0)
            file.write(data)
            file.truncate()
