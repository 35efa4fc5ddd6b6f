"""run_ranks: values in rank order, every rank's traceback, a deadline with stacks, no processes left."""

from __future__ import annotations

import os
import subprocess
import sys
import time

import psutil
import pytest

from dist_train.testing import RanksFailed, run_ranks


def add_up() -> int:
    import dist_train as dt

    with dt.init(seed=0, device="cpu") as run:
        return int(run.control.sum([float(run.rank)])[0]) * 10 + run.rank


def test_dt_init_works_and_values_are_in_rank_order() -> None:
    assert run_ranks(add_up, 3) == [30, 31, 32]


def test_plain_init_process_group_works() -> None:
    def rank() -> float:
        import torch
        import torch.distributed as torch_dist

        torch_dist.init_process_group("gloo")
        box = torch.ones(1)
        torch_dist.all_reduce(box)
        torch_dist.barrier()
        torch_dist.destroy_process_group()
        return box.item()

    assert run_ranks(rank, 2) == [2.0, 2.0]


def test_a_spawned_rank_takes_a_function_of_a_module() -> None:
    assert run_ranks(os.getenv, 1, args=("WORLD_SIZE",), start="spawn") == ["1"]


def test_an_open_run_is_closed() -> None:
    def leave_it_open() -> int:
        import dist_train as dt

        return dt.init(seed=0, device="cpu").world_size

    assert run_ranks(leave_it_open, 2) == [2, 2]


def test_every_failed_rank_is_reported_with_its_traceback() -> None:
    def fail() -> None:
        rank = int(os.environ["RANK"])
        if rank != 1:
            raise ValueError(f"boom of {rank}")

    with pytest.raises(RanksFailed, match="2 of 3 ranks failed") as caught:
        run_ranks(fail, 3)
    assert sorted(caught.value.tracebacks) == [0, 2]
    assert "ValueError: boom of 2" in caught.value.tracebacks[2]
    assert "in fail" in caught.value.tracebacks[0]
    assert "boom of 0" in str(caught.value)


def test_at_the_deadline_every_stack_is_reported_and_the_ranks_are_killed() -> None:
    sleeper = [sys.executable, "-c", "import time; time.sleep(61)"]

    def hang() -> None:
        subprocess.run(sleeper)

    began = time.monotonic()
    with pytest.raises(RanksFailed, match="2 of 2") as caught:
        run_ranks(hang, 2, timeout_s=1.0)
    assert time.monotonic() - began < 10
    assert all(
        "no answer after 1 s" in text and "in hang" in text for text in caught.value.tracebacks.values()
    )
    assert not any(runs(child, sleeper) for child in psutil.Process().children(recursive=True))


def test_at_the_deadline_each_rank_s_threads_and_connections_are_reported() -> None:
    """A stack of Python does not say where a rank hangs in gloo, nor whether its peer has answered."""

    def hang() -> None:
        import socket

        with socket.create_server(("127.0.0.1", 0)) as listener, socket.socket() as client:
            client.connect(listener.getsockname())
            client.sendall(b"four")
            peer, _ = listener.accept()
            with peer:
                time.sleep(61)

    with pytest.raises(RanksFailed) as caught:
        run_ranks(hang, 1, timeout_s=3.0)
    text = caught.value.tracebacks[0]
    rank, store = text.split("the process that serves the ranks' store:")
    assert "thread " in rank
    assert " S in " in rank
    assert "LISTEN" in rank
    assert "ESTABLISHED, 4 unread" in rank
    port = next(line for line in store.splitlines() if "LISTEN" in line)
    assert "socket 127.0.0.1:" in port
    assert "the longest pause of its parent: " in text


def runs(process: psutil.Process, words: list[str]) -> bool:
    try:
        return process.cmdline() == words
    except psutil.NoSuchProcess:  # a zombie is one, too
        return False


def test_a_rank_that_waits_for_a_failed_one_is_killed_early() -> None:
    def half() -> None:
        if os.environ["RANK"] == "0":
            raise KeyError("first")
        time.sleep(60)

    began = time.monotonic()
    with pytest.raises(RanksFailed) as caught:
        run_ranks(half, 2, after_failure_s=0.5)
    assert time.monotonic() - began < 10
    assert "KeyError: 'first'" in caught.value.tracebacks[0]
    assert "still running 0.5 s after another rank failed" in caught.value.tracebacks[1]


@pytest.mark.parametrize(
    ("leave", "cause"),
    [
        (lambda: os._exit(3), "exit code 3"),
        (lambda: os.kill(os.getpid(), 9), "SIGKILL"),
        (lambda: sys.exit(0), "SystemExit: 0"),
    ],
    ids=["exit", "signal", "sys.exit(0)"],
)
def test_an_early_end_is_a_failure(leave: object, cause: str) -> None:
    with pytest.raises(RanksFailed) as caught:
        run_ranks(leave, 1)  # type: ignore[arg-type]
    assert cause in caught.value.tracebacks[0]


def test_the_harness_needs_no_pytest() -> None:
    code = (
        "import sys, dist_train.testing as t; t.run_ranks, t.launch_cli, t.check_launcher, t.check_strategy"
    )
    code += "; assert 'pytest' not in sys.modules and 'torch' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True, timeout=30)


def test_the_store_of_the_ranks_waits_for_no_name_server() -> None:
    """torch's server looks up each client's address in one thread: ::ffff:127.0.0.1 is in no /etc/hosts."""

    def addresses() -> list[str]:
        port, parent = int(os.environ["MASTER_PORT"]), psutil.Process(os.getppid())
        found = [each.laddr for each in parent.net_connections("tcp") if each.status == psutil.CONN_LISTEN]
        return [each.ip for each in found if each.port == port]

    assert run_ranks(addresses, 1) == [["127.0.0.1"]]


@pytest.mark.multiprocess
def test_ranks_are_forked_before_a_thread_of_their_store_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    """A fork inherits the locks that other threads hold at that moment, and nobody releases them there."""
    threads: list[int] = []
    fork = os.fork

    def counted() -> int:
        threads.append(len(os.listdir("/proc/self/task")))
        return fork()

    monkeypatch.setattr(os, "fork", counted)
    before = len(os.listdir("/proc/self/task"))
    assert len(run_ranks(add_up, 3)) == 3
    assert len(threads) == 3
    assert max(threads) <= before  # fewer where OpenBLAS ends its own at a fork
