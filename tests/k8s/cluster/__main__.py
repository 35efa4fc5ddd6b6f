"""Run an emulated Kubernetes cluster in the foreground until Ctrl-C, for experiments."""

from __future__ import annotations

import argparse
import os
import shutil
import signal
import sys
from pathlib import Path
from types import FrameType

from cluster.kubernetes_cluster import CLAIM, ClusterSettings, KubernetesCluster
from cluster.nodes.network import BINARIES

USAGE = """\
In another terminal:

  export KUBECONFIG={kubeconfig}
  dist-train launch examples/digits.yaml --launcher kubernetes --image any --device cpu \\
      --nodes 2 --gpus-per-node 2 --run-volume pvc/{claim}
  kubectl get pods                                   (kubectl apply needs --validate=false)

/workspace in every container is a copy of {workspace}; the volume {claim} is {volume}
Output of the pods: {folder}/pods/*/*.log
Ctrl-C ends the cluster, its pods and its folder."""


def main() -> int:
    """Parse arguments and serve; returns the exit code."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--nodes", type=int, default=2, help="default: 2")
    parser.add_argument("--gpus-per-node", type=int, default=8, help="simulated; default: 8")
    parser.add_argument("--workspace", type=Path, default=Path.cwd(), help="default: this directory")
    parser.add_argument(
        "--back-off", type=float, default=1.0, help="seconds before a pod is replaced; default: 1"
    )
    args = parser.parse_args()
    missing = [name for name in BINARIES if shutil.which(name) is None]
    if missing:
        print(f"not installed: {' '.join(missing)}\n  apt-get install iproute2 util-linux")
        return 1
    if os.geteuid() != 0:
        print("root is needed: pods are processes in namespaces")
        return 1
    # SIGINT too: a shell ignores it for background jobs.
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, interrupt)
    settings = ClusterSettings(nodes=args.nodes, gpus_per_node=args.gpus_per_node, back_off_s=args.back_off)
    serve(KubernetesCluster(settings), args.workspace.resolve())
    return 0


def serve(cluster: KubernetesCluster, workspace: Path) -> None:
    """Start the cluster, print how to use it, wait for Ctrl-C."""
    try:
        cluster.image.workspace = workspace
        cluster.start()
        values = {"kubeconfig": cluster.kubeconfig, "volume": cluster.volume, "folder": cluster.folder}
        print(f"{cluster.settings.nodes} nodes in {cluster.start_s:.1f} s\n")
        print(USAGE.format(claim=CLAIM, workspace=workspace, **values), flush=True)
        signal.pause()
    except KeyboardInterrupt:
        pass
    finally:
        # A second Ctrl-C must not interrupt the cleanup.
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            signal.signal(number, signal.SIG_IGN)
        print("\nending the cluster", flush=True)
        cluster.stop()


def interrupt(number: int, frame: FrameType | None) -> None:
    """Treat the signal as Ctrl-C."""
    raise KeyboardInterrupt


if __name__ == "__main__":
    sys.exit(main())
