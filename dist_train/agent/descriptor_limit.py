"""The limit of open files in node 0's agent, which holds a connection of every node and of every rank."""

from __future__ import annotations

import logging
import resource

from dist_train.errors import ConfigError

logger = logging.getLogger(__name__)
_MOST = 1 << 20
_OWN = 256  # logs, records, the ranks' pipes
_before: list[tuple[int, int]] = []  # what ranks get back


def raise_descriptor_limit(connections: int) -> None:
    """Raise the soft limit to the hard one; raises ConfigError where that is too low for the connections.

    Args:
        connections: that this process will hold.
    """
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    most = _MOST if hard == resource.RLIM_INFINITY else min(hard, _MOST)
    if most < connections + _OWN:
        raise ConfigError(
            f"the agent of node 0 may open {most} files and connections and needs {connections + _OWN}",
            cause="it holds a connection of every node and every rank; `ulimit -Hn` on that node is too low",
            hint="raise the limit of what starts the agents there (LimitNOFILE of its systemd unit, the "
            "container runtime's ulimits)",
        )
    if most > soft != resource.RLIM_INFINITY:
        _before.append((soft, hard))
        resource.setrlimit(resource.RLIMIT_NOFILE, (most, hard))
        logger.info("the limit of open files is %d instead of %d here; ranks keep %d", most, soft, soft)


def restore_descriptor_limit(pid: int) -> None:
    """Give a child that was just started the limit that its agent was started with."""
    if not _before:
        return
    try:
        resource.prlimit(pid, resource.RLIMIT_NOFILE, _before[0])
    except ProcessLookupError:
        pass  # it has ended already
    except OSError as error:
        logger.warning("process %d keeps the agent's limit of open files: %s", pid, error)
