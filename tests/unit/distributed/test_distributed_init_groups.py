"""Ranks form a group, and every way in which that fails."""

from __future__ import annotations

import os
import socket
import time
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as torch_dist
from rendezvous_port import free_port

import dist_train as dt
from dist_train.distributed.run import current
from dist_train.env import RankInfo
from dist_train.errors import ConfigError, RendezvousError
from dist_train.testing import RanksFailed

pytestmark = pytest.mark.multiprocess


def _sum_of_ranks(rendezvous: str) -> list[int]:
    with dt.init(device="cpu", init_method=rendezvous, timeout_s=20) as run:
        box = torch.tensor([run.rank + 1])
        torch_dist.all_reduce(box)
        return [run.rank, run.world_size, int(box), run.control.max_int(run.rank), run.seed]


def test_file_rendezvous_removes_its_file_at_the_end(ranks: Any, tmp_path: Path) -> None:
    answers = ranks(3, _sum_of_ranks)
    assert [answer[:4] for answer in answers] == [[0, 3, 6, 2], [1, 3, 6, 2], [2, 3, 6, 2]]
    assert len({answer[4] for answer in answers}) == 1, "run.seed is agreed"
    assert list(tmp_path.iterdir()) == []


def test_tcp_rendezvous_with_a_late_rank_0(ranks: Any) -> None:
    def late(_: str, rendezvous: str) -> list[int]:
        time.sleep(1.0 if os.environ["RANK"] == "0" else 0.0)
        return _sum_of_ranks(rendezvous)

    answers = ranks(2, late, f"tcp://localhost:{free_port()}")
    assert [answer[2] for answer in answers] == [3, 3]


def test_env_rendezvous(ranks: Any) -> None:
    def by_env(_: str) -> list[int]:
        return _sum_of_ranks("env://")

    # Rank 0 serves the store, without an agent.
    environ = {"MASTER_PORT": str(free_port()), "TORCHELASTIC_USE_AGENT_STORE": "False"}
    assert [answer[2] for answer in ranks(2, by_env, environ=environ)] == [3, 3]


@pytest.mark.proof
def test_ten_runs_one_after_the_other_in_the_same_processes(ranks: Any) -> None:
    def rounds(rendezvous: str) -> int:
        for _ in range(10):
            run = dt.init(seed=1, device="cpu", init_method=rendezvous, timeout_s=20)
            model = dt.prepare(torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.Linear(4, 2)))
            optimizer = torch.optim.SGD(model.parameters(), 0.1)
            model(torch.randn(3, 4)).sum().backward()
            optimizer.step()
            run.close()
            # The model is freed after the group, which must not hang.
            kept = model
            del model, optimizer
        with pytest.raises(ConfigError, match="prepared for a run that is closed"):
            kept(torch.randn(3, 4))
        return len(list(dt.unwrap(kept).parameters()))

    assert ranks(4, rounds) == [4] * 4


def test_a_port_can_be_used_again_by_the_next_run_of_the_same_processes(ranks: Any) -> None:
    def rounds(_: str, rendezvous: str) -> list[int]:
        return [_sum_of_ranks(rendezvous)[2] for _ in range(5)]

    assert ranks(3, rounds, f"tcp://127.0.0.1:{free_port()}") == [[6] * 5] * 3


def test_a_second_init_returns_the_same_run_or_names_what_differs(ranks: Any) -> None:
    def twice(rendezvous: str) -> bool:
        with dt.init(seed=3, device="cpu", init_method=rendezvous, timeout_s=20) as run:
            assert dt.init() is run
            assert dt.init(seed=3) is run
            assert current() is run
            with pytest.raises(ConfigError, match=r"seed=4.*started with seed 3"):
                dt.init(seed=4)
        assert current() is None
        return not torch_dist.is_initialized()

    assert ranks(2, twice) == [True, True]


def test_one_process_needs_no_group() -> None:
    with dt.init(seed=0, device="cpu") as run:
        assert (run.world_size, run.is_main, run.device.type) == (1, True, "cpu")
        assert not torch_dist.is_initialized()
        assert run.control.sum([2.0]) == [2.0]


def test_ranks_with_different_seeds_are_refused(ranks: Any) -> None:
    def own_seed(rendezvous: str) -> str:
        with pytest.raises(ConfigError) as caught:
            dt.init(seed=int(os.environ["RANK"]), device="cpu", init_method=rendezvous, timeout_s=20)
        return caught.value.what

    assert ranks(2, own_seed) == ["rank 1 asks for seed 1, rank 0 for 0"] * 2


def _as_rank(monkeypatch: pytest.MonkeyPatch, rank: int, world_size: int = 2) -> None:
    for name, value in (("RANK", rank), ("LOCAL_RANK", rank), ("WORLD_SIZE", world_size)):
        monkeypatch.setenv(name, str(value))
    monkeypatch.setenv("LOCAL_WORLD_SIZE", str(world_size))


