"""Class, message and exit code of a rank's failure, from the facts of its end."""

from __future__ import annotations

import signal
import subprocess
import sys
from dataclasses import replace

import pytest
from torch._utils import ExceptionWrapper

from dist_train.agent.failures.classify_failure import (
    RankExit,
    classify,
    exit_code_of,
    innermost_message,
    is_peer_symptom,
)

ABORTED = "killed by signal 6 (SIGABRT)"
KILLED = "killed by signal 9 (SIGKILL) (often the kernel's out-of-memory killer: see `dmesg`)"
LOST_PEER = "[/pytorch/third_party/gloo/gloo/transport/tcp/pair.cc:553] Connection closed by peer [::1]:1"


@pytest.mark.parametrize(
    ("exception", "message", "secondary"),
    [
        ("RuntimeError", "[gloo/transport/tcp/pair.cc:553] Connection closed by peer [127.0.0.1]:1", True),
        (
            "RuntimeError",
            "[gloo/transport/tcp/pair.cc:537] Read error [::1]:1: Connection reset by peer",
            True,
        ),
        ("DistNetworkError", "failed to recv, got 0 bytes", True),
        ("DistBackendError", "NCCL error", True),
        ("RuntimeError", "[gloo/transport/tcp/unbound_buffer.cc:78] Timed out waiting 3000ms for recv", True),
        ("torch.distributed.DistStoreError", "wait timeout after 300000ms", True),
        ("RuntimeError", "NCCL communicator was aborted on rank 0.", True),
        (None, "[Rank 1] failed to pass monitoredBarrier in 100 ms", True),
        ("ConnectionRefusedError", "connection refused: https://s3", False),
        ("BrokenPipeError", "[Errno 32] Broken pipe", False),
        ("TimeoutError", "timed out waiting for the licence server", False),
        ("OSError", "failed to send to [10.0.0.2]:9000", False),
        ("ValueError", "true cause", False),
        ("RuntimeError", "CUDA out of memory", False),
        (None, "Segmentation fault", False),
    ],
)
def test_errors_that_only_mean_that_another_rank_is_gone(
    exception: str | None, message: str, secondary: bool
) -> None:
    assert is_peer_symptom(exception, message) is secondary


@pytest.mark.parametrize(
    ("rank", "classified", "exit_code"),
    [
        (RankExit(3), ("exit", "exited with code 3"), 3),
        (RankExit(-15), ("signal", "killed by signal 15 (SIGTERM)"), 143),
        (RankExit(-6, aborted="  what():  x > 1"), ("signal", "killed by signal 6 (SIGABRT): x > 1"), 134),
        (RankExit(-9, aborted="  what():  x"), ("signal", KILLED), 137),
        (RankExit(-6, aborted=f"  what():  {LOST_PEER}"), ("victim", f"{ABORTED}: {LOST_PEER}"), 134),
        (
            RankExit(-6, aborted=f"  what():  {LOST_PEER}", has_peers=False),
            ("signal", f"{ABORTED}: {LOST_PEER}"),
            134,
        ),
        (RankExit(1, "ValueError", "bad"), ("exception", "ValueError: bad"), 1),
        (RankExit(1, "DistNetworkError", "x"), ("victim", "DistNetworkError: x"), 1),
        (RankExit(1, log_tail=("Broken pipe",)), ("exit", "exited with code 1"), 1),
        (RankExit(1, log_tail=("c10d: Broken pipe",)), ("victim", "c10d: Broken pipe"), 1),
        (RankExit(1, "DistNetworkError", "x", has_peers=False), ("exception", "DistNetworkError: x"), 1),
        (RankExit(1, log_tail=("gloo: Broken pipe",), has_peers=False), ("exit", "exited with code 1"), 1),
        (RankExit(-9, limit_exceeded="idle for 30 s"), ("hang", "idle for 30 s"), 1),
        (RankExit(-9, limit_exceeded="no stop", interrupted=True), ("hang", "no stop"), 143),
    ],
)
def test_a_failure_is_classified_by_how_the_rank_ended(
    rank: RankExit, classified: tuple[str, str], exit_code: int
) -> None:
    assert (classify(rank), exit_code_of(rank)) == (classified, exit_code)


@pytest.mark.parametrize("text", ["[node-0]:29500", "node-0:29500", "('Node-0', 29500)"])
def test_a_broken_connection_to_the_runs_own_store_is_secondary(text: str) -> None:
    store = ("node-0", 29500)
    assert is_peer_symptom("OSError", f"Connection refused: {text}", store)
    assert not is_peer_symptom("OSError", f"Connection refused: {text}", ("node-0", 2950))
    assert not is_peer_symptom("OSError", f"No such host: {text}", store)
    assert not is_peer_symptom("OSError", f"Connection refused: {text}")


class OwnError(Exception):
    pass


def test_the_message_of_a_failure_is_the_innermost() -> None:
    rank = RankExit(1, "KeyError", wrapped(KeyError("label")))
    assert classify(rank) == ("exception", "KeyError: 'label' (in DataLoader worker process 0)")


def test_a_loader_workers_connection_is_the_users_own() -> None:
    rank = RankExit(1, "ConnectionRefusedError", wrapped(ConnectionRefusedError("connection refused: s3")))
    assert classify(rank)[0] == "exception"


def wrapped(error: Exception) -> str:
    """The text that a rank gets of an error in its loader worker."""
    try:
        raise error
    except Exception:
        wrapper = ExceptionWrapper(sys.exc_info(), "in DataLoader worker process 0")
    with pytest.raises(Exception, match="Traceback") as raised:
        wrapper.reraise()  # type: ignore[no-untyped-call]
    return str(raised.value)


@pytest.mark.parametrize(
    ("error", "message"),
    [
        (ValueError("no such image: 7.png"), "no such image: 7.png (in DataLoader worker process 0)"),
        (KeyError("label"), "'label' (in DataLoader worker process 0)"),
        (OwnError("two\nlines"), "two\nlines (in DataLoader worker process 0)"),
        (ValueError(), "(in DataLoader worker process 0)"),
        (ValueError("ValueError: again"), "ValueError: again (in DataLoader worker process 0)"),
    ],
)
def test_a_loader_workers_error_is_reduced_to_its_own_text(error: Exception, message: str) -> None:
    assert innermost_message(wrapped(error)) == message


@pytest.mark.parametrize("text", ["", "no such file", "Caught ValueError in a bottle"])
def test_any_other_text_is_unchanged(text: str) -> None:
    assert innermost_message(text) == text


@pytest.mark.parametrize(
    "message",
    [
        str(subprocess.CalledProcessError(-signal.SIGTERM, ["sleep", "60"])),
        str(subprocess.CalledProcessError(128 + signal.SIGTERM, "make")),
        "DataLoader worker (pid 4711) is killed by signal: Terminated. ",
        "g++: fatal error: Terminated signal terminated program cc1plus",
        "A process in the process pool was terminated abruptly while the future was running or pending.",
    ],
)
def test_a_preemption_that_ends_what_a_rank_has_started_is_a_preemption(message: str) -> None:
    lost = RankExit(1, "RuntimeError", message, scheduler_sigterm=True)
    caused = RankExit(1, "RuntimeError", "no kernel", traceback=message, scheduler_sigterm=True)
    for rank in (lost, caused):
        assert exit_code_of(rank) == 75
        assert classify(rank)[1].startswith("the scheduler's SIGTERM ended what it had started: ")
    for other in (
        replace(lost, scheduler_sigterm=False),
        replace(lost, message="CUDA out of memory"),
        replace(lost, exception=None),
    ):
        assert exit_code_of(other) == 1
