"""What each platform answers from the environment: the agent's address, its job, its unique id."""

from __future__ import annotations

import socket
from typing import Any

import pytest

from dist_train import env
from dist_train.agent.coordination.address import Address
from dist_train.agent.platform.base_platform import Platform
from dist_train.agent.platform.choose_platform import platform_of
from dist_train.agent.platform.kubernetes_platform import KubernetesPlatform
from dist_train.agent.platform.local_platform import LocalPlatform
from dist_train.agent.platform.slurm_platform import SlurmPlatform


@pytest.fixture(autouse=True)
def _host(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(socket, "gethostname", lambda: "gpu01")


def resolve(monkeypatch: pytest.MonkeyPatch, **names: str) -> None:
    """Only these names have an address."""

    def getaddrinfo(name: str, *args: Any, **more: Any) -> list[Any]:
        if name not in names:
            raise socket.gaierror(-2, "Name or service not known")
        family = socket.AF_INET6 if ":" in names[name] else socket.AF_INET
        return [(family, socket.SOCK_STREAM, 6, "", (names[name], 0))]

    monkeypatch.setattr(socket, "getaddrinfo", getaddrinfo)


@pytest.mark.parametrize(
    ("launcher", "platform"),
    [
        ("local", LocalPlatform),
        ("slurm", SlurmPlatform),
        ("kubernetes", KubernetesPlatform),
        ("another", Platform),
    ],
)
def test_the_launchers_name_chooses_the_platform(launcher: str, platform: type[Platform]) -> None:
    assert type(platform_of(launcher)) is platform


def test_an_interface_is_used_on_every_platform() -> None:
    for launcher in ("local", "slurm", "kubernetes"):
        found = platform_of(launcher).address({env.INTERFACE: "lo", "SLURMD_NODENAME": "n17"})
        assert (found.host, found.interface) == ("127.0.0.1", "lo")


@pytest.mark.parametrize("address", ["10.1.2.3", "fd00:1::17"])
def test_slurm_agents_are_reached_by_their_node_name(monkeypatch: pytest.MonkeyPatch, address: str) -> None:
    resolve(monkeypatch, n17=address)
    expected = Address("n17", None, "SLURMD_NODENAME=n17")
    assert platform_of("slurm").address({"SLURMD_NODENAME": "n17"}) == expected


def test_a_node_name_that_does_not_resolve(monkeypatch: pytest.MonkeyPatch) -> None:
    resolve(monkeypatch, gpu01="192.168.0.7")
    found = platform_of("slurm").address({"SLURMD_NODENAME": "n17"})
    assert (found.host, found.interface) == ("gpu01", None)
    assert found.why == "SLURMD_NODENAME=n17 does not resolve here, so the machine's own name gpu01"


@pytest.mark.parametrize("launcher", ["local", "another"])
def test_other_agents_are_reached_by_the_machines_own_name(
    monkeypatch: pytest.MonkeyPatch, launcher: str
) -> None:
    resolve(monkeypatch, n17="10.1.2.3")
    found = platform_of(launcher).address({"SLURMD_NODENAME": "n17"})
    assert found == Address("gpu01", None, "the machine's own name gpu01")


@pytest.mark.parametrize(
    ("address", "host"),
    [
        ("10.8.0.3", "10.8.0.3"),
        ("fd00:8::3", "fd00:8::3"),  # a cluster without IPv4
        ("127.0.1.1", "gpu01"),
        (None, "gpu01"),
    ],
)
def test_pods_are_reached_by_their_ip_address_where_they_have_one(
    monkeypatch: pytest.MonkeyPatch, address: str | None, host: str
) -> None:
    """A pod's own name is in its /etc/hosts at once; in the cluster's DNS it may come later."""
    resolve(monkeypatch, **({} if address is None else {"gpu01": address}))
    assert platform_of("kubernetes").address({}).host == host


@pytest.mark.parametrize(
    ("launcher", "environ", "job"),
    [
        ("slurm", {"SLURM_JOB_ID": "12"}, "12.0"),
        ("slurm", {"SLURM_JOB_ID": "12", "SLURM_RESTART_COUNT": "3"}, "12.3"),
        ("local", {"SLURM_JOB_ID": "12", env.JOB: "digits.1"}, "digits.1"),
        ("kubernetes", {env.JOB: "train.0"}, "train.0"),
        ("local", {}, "job.0"),
    ],
)
def test_each_start_of_a_job_has_a_name(launcher: str, environ: dict[str, str], job: str) -> None:
    assert platform_of(launcher).job(environ) == job


def test_pods_have_a_unique_id() -> None:
    pods = platform_of("kubernetes")
    assert pods.instance({env.POD_UID: "uid-1"}) == "uid-1"
    assert pods.instance({}) != pods.instance({}), "also where the uid is not known"
    assert platform_of("slurm").instance({env.POD_UID: "uid-1"}) == ""
