"""Classify a rank's failure from facts: exit status, exception, log tail. Pure functions."""

from __future__ import annotations

import re
import signal
from dataclasses import dataclass

from dist_train.errors import ExitCode
from dist_train.rundir.failure import FailureClass

# What ranks fail with when another one is gone. Texts of torch 2.11 to 2.13, gloo and NCCL.
_PEER_SYMPTOMS = (
    "connection closed by peer",
    "connection reset by peer",
    "broken pipe",
    "connection refused",
    "timed out waiting",
    "socket timeout",
    "remote process exited",
    "peer closed",
    "nccl communicator was aborted",
    "nccl watchdog",
    "ncclremoteerror",
    "store is not available",
    "failed to recv",
    "failed to send",
    "rank 0 failed to pass monitoredbarrier",
    "failed to pass monitoredbarrier",
    "wait timeout",
)
_PEER_EXCEPTIONS = ("DistNetworkError", "DistStoreError", "DistBackendError")
_SIGNAL_HINTS = {
    int(signal.SIGKILL): " (often the kernel's out-of-memory killer: see `dmesg`)",
    int(signal.SIGBUS): " (often a full /dev/shm or a truncated file: see `df /dev/shm`)",
}
# torch raises an error of a loader worker or a replica again, with that worker's traceback as the text.
_WRAPPED = re.compile(r"Caught (?P<name>\w+) in (?P<place>.+)\.\n(?:Original )?Traceback ")


@dataclass(frozen=True)
class RankExit:
    """How a rank ended, as its own node's agent saw it.

    Attributes:
        returncode: as subprocess has it, negative for a signal.
        exception: type of the exception that the rank recorded.
        message: its text.
        log_tail: the last lines of stderr.
        limit_exceeded: the limit for which the agent killed the rank, as a sentence.
        interrupted: the agent had interrupted it (SIGTERM) for a stop.
        cut_short: what the agent ended after the rank's script, as a sentence.
    """

    returncode: int
    exception: str | None = None
    message: str = ""
    log_tail: tuple[str, ...] = ()
    limit_exceeded: str | None = None
    interrupted: bool = False
    cut_short: str | None = None


def classify(rank: RankExit) -> tuple[FailureClass, str]:
    """Return the failure's class and its message."""
    if rank.limit_exceeded is not None:
        return "hang", rank.limit_exceeded
    if rank.returncode < 0:
        return "signal", f"killed by {_signal_name(-rank.returncode)}"
    if rank.exception is not None:
        peer = is_peer_symptom(rank.exception, rank.message)
        return ("victim" if peer else "exception"), f"{rank.exception}: {innermost_message(rank.message)}"
    if rank.cut_short is not None:
        return "exit", rank.cut_short
    last = rank.log_tail[-1] if rank.log_tail else ""
    if is_peer_symptom(None, last):
        return "victim", last
    return "exit", f"exited with code {rank.returncode}"


def exit_code_of(rank: RankExit) -> int:
    """Return the exit code that a shell would show: 128+n for a signal."""
    if rank.limit_exceeded is not None:
        return 128 + signal.SIGTERM if rank.interrupted else ExitCode.EARLY_EXIT
    return 128 - rank.returncode if rank.returncode < 0 else rank.returncode


def is_peer_symptom(exception: str | None, message: str) -> bool:
    """Whether this error only means that another rank is gone: a secondary failure."""
    if exception is not None and exception.rpartition(".")[2] in _PEER_EXCEPTIONS:
        return True
    lowered = message.lower()
    return any(symptom in lowered for symptom in _PEER_SYMPTOMS)


def innermost_message(message: str) -> str:
    """Reduce an error that torch wrapped to the error itself and its place; return other texts unchanged."""
    found = _WRAPPED.match(message)
    if found is None:
        return message
    # The last line that is not indented and names the exception begins its text.
    begins = [*re.finditer(rf"^(?:\w+\.)*{found['name']}\b:? ?", message, re.MULTILINE)]
    if not begins:
        return message
    return f"{message[begins[-1].end() :].strip()} (in {found['place']})".lstrip()


def _signal_name(number: int) -> str:
    try:
        name = signal.Signals(number).name
    except ValueError:
        name = "an unknown signal"
    return f"signal {number} ({name}){_SIGNAL_HINTS.get(number, '')}"
