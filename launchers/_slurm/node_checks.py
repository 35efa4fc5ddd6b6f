"""Lines of the batch script that look at the job's nodes before any rank starts."""

from __future__ import annotations

from dist_train import env
from dist_train.jobs import JobSpec

_VERDICT = f'"${env.RUN_DIR}/control/verdict-$SLURM_JOB_ID.${{SLURM_RESTART_COUNT:-0}}"'
_NODE = "${SLURMD_NODENAME:-$(hostname)}"


def node_checks(spec: JobSpec) -> list[str]:
    """Each of several nodes must see the run directory, and have as many GPUs as ranks; else 78."""
    if spec.nodes == 1:
        return []
    counts_gpus = spec.device == "cuda"
    counted = f'echo "gpus: {_NODE} ${{SLURM_GPUS_ON_NODE:-?}}"; ' if counts_gpus else ""
    return [
        "# Every node must see the run directory. (NFS may hide a new file for some seconds.)",
        f'see=\'{counted}for try in {{1..20}}; do ls "$1" >/dev/null 2>&1; [ -r "$1/key" ] && exit; '
        f'sleep 0.5; done; echo "blind: {_NODE}"\'',
        f'seen=$(srun --mpi=none bash -c "$see" see "${env.RUN_DIR}/control")  # (a TaskProlog prints too)',
        'blind=$(sed -n "s/^blind: //p" <<< "$seen" | sort -u | tr "\\n" " ")',
        'if [ -n "$blind" ]; then',
        f'  echo "[dist-train] the run directory ${env.RUN_DIR} is not shared by: $blind" >&2',
        f'  echo "78 the run directory is not shared by: $blind" > {_VERDICT}',
        "  exit 78",
        "fi",
        *(_gpus_check(spec.procs_per_node) if counts_gpus else []),
    ]


def _gpus_check(needed: int) -> list[str]:
    """Nodes of unlike GPUs, as of `--gpu-request none`: ranks without a GPU would fail one by one."""
    return [
        'gpus=$(sed -n "s/^gpus: //p" <<< "$seen" | sort -u)',
        f'few=$(while read -r node count; do [ "$count" = "?" ] || [ "$count" -ge {needed} ] || '
        'echo "$node"; done <<< "$gpus")',
        'if [ -n "$few" ]; then',
        '  gpus=$(while read -r node count; do echo -n "$node has $count, "; done <<< "$gpus")',
        f'  why="not every node has GPUs for its {needed} processes: ${{gpus%, }}"',
        '  echo "[dist-train] $why" >&2',
        f'  echo "78 $why" > {_VERDICT}',
        "  exit 78",
        "fi",
    ]
