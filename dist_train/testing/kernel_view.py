"""What the kernel shows of a process that hangs in C++: its threads and its TCP connections. Linux only.

A stack of Python ends where torch or gloo begins. Where each thread sleeps, and which connection has bytes
that nobody reads, says which side of a rendezvous is waiting.
"""

from __future__ import annotations

import ipaddress
import os
import re
from contextlib import suppress
from pathlib import Path

_TICKS = os.sysconf("SC_CLK_TCK")
_STATES = {1: "ESTABLISHED", 2: "SYN_SENT", 3: "SYN_RECV", 8: "CLOSE_WAIT", 10: "LISTEN"}


def kernel_view(pid: int) -> str:
    """A line for each thread and each TCP socket of a process; those that cannot be read are left out."""
    return "\n".join([*_threads(pid), *_connections(pid)])


def _threads(pid: int) -> list[str]:
    lines = []
    for folder in sorted(Path(f"/proc/{pid}/task").glob("*"), key=lambda path: int(path.name)):
        with suppress(OSError):
            # The name in brackets may hold anything (proc_pid_stat(5)).
            name, fields = re.fullmatch(r"\d+ \((.*)\) (.*)", _read(folder / "stat"), re.DOTALL).groups()  # type: ignore[union-attr]
            state, *numbers = fields.split()
            cpu_s = (int(numbers[10]) + int(numbers[11])) / _TICKS
            lines.append(f"thread {name}: {state} in {_read(folder / 'wchan')}, {cpu_s:.2f} s of CPU")
    return lines


def _connections(pid: int) -> list[str]:
    inodes = set()
    with suppress(OSError):
        for name in os.listdir(f"/proc/{pid}/fd"):
            with suppress(OSError):
                inodes.add(os.readlink(f"/proc/{pid}/fd/{name}"))
    lines = []
    for table in ("tcp", "tcp6"):
        with suppress(OSError):
            rows = [line.split() for line in _read(Path(f"/proc/{pid}/net/{table}")).splitlines()[1:]]
            lines += [_connection(row) for row in rows if f"socket:[{row[9]}]" in inodes]
    return sorted(lines)


def _connection(row: list[str]) -> str:
    unsent, unread = (int(number, 16) for number in row[4].split(":"))
    state = _STATES.get(int(row[3], 16), row[3])
    return (
        f"socket {_address(row[1])} - {_address(row[2])} {state}, {unread} unread, {unsent} not acknowledged"
    )


def _address(text: str) -> str:
    host, port = text.split(":")
    # Words of 32 bits, each in the machine's byte order (little endian wherever torch runs).
    packed = b"".join(bytes.fromhex(host[at : at + 8])[::-1] for at in range(0, len(host), 8))
    return f"{ipaddress.ip_address(packed)}:{int(port, 16)}"


def _read(path: Path) -> str:
    return path.read_text(encoding="utf-8", errors="replace").strip()