def test_a_port_in_use_fails_at_once_and_names_its_owner(monkeypatch: pytest.MonkeyPatch) -> None:
    _as_rank(monkeypatch, 0)
    began = time.monotonic()
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(
            RendezvousError, match=rf"port {port} is taken by .*\(pid {os.getpid()}\)"
        ) as caught:
            dt.init(device="cpu", init_method=f"tcp://127.0.0.1:{port}")
    assert caught.value.exit_code == 69
    assert f"kill {os.getpid()}" in str(caught.value)
    assert time.monotonic() - began < 3


def test_a_listener_that_never_answers_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    _as_rank(monkeypatch, 1)
    with (
        socket.create_server(("127.0.0.1", 0)) as silent,
        pytest.raises(RendezvousError, match="does not answer as rank 0's store") as caught,
    ):
        dt.init(device="cpu", init_method=f"tcp://127.0.0.1:{silent.getsockname()[1]}", timeout_s=2)
    assert "sent nothing" in str(caught.value)


@pytest.mark.parametrize(
    ("host", "reason"),
    [("127.0.0.1", "connection refused"), ("no-such-host.invalid", "no-such-host.invalid:")],
)
def test_a_missing_rank_0_is_named_after_the_timeout(
    monkeypatch: pytest.MonkeyPatch, host: str, reason: str
) -> None:
    _as_rank(monkeypatch, 1)
    with pytest.raises(RendezvousError, match=rf"{host}:\d+ cannot be reached: {reason}"):
        dt.init(device="cpu", init_method=f"tcp://{host}:{free_port()}", timeout_s=1)


def test_missing_ranks_are_named_on_every_rank(ranks: Any, tmp_path: Path) -> None:
    def of_four(rendezvous: str) -> str:
        os.environ["WORLD_SIZE"] = os.environ["LOCAL_WORLD_SIZE"] = "4"
        with pytest.raises(RendezvousError) as caught:
            dt.init(device="cpu", init_method=rendezvous, timeout_s=2)
        return caught.value.what

    assert set(ranks(2, of_four)) == {"ranks 2-3 of 4 did not come within 2 s"}


def test_a_stale_file_of_a_killed_run_is_refused(ranks: Any, tmp_path: Path) -> None:
    def die(_: str, rendezvous: str) -> None:
        dt.init(device="cpu", init_method=rendezvous, timeout_s=20).control.barrier()
        os._exit(0)

    rendezvous = f"file://{tmp_path}/left-over"
    with pytest.raises(RanksFailed, match="ended without an answer"):
        ranks(2, die, rendezvous)

    def again(_: str) -> list[str]:
        with pytest.raises(RendezvousError) as caught:
            dt.init(device="cpu", init_method=rendezvous, timeout_s=20)
        return [caught.value.what, str(caught.value.cause), str(caught.value.hint)]

    for rank, (what, cause, hint) in enumerate(ranks(3, again)):
        assert "left-over, last changed" in what
        assert "is not fresh" in what
        assert "which is dead" in cause or (rank == 2 and "made for 2 ranks" in cause)
        assert f"rm {tmp_path}/left-over" in hint


def test_a_foreign_file_is_refused(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    _as_rank(monkeypatch, 0)
    path = tmp_path / "notes.txt"
    path.write_text("mine")
    with pytest.raises(RendezvousError, match=r"notes.txt.*is not fresh"):
        dt.init(device="cpu", init_method=f"file://{path}", timeout_s=5)
    assert path.read_text() == "mine"


def test_a_duplicate_rank_is_refused(ranks: Any) -> None:
    def always_rank_0(rendezvous: str) -> str:
        second = os.environ["RANK"] == "1"
        os.environ["RANK"] = os.environ["LOCAL_RANK"] = "0"
        time.sleep(0.5 if second else 0.0)
        try:
            dt.init(device="cpu", init_method=rendezvous, timeout_s=2)
        except RendezvousError as error:
            return str(error)
        return "met"

    first, second = ranks(2, always_rank_0)
    assert "rank 1 of 2 did not come" in first
    assert "rank 0 was taken by pid" in second


def test_too_few_gpus_are_an_error_with_both_numbers(monkeypatch: pytest.MonkeyPatch) -> None:
    from dist_train.distributed.devices import bind

    info = RankInfo(0, 0, 0, 4, 4, 1, None, None, "manual")
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with pytest.raises(ConfigError, match="4 ranks on this node need 4 GPUs, but 0 are visible"):
        bind("cuda", info)
    assert bind("auto", info).type == "cpu"
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 3)
    with pytest.raises(ConfigError, match="need 4 GPUs, but 3 are visible"):
        bind("auto", info)
