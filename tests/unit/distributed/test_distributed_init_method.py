"""The three init methods as words; what is wrong with a wrong one."""

from __future__ import annotations

from pathlib import Path

import pytest

from dist_train.distributed.init_method import FileMeeting, TcpMeeting, parse
from dist_train.env import RankInfo
from dist_train.errors import ConfigError

INFO = RankInfo(0, 0, 0, 2, 2, 1, "10.0.0.7", 29500, "manual")
ALONE = RankInfo(0, 0, 0, 2, 2, 1, None, None, "manual")


def test_each_form_names_a_meeting_point(tmp_path: Path) -> None:
    assert parse("env://", INFO) == TcpMeeting("10.0.0.7", 29500)
    assert parse("env://", INFO, agent_store=True) == TcpMeeting("10.0.0.7", 29500, hosted=True)
    assert parse("tcp://node-1:1234", INFO) == TcpMeeting("node-1", 1234)
    assert parse("tcp://[::1]:1234", INFO) == TcpMeeting("::1", 1234)
    assert parse(f"file://{tmp_path}/f", INFO) == FileMeeting(tmp_path / "f")


def test_every_attempt_gets_a_file_of_its_own(tmp_path: Path) -> None:
    assert parse(f"file://{tmp_path}/f", INFO, attempt=3) == FileMeeting(tmp_path / "f.attempt-3")


@pytest.mark.parametrize(
    ("text", "words"),
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
def test_a_wrong_one_is_refused_with_its_text(text: str, words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        parse(text, INFO)


def test_env_without_an_address_says_which_variable_is_missing() -> None:
    with pytest.raises(ConfigError, match=r"2 ranks.*MASTER_ADDR and MASTER_PORT is not set"):
        parse("env://", ALONE)
