"""Run a Slurm cluster in the foreground until Ctrl-C, for experiments."""

from __future__ import annotations

import argparse
import shutil
import signal
import sys
from types import FrameType

from slurm_cluster import BINARIES, SlurmCluster
from slurm_config import ClusterSettings
from slurm_daemons import ClusterError

USAGE = """\
In another terminal:

  export SLURM_CONF={conf}
  sinfo
  dist-train launch examples/digits.yaml --launcher slurm --device cpu --nodes 2 --gpus-per-node 2
  squeue

Preempt jobs of the partitions main, low5, low15 (they are requeued):
  sbatch --partition=high --nodes={nodes} --gpus-per-node={gpus} --output=/dev/null --wrap='sleep 20'
Set a node down, and resume it:
  scontrol update NodeName={node} State=DOWN Reason=test
  scontrol update NodeName={node} State=RESUME

Logs of the daemons: {folder}/log
Ctrl-C ends the cluster, its jobs and its folder."""


def main() -> int:
    """Parse arguments and serve; returns the exit code."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--nodes", type=int, default=4, help="default: 4")
    parser.add_argument("--gpus-per-node", type=int, default=4, help="simulated; default: 4")
    parser.add_argument("--accounting", action="store_true", help="with a database, so that sacct works")
    args = parser.parse_args()
    if not 1 <= args.nodes <= 100:
        parser.error("--nodes: from 1 to 100")
    missing = [name for name in BINARIES if shutil.which(name, path="/usr/bin:/usr/sbin") is None]
    if missing:
        print(f"not installed: {' '.join(missing)}\n  apt-get install slurmctld slurmd slurm-client munge")
        return 1
    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, interrupt)
    settings = ClusterSettings(nodes=args.nodes, gpus_per_node=args.gpus_per_node, accounting=args.accounting)
    try:
        serve(SlurmCluster(settings))
    except ClusterError as error:
        print(error, file=sys.stderr)
        return 1
    return 0


def serve(cluster: SlurmCluster) -> None:
    """Start the cluster, print how to use it, wait for Ctrl-C."""
    try:
        cluster.start()
        print_usage(cluster)
        signal.pause()
    except KeyboardInterrupt:
        pass
    finally:
        # A second Ctrl-C must not interrupt the cleanup.
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            signal.signal(number, signal.SIG_IGN)
        print("\nending the cluster", flush=True)
        cluster.stop()


def print_usage(cluster: SlurmCluster) -> None:
    """Print the nodes and how to use the cluster."""
    settings = cluster.settings
    print(f"{settings.nodes} nodes in {cluster.start_s:.1f} s\n\n{cluster.run('sinfo').stdout}")
    values = {"conf": cluster.environ["SLURM_CONF"], "folder": cluster.folder, "node": cluster.names[-1]}
    print(USAGE.format(nodes=settings.nodes, gpus=settings.gpus_per_node, **values), flush=True)


def interrupt(number: int, frame: FrameType | None) -> None:
    """Treat the signal as Ctrl-C."""
    raise KeyboardInterrupt


if __name__ == "__main__":
    sys.exit(main())
