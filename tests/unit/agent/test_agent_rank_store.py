"""The store that node 0 opens for the ranks of an attempt."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import psutil
import pytest

from dist_train.agent.node_zero import NodeZero


@pytest.mark.parametrize(("host", "listens_on"), [("127.0.0.1", "127.0.0.1"), ("localhost", "0.0.0.0")])
def test_it_listens_on_ipv4_so_that_it_waits_for_no_name_server(host: str, listens_on: str) -> None:
    """torch's server looks up each rank's address in its one thread: ::ffff:127.0.0.1 is in no /etc/hosts."""
    node_zero: Any = object.__new__(NodeZero)
    node_zero._settings, node_zero._platform = None, SimpleNamespace(store_host=lambda settings: host)
    published, port = node_zero._open_store()
    found = [
        each.laddr.ip
        for each in psutil.Process().net_connections("tcp")
        if each.status == psutil.CONN_LISTEN and each.laddr.port == port
    ]
    assert (published, found) == (host, [listens_on])
