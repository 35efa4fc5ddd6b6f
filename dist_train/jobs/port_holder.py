"""The process that listens on a TCP port of this machine."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class PortHolder:
    """A listening process, and the beginning of its command."""

    pid: int
    command: str

    def __str__(self) -> str:
        return f"{self.command} (pid {self.pid})"


def port_holder(port: int) -> PortHolder | None:
    """The listener on the port; None where there is none, or where it is another user's process."""
    import psutil  # only after a port was found taken

    try:
        for connection in psutil.net_connections(kind="tcp"):
            listens = connection.status == psutil.CONN_LISTEN and connection.laddr[1:2] == (port,)
            if listens and connection.pid:
                return PortHolder(connection.pid, " ".join(psutil.Process(connection.pid).cmdline()[:3]))
    except psutil.Error:
        pass
    return None
