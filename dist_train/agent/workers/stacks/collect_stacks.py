"""In an agent: ask this node's ranks for their Python stacks, bounded; who does not answer has a reason."""

from __future__ import annotations

import ctypes
import linecache
import os
import re
import time
from collections.abc import Callable, Iterable
from pathlib import Path

from dist_train.agent.workers.rank import Rank
from dist_train.agent.workers.stacks.stack_answer import (
    ASK,
    ASK_FAULTHANDLER,
    END,
    FILE_NAME,
    THREAD_NAME,
)
from dist_train.rundir.requests.stacks_request import RankStacks

_ANSWER_S = 3.0
_FAULTHANDLER_S = 2.0
_POLL_S = 0.02
_QUIET_POLLS = 5  # faulthandler has no line that says the end
_FIELD = re.compile(r"^(State|SigCgt):\s*(.*)$", re.MULTILINE)
_CALL = re.compile(r'  File "(.*)", line (\d+),? in ')
_STATES = {
    "T": "it is stopped (SIGSTOP)",
    "t": "a debugger holds it",
    "D": "it waits in the kernel for a disk or a device",
}
_NOBODY = "it has not begun, has closed all its files, or is another program by now"
_HELD = "C code holds its interpreter: by faulthandler"


def collect_stacks(ranks: Iterable[Rank], host: str) -> list[RankStacks]:
    """Ask all at once, then whose interpreter is held once more by faulthandler."""
    asked = [_AskedRank(rank) for rank in ranks if rank.returncode is None]
    for one in asked:
        one.ask()
    _wait(asked, lambda one: one.has_answered, _ANSWER_S)
    held = [one for one in asked if not one.has_answered]
    for one in held:
        one.ask_faulthandler()
    _wait(held, lambda one: one.is_quiet, _FAULTHANDLER_S)
    return [one.result(host) for one in asked]


class _AskedRank:
    """One rank that was asked."""

    def __init__(self, rank: Rank) -> None:
        self._rank = rank
        self._pid = rank.process.pid
        self.file = _answer_file(self._pid)
        self._thread = _answering_thread(self._pid)
        self.text: str | None = None
        self.how = ""
        self._why = ""
        self._size, self._polls = 0, 0

    def ask(self) -> None:
        """Ask the thread of it that answers, and no other: by default the signal would end the process."""
        if self._thread is None or not self._empty():
            self._why = self._why or _state(self._pid) or _NOBODY
            return
        self._send(ASK)

    def ask_faulthandler(self) -> None:
        """Let faulthandler write, if its handler is still installed."""
        self.how = _HELD
        caught = int(_status(self._pid).get("SigCgt", "0"), 16) >> (int(ASK_FAULTHANDLER) - 1) & 1
        if caught and self._empty():
            self._send(ASK_FAULTHANDLER)

    def _send(self, number: int) -> None:
        """Signal that thread: a call of the kernel in which another waits is not interrupted."""
        ctypes.CDLL(None).tgkill(self._pid, self._thread, int(number))

    def _empty(self) -> bool:
        if self.file is None:
            return False
        try:
            os.truncate(self.file, 0)
        except OSError as error:
            self._why = f"its answer cannot be read: {error.strerror}"
        return not self._why

    @property
    def has_answered(self) -> bool:
        """Whether the rank's own thread has written all."""
        content = self._content()
        if content.endswith(END):
            self.text = content.removesuffix(END).decode(errors="replace")
        return self.text is not None or self._why != ""

    @property
    def is_quiet(self) -> bool:
        """Whether faulthandler has written, and nothing more has come for a while."""
        content = self._content()
        self._polls = self._polls + 1 if len(content) == self._size else 0
        self._size = len(content)
        if content and self._polls >= _QUIET_POLLS:
            self.text = content.removesuffix(END).decode(errors="replace")
        return self.text is not None

    def result(self, host: str) -> RankStacks:
        """What it has answered, or why it has not."""
        if self.text is None:
            ended = "it has ended" if self._rank.returncode is not None else ""
            why = ended or self._why or _state(self._pid) or "it gave no answer in time"
            return RankStacks(self._rank.rank, host, self._pid, problem=why)
        return RankStacks(self._rank.rank, host, self._pid, with_source(self.text), self.how)

    def _content(self) -> bytes:
        try:
            return b"" if self.file is None else self.file.read_bytes()
        except OSError:
            return b""


def with_source(text: str) -> str:
    """Put the line of source below each call, as tracebacks have it."""
    lines = []
    for line in text.splitlines():
        lines.append(line)
        if (call := _CALL.match(line)) and (source := linecache.getline(call[1], int(call[2])).strip()):
            lines.append(f"    {source}")
    return "\n".join(lines) + "\n"


def _wait(asked: Iterable[_AskedRank], is_done: Callable[[_AskedRank], bool], timeout_s: float) -> None:
    deadline = time.monotonic() + timeout_s
    left = list(asked)
    while (left := [one for one in left if not is_done(one)]) and time.monotonic() < deadline:
        time.sleep(_POLL_S)


def _answer_file(pid: int) -> Path | None:
    """The rank's file in memory, by its name among its descriptors."""
    try:
        for link in Path(f"/proc/{pid}/fd").iterdir():
            if os.readlink(link).startswith(f"/memfd:{FILE_NAME}"):
                return link
    except OSError:
        pass
    return None


def _answering_thread(pid: int) -> int | None:
    """The kernel's number of the rank's thread that waits to be asked."""
    try:
        for task in Path(f"/proc/{pid}/task").iterdir():
            if (task / "comm").read_bytes().strip() == THREAD_NAME:
                return int(task.name)
    except OSError:
        pass
    return None


def _status(pid: int) -> dict[str, str]:
    try:
        return dict(_FIELD.findall(Path(f"/proc/{pid}/status").read_text()))
    except OSError:
        return {}


def _state(pid: int) -> str:
    """Why a process that is there does nothing; empty where the kernel does not say."""
    return _STATES.get(_status(pid).get("State", "?")[:1], "")
