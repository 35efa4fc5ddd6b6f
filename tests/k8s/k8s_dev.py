"""A Kubernetes cluster on this machine in the foreground, to try things on; Ctrl-C ends it without trace."""

from __future__ import annotations

import argparse
import os
import shutil
import signal
import sys
from pathlib import Path
from types import FrameType

from k8s_cluster import CLAIM, ClusterSettings, KubernetesCluster
from k8s_network import BINARIES

HOW = """\
In another terminal:

  export KUBECONFIG={kubeconfig}
  dist-train launch examples/digits.yaml --launcher kubernetes --image any --device cpu \\
      --nodes 2 --gpus-per-node 2 --run-volume pvc/{claim}
  kubectl get pods                                   (kubectl apply needs --validate=false)

/workspace in every container is a copy of {workspace}; the volume {claim} is {volume}
What a pod wrote: {folder}/pods/*/*.log
Ctrl-C ends the cluster, its pods and its folder."""


def main() -> int:
    """Start it, say how to use it, wait for the end."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--nodes", type=int, default=2, help="default: 2")
    parser.add_argument("--gpus-per-node", type=int, default=8, help="pretended ones; default: 8")
    parser.add_argument("--workspace", type=Path, default=Path.cwd(), help="default: this directory")
    parser.add_argument("--back-off", type=float, default=1.0, help="before a pod is replaced; default: 1")
    asked = parser.parse_args()
    missing = [name for name in BINARIES if shutil.which(name) is None]
    if missing:
        print(f"not installed: {' '.join(missing)}\n  apt-get install iproute2 util-linux")
        return 1
    if os.geteuid() != 0:
        print("pods are processes in namespaces of their own: run it as root")
        return 1
    # SIGINT too: a shell that starts it in the background has it ignored.
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, interrupt)
    settings = ClusterSettings(
        nodes=asked.nodes, gpus_per_node=asked.gpus_per_node, back_off_s=asked.back_off
    )
    serve(KubernetesCluster(settings), asked.workspace.resolve())
    return 0


def serve(cluster: KubernetesCluster, workspace: Path) -> None:
    """From the start to Ctrl-C."""
    try:
        cluster.image.workspace = workspace
        cluster.start()
        words = {"kubeconfig": cluster.kubeconfig, "volume": cluster.volume, "folder": cluster.folder}
        print(f"{cluster.settings.nodes} nodes in {cluster.start_s:.1f} s\n")
        print(HOW.format(claim=CLAIM, workspace=workspace, **words), flush=True)
        signal.pause()
    except KeyboardInterrupt:
        pass
    finally:
        # A second Ctrl-C shall not leave half of it.
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            signal.signal(number, signal.SIG_IGN)
        print("\nending the cluster", flush=True)
        cluster.stop()


def interrupt(number: int, frame: FrameType | None) -> None:
    """Any wish to end it is a Ctrl-C."""
    raise KeyboardInterrupt


if __name__ == "__main__":
    sys.exit(main())
