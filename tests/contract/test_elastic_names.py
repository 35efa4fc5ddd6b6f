"""The private names of torch elastic that our agent overrides or sets: a renamed one is noticed here."""

from __future__ import annotations

import inspect

import pytest
from torch.distributed.elastic.agent.server.api import RunResult, SimpleElasticAgent, WorkerGroup, WorkerSpec
from torch.distributed.elastic.agent.server.local_elastic_agent import LocalElasticAgent

from dist_train.agent.workers.elastic_agent import NodeAgent

OVERRIDDEN = {
    "_start_workers": ["self", "worker_group"],
    "_monitor_workers": ["self", "worker_group"],
    "_stop_workers": ["self", "worker_group"],
    "_shutdown": ["self", "death_sig", "timeout"],
    "_exit_barrier": ["self"],
}


@pytest.mark.parametrize("name", OVERRIDDEN)
def test_what_we_override_is_there_with_the_same_parameters(name: str) -> None:
    theirs = inspect.signature(getattr(LocalElasticAgent, name))
    ours = inspect.signature(vars(NodeAgent)[name])
    assert list(theirs.parameters) == list(ours.parameters) == OVERRIDDEN[name]


def test_the_loop_asks_the_names_that_we_set() -> None:
    loop = inspect.getsource(SimpleElasticAgent._invoke_run)
    for name in ("_remaining_restarts > 0", "_monitor_workers", "_restart_workers", "_exit_barrier"):
        assert name in loop, name
    assert "TORCH_ELASTIC_WORKER_IDENTICAL" in inspect.getsource(SimpleElasticAgent._assign_worker_ranks)


def test_records_have_the_fields_that_we_fill() -> None:
    assert {"state", "return_values"} <= set(inspect.signature(RunResult).parameters)
    needed = {
        "role",
        "local_world_size",
        "rdzv_handler",
        "entrypoint",
        "args",
        "max_restarts",
        "monitor_interval",
    }
    assert needed <= set(inspect.signature(WorkerSpec).parameters)
    group = WorkerGroup(_spec())
    assert all(hasattr(group, name) for name in ("master_addr", "master_port", "workers"))


def _spec() -> WorkerSpec:
    return WorkerSpec(role="default", local_world_size=1, rdzv_handler=None, entrypoint="python")  # type: ignore[arg-type]
