"""The names of subprocess, multiprocessing and torch that handling a rank's signals depends on."""

from __future__ import annotations

import importlib
import inspect
import os
import signal
import subprocess
from multiprocessing import popen_fork, spawn, util
from multiprocessing.popen_forkserver import Popen as ForkServerPopen
from multiprocessing.popen_spawn_posix import Popen as SpawnPopen
from multiprocessing.resource_tracker import ResourceTracker

import pytest
from torch.utils.data._utils import worker


def test_a_commands_child_is_made_by_one_method_with_these_first_parameters() -> None:
    made = inspect.signature(subprocess.Popen._execute_child)  # type: ignore[attr-defined]
    assert list(made.parameters)[:4] == ["self", "args", "executable", "preexec_fn"]
    assert "self._execute_child(" in inspect.getsource(subprocess.Popen.__init__)


@pytest.mark.parametrize(
    "module",
    ["multiprocessing.popen_spawn_posix", "multiprocessing.forkserver", "multiprocessing.resource_tracker"],
)
def test_spawned_processes_trackers_and_fork_servers_start_by_the_function_that_we_set(module: str) -> None:
    assert list(inspect.signature(util.spawnv_passfds).parameters) == ["path", "args", "passfds"]
    assert "util.spawnv_passfds(" in inspect.getsource(importlib.import_module(module))


@pytest.mark.parametrize("popen", [SpawnPopen, ForkServerPopen])
def test_what_is_sent_to_a_new_process_is_prepared_by_the_function_that_we_set(popen: type) -> None:
    assert list(inspect.signature(spawn.get_preparation_data).parameters) == ["name"]
    assert "spawn.get_preparation_data(" in inspect.getsource(popen)


def test_a_new_process_unpickles_all_of_it_before_the_users_module_is_imported() -> None:
    assert "reduction.pickle.load(" in inspect.getsource(spawn._main)
    source = inspect.getsource(spawn._main)
    assert source.index("prepare(") > source.index("load(")


def test_the_resource_tracker_is_started_by_the_method_that_we_wrap() -> None:
    assert list(inspect.signature(ResourceTracker.ensure_running).parameters) == ["self"]


def test_forks_of_multiprocessing_are_recognised_by_the_module() -> None:
    assert "os.fork()" in inspect.getsource(popen_fork.Popen._launch)  # type: ignore[attr-defined]


def test_a_command_can_be_started_with_another_mask() -> None:
    for start in (os.posix_spawn, os.posix_spawnp):  # inspect cannot read their signatures
        child = start("/bin/true", ["true"], {}, setsigmask={signal.SIGTERM})
        assert os.waitpid(child, 0)[1] == 0


def test_torch_names_a_loaders_worker() -> None:
    assert worker.get_worker_info() is None
