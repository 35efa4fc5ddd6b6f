"""Errors for a taken port name the process that listens on it."""

from __future__ import annotations

import os
import socket

from dist_train.jobs.port_holder import port_holder


def test_the_listener_is_named() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        holder = port_holder(listener.getsockname()[1])
    assert holder is not None
    assert holder.pid == os.getpid()
    assert str(holder).endswith(f"(pid {os.getpid()})")


def test_nobody_listens_on_a_port_that_is_only_bound() -> None:
    with socket.socket() as bound:
        bound.bind(("127.0.0.1", 0))
        assert port_holder(bound.getsockname()[1]) is None
