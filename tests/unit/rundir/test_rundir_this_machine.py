"""A machine is the boot of a kernel and a namespace of pids: named in one place, for leases and ranks."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import dist_train
from dist_train.distributed.membership_check import Handshake
from dist_train.rundir.this_machine import this_machine

SOURCE = Path(dist_train.__file__).parent
NO_PID = 2**22 + 1  # above the kernel's largest


def test_one_module_asks_the_system() -> None:
    asking = [path.name for path in SOURCE.rglob("*.py") if "ns/pid" in path.read_text(encoding="utf-8")]
    assert asking == ["this_machine.py"]
    assert this_machine() == this_machine() != ""


def test_a_rank_of_another_boot_with_the_same_host_name_is_not_said_to_be_dead() -> None:
    here = Handshake.of_this_process(None, None)
    assert not here.is_dead()
    assert replace(here, pid=NO_PID).is_dead()
    namespace = this_machine().partition(" ")[2]
    assert not replace(here, pid=NO_PID, machine=f"another-boot {namespace}").is_dead()
    assert not replace(here, pid=NO_PID, machine="").is_dead(), "not known"
