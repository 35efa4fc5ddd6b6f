"""What a node says of itself: this machine's own facts, and recorded files of others."""

from __future__ import annotations

import os
import resource
import socket
from pathlib import Path

import pytest

from dist_train.cluster_check import node_facts
from dist_train.cluster_check.disk_state import file_system, read_disk
from dist_train.cluster_check.network_state import read_infiniband, read_network
from dist_train.cluster_check.node_facts import read_node
from dist_train.cluster_check.rank_limits import read_limits
from dist_train.doctor.facts import UNLIMITED, NodeFacts


def test_this_machine(tmp_path: Path) -> None:
    found = read_node(0, "cpu", tmp_path, os.environ, 4000)
    assert (found.node, found.host, found.port, found.problems) == (0, socket.gethostname(), 4000, ())
    assert set(found.versions) >= {"dist-train", "torch", "Python", "kernel"}
    assert [disk.what for disk in found.disks] == ["run directory", "temporary files"]
    assert all(disk.write_s is not None and disk.locks for disk in found.disks), found.disks
    assert list(tmp_path.iterdir()) == [], "what was written is removed"
    assert NodeFacts.model_validate_json(found.model_dump_json()) == found


def test_a_part_that_fails_is_a_problem_and_the_rest_is_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(gpus: object) -> None:
        raise RuntimeError("Unknown Error")

    monkeypatch.setattr(node_facts, "read_gpus", broken)
    found = read_node(0, "cpu", tmp_path, os.environ, 4000)
    assert found.problems == ("GPUs: RuntimeError: Unknown Error",)
    assert found.limits is not None


def test_limits_are_those_of_this_process() -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    found = read_limits()
    assert found.nofile == (UNLIMITED if soft == resource.RLIM_INFINITY else soft)
    assert found.nofile_hard == (UNLIMITED if hard == resource.RLIM_INFINITY else hard)
    assert 0 < found.cores.amount <= found.cores.machine


def test_the_interface_of_the_variable() -> None:
    found = read_network({"GLOO_SOCKET_IFNAME": "lo"})
    assert (found.interface, found.missing, found.loopback) == ("lo", "", "")
    assert found.chosen_by == "GLOO_SOCKET_IFNAME=lo"


def test_a_variable_that_names_no_interface() -> None:
    assert read_network({"GLOO_SOCKET_IFNAME": "ib7"}).missing == "ib7"


def test_infiniband_ports(tmp_path: Path) -> None:
    for device, state, rate in (
        ("mlx5_0", "4: ACTIVE", "400 Gb/sec (4X NDR)"),
        ("mlx5_1", "1: DOWN", "10 Gb/sec"),
    ):
        folder = tmp_path / device / "ports" / "1"
        folder.mkdir(parents=True)
        (folder / "state").write_text(f"{state}\n")
        (folder / "rate").write_text(f"{rate}\n")
    found = [(port.device, port.active, port.rate) for port in read_infiniband(tmp_path)]
    assert found == [("mlx5_0", True, 400.0), ("mlx5_1", False, 10.0)]


def test_a_disk_that_cannot_be_written(tmp_path: Path) -> None:
    found = read_disk("run directory", tmp_path / "absent", "0")
    assert found.problem == "No such file or directory"


MOUNTS = r"""
22 1 8:1 / / rw,relatime shared:1 - ext4 /dev/sda1 rw
40 22 0:35 / /shared rw,relatime - nfs4 server:/export rw
41 40 0:36 / /shared/runs\040of\040ann rw - lustre mds@tcp:/fs rw
42 22 0:37 / /sharedelsewhere rw - tmpfs tmpfs rw
"""


@pytest.mark.parametrize(
    ("folder", "kind"),
    [
        ("/shared/x", "nfs4"),
        ("/shared/runs of ann/1", "lustre"),
        ("/home", "ext4"),
        ("/sharedelsewhere", "tmpfs"),
    ],
)
def test_the_kind_of_file_system(tmp_path: Path, folder: str, kind: str) -> None:
    (tmp_path / "mountinfo").write_text(MOUNTS)
    assert file_system(Path(folder), tmp_path / "mountinfo") == kind
