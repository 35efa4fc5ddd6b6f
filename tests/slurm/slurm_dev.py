"""A Slurm cluster on this machine in the foreground, to try things on; Ctrl-C ends it without a trace."""

from __future__ import annotations

import argparse
import shutil
import signal
import sys
from types import FrameType

from slurm_cluster import BINARIES, SlurmCluster
from slurm_config import ClusterSettings
from slurm_daemons import ClusterError

HOW = """\
In another terminal:

  export SLURM_CONF={conf}
  sinfo
  dist-train launch examples/digits.yaml --launcher slurm --device cpu --nodes 2 --gpus-per-node 2
  squeue

Preempt what runs in the partitions main, low5, low15 (it is requeued):
  sbatch --partition=high --nodes={nodes} --gpus-per-node={gpus} --output=/dev/null --wrap='sleep 20'
Take a node away, and bring it back:
  scontrol update NodeName={node} State=DOWN Reason=test
  scontrol update NodeName={node} State=RESUME

The daemons' logs: {folder}/log
Ctrl-C ends the cluster, its jobs and its folder."""


def main() -> int:
    """Start it, say how to use it, wait for the end."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--nodes", type=int, default=4, help="default: 4")
    parser.add_argument("--gpus-per-node", type=int, default=4, help="pretended ones; default: 4")
    parser.add_argument("--accounting", action="store_true", help="with a database, so that sacct answers")
    asked = parser.parse_args()
    if not 1 <= asked.nodes <= 100:
        parser.error("--nodes: from 1 to 100")
    missing = [name for name in BINARIES if shutil.which(name, path="/usr/bin:/usr/sbin") is None]
    if missing:
        print(f"not installed: {' '.join(missing)}\n  apt-get install slurmctld slurmd slurm-client munge")
        return 1
    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, interrupt)
    settings = ClusterSettings(
        nodes=asked.nodes, gpus_per_node=asked.gpus_per_node, accounting=asked.accounting
    )
    try:
        serve(SlurmCluster(settings))
    except ClusterError as error:
        print(error, file=sys.stderr)
        return 1
    return 0


def serve(cluster: SlurmCluster) -> None:
    """From the start to Ctrl-C."""
    try:
        cluster.start()
        tell(cluster)
        signal.pause()
    except KeyboardInterrupt:
        pass
    finally:
        # A second Ctrl-C shall not leave half of it.
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            signal.signal(number, signal.SIG_IGN)
        print("\nending the cluster", flush=True)
        cluster.stop()


def tell(cluster: SlurmCluster) -> None:
    """What there is, and how to use it."""
    settings = cluster.settings
    print(f"{settings.nodes} nodes in {cluster.start_s:.1f} s\n\n{cluster.run('sinfo').stdout}")
    words = {"conf": cluster.environ["SLURM_CONF"], "folder": cluster.folder, "node": cluster.names[-1]}
    print(HOW.format(nodes=settings.nodes, gpus=settings.gpus_per_node, **words), flush=True)


def interrupt(number: int, frame: FrameType | None) -> None:
    """Any wish to end it is a Ctrl-C."""
    raise KeyboardInterrupt


if __name__ == "__main__":
    sys.exit(main())
