"""Classify a rank's failure from facts: exit status, exception, log tail. Pure functions."""

from __future__ import annotations

import re
import signal
from dataclasses import dataclass

from dist_train.agent.failures.abort_reason import abort_text
from dist_train.errors import ExitCode
from dist_train.rundir.failure import FailureClass

# What only a framework says when another rank is gone: torch 2.11 to 2.13, NCCL.
_FRAMEWORK_SYMPTOMS = (
    "nccl communicator was aborted",
    "nccl watchdog",
    "ncclremoteerror",
    "failed to pass monitoredbarrier",
)
# What any program says of any network: a sign of a lost rank only together with a name of _FRAMEWORKS, the
# address of the run's store, or the failure of another rank (root_cause).
_NETWORK_WORDS = (
    "connection closed by peer",
    "connection reset by peer",
    "broken pipe",
    "connection refused",
    "timed out waiting",
    "socket timeout",
    "remote process exited",
    "peer closed",
    "store is not available",
    "failed to recv",
    "failed to send",
    "wait timeout",
)
_FRAMEWORKS = re.compile(r"\bgloo\b|\bc10d\b|\bnccl|tcpstore|processgroup")
_PEER_EXCEPTIONS = ("DistNetworkError", "DistStoreError", "DistBackendError")
_SIGNAL_HINTS = {
    int(signal.SIGKILL): " (often the kernel's out-of-memory killer: see `dmesg`)",
    int(signal.SIGBUS): " (often a full /dev/shm or a truncated file: see `df /dev/shm`)",
}
# How errors name a command, or a process that it needed, which SIGTERM has ended.
_ENDED_BY_SIGTERM = re.compile(
    r"\bSIGTERM\b|exit (?:status|code) 143\b|signal terminated|signal: Terminated|terminated abruptly",
    re.IGNORECASE,
)
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
        has_peers: the job has other ranks.
        store: host and port of the attempt's store.
        scheduler_sigterm: the scheduler had sent SIGTERM to the rank and to all that it had started.
        traceback: as the rank recorded it, with the exceptions that led to this one.
        aborted: the last line of its stderr that said why it would abort.
    """

    returncode: int
    exception: str | None = None
    message: str = ""
    log_tail: tuple[str, ...] = ()
    limit_exceeded: str | None = None
    interrupted: bool = False
    cut_short: str | None = None
    has_peers: bool = True
    store: tuple[str, int] = ("", 0)
    scheduler_sigterm: bool = False
    traceback: str = ""
    aborted: str = ""

    @property
    def lost_a_command(self) -> bool:
        """Whether a preemption has ended what the rank had started, which is no error of the program."""
        raised = self.exception is not None and self.scheduler_sigterm
        return raised and _ENDED_BY_SIGTERM.search(f"{self.message} {self.traceback}") is not None


def classify(rank: RankExit) -> tuple[FailureClass, str]:
    """Return the failure's class and its message."""
    if rank.limit_exceeded is not None:
        return "hang", rank.limit_exceeded
    if rank.returncode < 0:
        killed = f"killed by {_signal_name(-rank.returncode)}"
        if rank.returncode != -signal.SIGABRT or not rank.aborted:
            return "signal", killed
        peer = rank.has_peers and is_peer_symptom(None, rank.aborted, rank.store)
        return ("victim" if peer else "signal"), f"{killed}: {abort_text(rank.aborted)}"
    if rank.exception is not None:
        peer = rank.has_peers and is_peer_symptom(rank.exception, rank.message, rank.store)
        message = f"{rank.exception}: {innermost_message(rank.message)}"
        if rank.lost_a_command:
            message = f"the scheduler's SIGTERM ended what it had started: {message}"
        return ("victim" if peer else "exception"), message
    if rank.cut_short is not None:
        return "exit", rank.cut_short
    last = rank.log_tail[-1] if rank.log_tail else ""
    if rank.has_peers and is_peer_symptom(None, last, rank.store):
        return "victim", last
    return "exit", f"exited with code {rank.returncode}"


def exit_code_of(rank: RankExit) -> int:
    """Return the exit code that a shell would show: 128+n for a signal; 75 where a preemption caused it."""
    if rank.limit_exceeded is not None:
        return 128 + signal.SIGTERM if rank.interrupted else ExitCode.EARLY_EXIT
    if rank.lost_a_command:
        return ExitCode.PREEMPTED
    return 128 - rank.returncode if rank.returncode < 0 else rank.returncode


def is_peer_symptom(exception: str | None, message: str, store: tuple[str, int] = ("", 0)) -> bool:
    """Whether this error can only mean that another rank is gone: a secondary failure.

    Args:
        exception: its type, with or without its module.
        message: its text.
        store: host and port of the attempt's store; port 0 where there is none.
    """
    if exception is not None and exception.rpartition(".")[2] in _PEER_EXCEPTIONS:
        return True
    text = innermost_message(message).lower()
    if any(symptom in text for symptom in _FRAMEWORK_SYMPTOMS):
        return True
    return has_network_words(text) and (bool(_FRAMEWORKS.search(text)) or _names(store, text))


def has_network_words(text: str) -> bool:
    """Whether an error speaks of a broken connection: to a peer, or to any other machine of the world."""
    lowered = text.lower()
    return any(words in lowered for words in _NETWORK_WORDS)


def _names(store: tuple[str, int], text: str) -> bool:
    """`10.0.0.1:29500`, `[node-0]:29500` or `('node-0', 29500)`."""
    host, port = store
    if not host or not port:
        return False
    return re.search(rf"{re.escape(host.lower())}\W{{1,4}}{port}\b", text) is not None


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
