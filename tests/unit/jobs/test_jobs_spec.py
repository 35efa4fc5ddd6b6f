"""The job's record: as JSON and back, and the agent's command and environment made from it."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

from dist_train import env
from dist_train.jobs import JobHandle, JobSpec, Plan, Target
from dist_train.jobs.agent_command import agent_argv, agent_environ
from dist_train.jobs.spec import canonical_json

SPEC = JobSpec(
    "digits-1",
    "digits-ab12cd",
    Path("/runs/with space/digits-1"),
    Target("script", "/code/train.py", ("--lr", "0.1", "a b\n'c'"), "/code"),
    nodes=2,
    procs_per_node=4,
    max_restarts=5,
    env=(("A", "b c"), ("Z", "=;$'")),
    time_limit_s=90,
    grace_s=12.5,
    interface="eth0",
    gpus=("GPU-1",),
    resources=(("mem", "64G"),),
)


def test_it_reads_back_equal_from_json() -> None:
    assert JobSpec.from_json(json.loads(json.dumps(SPEC.to_json()))) == SPEC
    assert SPEC.world_size == 8


def test_keys_of_later_versions_do_not_matter() -> None:
    assert JobSpec.from_json({**SPEC.to_json(), "moon": 1}) == SPEC


def test_the_same_record_is_the_same_bytes() -> None:
    record = SPEC.to_json()
    assert canonical_json(record) == canonical_json(dict(reversed(list(record.items()))))


def test_a_handle_names_its_launcher() -> None:
    handle = JobHandle("slurm:123:4")
    assert (handle.launcher, handle.id) == ("slurm", "123:4")
    assert Plan("local", (("a", b"1"), ("b", b"2")), "").file("b") == b"2"


def test_the_agents_command_ends_with_the_target_and_its_arguments() -> None:
    argv = agent_argv(SPEC, "/usr/bin/python3")
    assert argv[:4] == ["/usr/bin/python3", "-P", "-m", "dist_train.agent"]
    assert argv[-5:] == ["script", "/code/train.py", "--lr", "0.1", "a b\n'c'"]
    assert "--accept-code-change" not in argv


def test_the_agent_reads_what_the_launcher_writes() -> None:
    from dist_train.agent.command_line import read_settings

    environ = agent_environ(SPEC, "local", 1, "tcp://127.0.0.1:29400", job="local.0")
    settings = read_settings(agent_argv(SPEC, "python")[4:], environ)
    assert (settings.run_id, settings.run.path, settings.node, settings.nodes, settings.procs) == (
        SPEC.run_id,
        SPEC.run_dir,
        1,
        2,
        4,
    )
    assert (settings.grace_s, settings.max_restarts, settings.value, settings.args) == (
        12.5,
        5,
        SPEC.target.value,
        SPEC.target.args,
    )
    assert environ["A"] == "b c"
    assert environ[env.INTERFACE] == "eth0"


def test_a_node_that_the_cluster_numbers_is_not_numbered_here() -> None:
    assert env.NODE_RANK not in agent_environ(SPEC, "slurm", None, "x")


def test_the_agent_gets_the_limit_of_the_logs_where_one_was_chosen() -> None:
    from dist_train.agent.command_line import read_settings

    environ = agent_environ(SPEC, "local", 1, "tcp://127.0.0.1:29400", job="local.0")
    assert not [word for word in agent_argv(SPEC, "python") if word.startswith("--log-limit")]
    chosen = replace(SPEC, log_limit_bytes=1 << 20)
    settings = read_settings(agent_argv(chosen, "python")[4:], environ)
    assert settings.log_limit_bytes == 1 << 20


def test_the_agent_gets_the_steps_to_profile_where_some_were_chosen() -> None:
    from dist_train.agent.command_line import read_settings

    environ = agent_environ(SPEC, "local", 1, "tcp://127.0.0.1:29400", job="local.0")
    assert not [word for word in agent_argv(SPEC, "python") if word.startswith("--profile")]
    chosen = replace(SPEC, profile="4:6", profile_ranks="0,3")
    settings = read_settings(agent_argv(chosen, "python")[4:], environ)
    assert (settings.profile, settings.profile_ranks) == ("4:6", "0,3")
    assert JobSpec.from_json(chosen.to_json()) == chosen
