"""Parse the init method by which ranks find each other: env://, tcp://host:port, file:///path."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlsplit

from dist_train.env import RankInfo
from dist_train.errors import ConfigError
from dist_train.jobs.host_port import host_port, without_brackets

_FORMS = "env://, tcp://HOST:PORT or file:///absolute/path"


@dataclass(frozen=True)
class TcpRendezvous:
    """A store at host:port.

    Args:
        hosted: True when a launcher's agent already serves the store, so that every rank is a client.
    """

    host: str
    port: int
    hosted: bool = False

    def __str__(self) -> str:
        return host_port(self.host, self.port)


@dataclass(frozen=True)
class FileRendezvous:
    """A store in one file on a file system that all ranks share."""

    path: Path

    def __str__(self) -> str:
        return str(self.path)


Rendezvous = TcpRendezvous | FileRendezvous


def parse(text: str, info: RankInfo, *, agent_store: bool = False, attempt: int | None = None) -> Rendezvous:
    """Parse an init method.

    Args:
        text: env://, tcp://host:port or file:///path.
        info: rank facts; env:// takes the master's address and port from them.
        agent_store: whether the launcher's agent serves the store of env://.
        attempt: the attempt's number under our agent: each attempt uses a file of its own.

    Raises:
        ConfigError: for another form, or for a part that is missing.
    """
    if text == "env://":
        return _from_env(info, agent_store)
    if text.startswith("tcp://"):
        return _from_tcp(text)
    if text.startswith("file://"):
        return _from_file(text, attempt)
    raise ConfigError(f"init method {text!r} is unknown", hint=f"use {_FORMS}")


def _from_env(info: RankInfo, agent_store: bool) -> TcpRendezvous:
    missing = [
        name
        for name, value in (("MASTER_ADDR", info.master_addr), ("MASTER_PORT", info.master_port))
        if value is None
    ]
    if info.master_addr is None or info.master_port is None:
        raise ConfigError(
            f"{info.world_size} ranks are asked for but {' and '.join(missing)} is not set",
            cause="init method env:// takes rank 0's address from the environment",
            hint="start by `dist-train launch` or torchrun, or give init_method='tcp://HOST:PORT'",
        )
    return TcpRendezvous(without_brackets(info.master_addr), info.master_port, hosted=agent_store)


def _from_tcp(text: str) -> TcpRendezvous:
    parts = urlsplit(text)
    try:
        port = parts.port
    except ValueError:
        port = None
    if not parts.hostname or not port or parts.path not in ("", "/") or parts.query:
        raise ConfigError(
            f"init method {text!r} is not of the form tcp://HOST:PORT",
            cause="the port must be a number from 1 to 65535: ranks cannot agree on a free one by themselves",
        )
    return TcpRendezvous(parts.hostname, port)


def _from_file(text: str, attempt: int | None) -> FileRendezvous:
    path = Path(text.removeprefix("file://"))
    if not path.is_absolute():
        raise ConfigError(
            f"init method {text!r} is not an absolute path",
            cause="ranks may start in different folders",
            hint=f"write file://{path.absolute()}",
        )
    if not path.parent.is_dir():
        raise ConfigError(
            f"init method {text!r}: there is no folder {path.parent}", hint=f"mkdir {path.parent}"
        )
    return FileRendezvous(path if attempt is None else attempt_file(path, attempt))


def attempt_file(path: Path, attempt: int) -> Path:
    """The file of one attempt: the next attempt must not read a killed one's addresses."""
    return path.with_name(f"{path.name}.attempt-{attempt}")
