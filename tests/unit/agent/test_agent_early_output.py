"""What the import of torch has printed is shown by the agent, and costs no run where it cannot be."""

from __future__ import annotations

import os

import pytest

from dist_train.agent import become_agent


@pytest.mark.parametrize("text", [b"", b"warned\n"])
def test_output_that_cannot_be_printed_ends_no_agent(text: bytes) -> None:
    full = os.open("/dev/full", os.O_WRONLY)
    become_agent._print(full, text)
    os.close(full)


def test_a_short_write_is_followed_by_the_rest(monkeypatch: pytest.MonkeyPatch) -> None:
    written: list[bytes] = []

    def write_two(descriptor: int, text: bytes) -> int:
        written.append(text[:2])
        return len(written[-1])

    monkeypatch.setattr(os, "write", write_two)
    become_agent._print(1, b"warned")
    assert b"".join(written) == b"warned"
