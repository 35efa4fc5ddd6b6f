"""Start mariadbd and slurmdbd for a test cluster, so that sacct works."""

from __future__ import annotations

import getpass
import subprocess
from collections.abc import Mapping

from slurm_config import Layout, slurmdbd_conf
from slurm_daemons import ClusterError, detach, until

BINARIES = ("mariadbd", "mariadb-install-db", "mariadb-admin", "slurmdbd", "sacct")
_SMALL = ("--innodb-buffer-pool-size=64M", "--innodb-log-file-size=8M", "--innodb-flush-log-at-trx-commit=0")


def start_mariadbd(layout: Layout, environ: Mapping[str, str]) -> None:
    """Start a database in the cluster's folder that listens on a unix socket only."""
    user, data, log = getpass.getuser(), layout.at("mysql"), layout.at("log", "mariadbd.log")
    _run(
        layout,
        environ,
        "mariadb-install-db",
        "--no-defaults",
        f"--user={user}",
        f"--datadir={data}",
        "--auth-root-authentication-method=socket",
        f"--auth-root-socket-user={user}",
        "--skip-test-db",
        *_SMALL,
    )
    paths = (
        f"--datadir={data}",
        f"--socket={_socket(layout)}",
        f"--pid-file={layout.at('run', 'mariadbd.pid')}",
    )
    detach(
        ["mariadbd", "--no-defaults", f"--user={user}", *paths, "--skip-networking", *_SMALL], environ, log
    )
    ping = ["mariadb-admin", "--no-defaults", f"--socket={_socket(layout)}", f"--user={user}", "ping"]
    until(lambda: _succeeds(ping, environ), "mariadbd answers", 30)


def start_slurmdbd(layout: Layout, environ: Mapping[str, str]) -> None:
    """Start slurmdbd; the cluster registers itself."""
    conf = layout.at("conf", "slurmdbd.conf")
    conf.touch(mode=0o600)
    conf.write_text(slurmdbd_conf(layout))
    _run(layout, {"MYSQL_UNIX_PORT": _socket(layout), **environ}, "slurmdbd")
    log = layout.at("log", "slurmdbd.log")
    # slurmctld exits if it cannot reach slurmdbd at its first start.
    until(lambda: log.exists() and " started" in log.read_text(errors="replace"), "slurmdbd has started", 30)


def _socket(layout: Layout) -> str:
    return str(layout.at("run", "mysql.sock"))


def _run(layout: Layout, environ: Mapping[str, str], *argv: str) -> None:
    with layout.at("log", f"start-{argv[0]}.txt").open("ab") as out:
        done = subprocess.run(argv, stdin=subprocess.DEVNULL, stdout=out, stderr=out, env=environ, timeout=60)
    if done.returncode:
        raise ClusterError(f"{' '.join(argv)}: exit code {done.returncode}")


def _succeeds(argv: list[str], environ: Mapping[str, str]) -> bool:
    done = subprocess.run(argv, capture_output=True, env=environ, timeout=10)
    return done.returncode == 0
