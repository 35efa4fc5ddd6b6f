"""Parsing the three init methods; the errors for wrong ones."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from dist_train.distributed.init_method import FileRendezvous, TcpRendezvous, parse
from dist_train.env import RankInfo
from dist_train.errors import ConfigError

INFO = RankInfo(0, 0, 0, 2, 2, 1, "10.0.0.7", 29500, "manual")
ALONE = RankInfo(0, 0, 0, 2, 2, 1, None, None, "manual")


def test_the_three_forms(tmp_path: Path) -> None:
    assert parse("env://", INFO) == TcpRendezvous("10.0.0.7", 29500)
    assert parse("env://", INFO, agent_store=True) == TcpRendezvous("10.0.0.7", 29500, hosted=True)
    assert parse("tcp://node-1:1234", INFO) == TcpRendezvous("node-1", 1234)
    assert parse("tcp://[::1]:1234", INFO) == TcpRendezvous("::1", 1234)
    assert str(parse("tcp://[::1]:1234", INFO)) == "[::1]:1234"
    bracketed = replace(INFO, master_addr="[fd00::1]", master_port=1)
    assert parse("env://", bracketed) == TcpRendezvous("fd00::1", 1)
    assert parse(f"file://{tmp_path}/f", INFO) == FileRendezvous(tmp_path / "f")


def test_every_attempt_gets_a_file_of_its_own(tmp_path: Path) -> None:
    assert parse(f"file://{tmp_path}/f", INFO, attempt=3) == FileRendezvous(tmp_path / "f.attempt-3")


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("udp://h:1", "udp://h:1.*unknown"),
        ("tcp://host", "tcp://HOST:PORT"),
        ("tcp://host:0", "tcp://HOST:PORT"),
        ("tcp://host:70000", "tcp://HOST:PORT"),
        ("tcp://host:1234/path", "tcp://HOST:PORT"),
        ("file://relative/path", "not an absolute path"),
        ("file:///no/such/folder/f", "no folder /no/such/folder"),
    ],
)
def test_a_wrong_one_is_refused(text: str, expected: str) -> None:
    with pytest.raises(ConfigError, match=expected):
        parse(text, INFO)


def test_env_without_an_address_names_the_missing_variable() -> None:
    with pytest.raises(ConfigError, match=r"2 ranks.*MASTER_ADDR and MASTER_PORT is not set"):
        parse("env://", ALONE)
