"""A rank's output in chunks: exact bytes for the log, lines and states for people."""

from __future__ import annotations

import random

import pytest

from dist_train.rundir.log_text.output_stream import OutputStream


def fed(*chunks: bytes, now: float = 0.0) -> tuple[bytes, list[bytes], OutputStream]:
    stream = OutputStream()
    passed = b"".join(stream.feed(chunk, now) for chunk in chunks)
    return passed, stream.lines, stream


@pytest.mark.parametrize(
    ("chunks", "lines"),
    [
        ([b"a\nb", b"c\n"], [b"a", b"bc"]),
        ([b"a\r", b"\nb\r\n"], [b"a", b"b"]),
        ([b"\r10%", b"\r20%", b"\r30%\n"], [b"30%"]),
        ([b"10%\r", b"20%\r", b"\n"], [b"20%"]),
        ([b"10%\r20%\rdone\n"], [b"done"]),
        ([b"bar\r", b"\r\n", b"\n"], [b"bar", b""]),
    ],
)
def test_a_line_is_what_a_terminal_shows_of_it(chunks: list[bytes], lines: list[bytes]) -> None:
    passed, got, stream = fed(*chunks)
    assert got == lines
    assert passed + stream.finish() == b"".join(chunks)


def test_lines_are_passed_whole_until_they_are_late() -> None:
    passed, _, stream = fed(b"one\ntw")
    assert passed == b"one\n"
    assert stream.late(0.4) == b""
    assert stream.late(0.6) == b"tw"
    assert stream.feed(b"o", 5.0) == b""
    assert stream.late(5.4) == b""
    assert stream.feed(b"\nthree", 5.4) == b"o\n"
    assert stream.lines == [b"one", b"two"]
    assert stream.finish() == b"three"


def test_a_state_shows_after_a_second_and_then_rarely() -> None:
    _, _, stream = fed(b"\r 1%", b"\r 2%")
    assert (stream.due(0.9), stream.due(1.1)) == (b"", b" 2%")
    stream.feed(b"\r 3%", 1.2)
    assert (stream.due(1.3), stream.due(6.2)) == (b"", b" 3%")
    assert stream.due(20.0) == b""  # it has not changed
    stream.feed(b"\n", 21.0)
    assert stream.lines == [b" 3%"]
    assert stream.due(30.0) == b""


def test_a_line_without_an_end_is_cut() -> None:
    passed, lines, _ = fed(*[b"x" * 60_000] * 10)
    assert len(passed) == 600_000
    assert sum(map(len, lines)) == 600_000
    assert max(map(len, lines)) <= 128 * 1024


def test_any_chunks_come_through_to_the_byte() -> None:
    rng = random.Random(0)
    for _ in range(300):
        content = bytes(rng.choice(b"ab\r\r\n") for _ in range(rng.randrange(60)))
        stream, passed, at, now = OutputStream(cut_bytes=12), b"", 0, 0.0
        while at < len(content):
            size, now = rng.randrange(1, 9), now + rng.choice((0.0, 0.6))
            passed += stream.feed(content[at : at + size], now)
            passed += stream.late(now + rng.choice((0.0, 0.6)))
            at += size
        assert passed + stream.finish() == content
