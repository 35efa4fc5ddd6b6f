"""Messages between agents: each line decodes to what was encoded."""

from __future__ import annotations

import pytest

from dist_train.agent.coordination.messages import Join, StopAsked, decode, encode


def test_a_message_decodes_to_itself() -> None:
    for message in (Join(1, "h", 2, 2, "n", {"a": "b"}), StopAsked(0, "cancel")):
        assert decode(encode(message)) == message
    with pytest.raises(ValueError, match="not a message"):
        decode(b"GET / HTTP/1.1")
