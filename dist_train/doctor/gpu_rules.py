"""GPUs of each node: how many, and in which state."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

from dist_train.doctor.facts import Facts, GpuFacts, NodeFacts
from dist_train.doctor.finding import Finding
from dist_train.rundir.format_amounts import size

# Beside a rank, its CUDA context and that of this check: more belongs to somebody else.
_OTHERS_BYTES = 2 << 30
_HOT = 90  # degrees Celsius, near where cards begin to slow down


def gpu_findings(facts: Facts) -> Iterator[Finding]:
    """Each node's GPUs, against what the job needs and against the other nodes'."""
    if facts.job.device != "cuda":
        if facts.nodes:
            yield Finding("skipped", "GPUs", "the job computes on CPU", _all(facts))
        return
    for node in facts.nodes:
        yield from _count(facts, node)
        problems = [finding for gpu in node.gpus for finding in _gpu(node.node, gpu)]
        yield from problems
        if node.gpus and not problems:
            yield Finding("ok", "GPUs", _inventory(node), (node.node,))
    yield from _odd_nodes(facts)


def _all(facts: Facts) -> tuple[int, ...]:
    return tuple(node.node for node in facts.nodes)


def _count(facts: Facts, node: NodeFacts) -> Iterator[Finding]:
    wanted = facts.job.procs
    # A rank is shown its own MIG slice alone; the agent has counted them.
    if len(node.gpus) < wanted and not any(":" in gpu.number for gpu in node.gpus):
        yield Finding(
            "error",
            "GPUs",
            f"{len(node.gpus)} GPUs for {wanted} processes",
            (node.node,),
            node.no_gpu_because or "each process computes on a GPU of its own",
            f"--gpus-per-node {len(node.gpus)}" if node.gpus else "another node, or --device cpu",
        )
    for text in node.unusable_gpus:
        yield Finding(
            "error",
            "GPUs",
            f"not usable: {text}",
            (node.node,),
            "the driver knows the GPU and cannot talk to it (it is lost, or another job's)",
            "drain the node; `dmesg | grep -i xid` says why; a reset or reboot may bring it back",
        )


def _gpu(node: int, gpu: GpuFacts) -> Iterator[Finding]:
    where = f"GPU {gpu.number} ({gpu.uuid})"
    drain = f"drain the node; nvidia-smi --gpu-reset -i {gpu.number}, then replace the card if it comes back"
    if gpu.uncorrected_ecc:
        yield Finding(
            "error",
            "GPU ECC",
            f"{where}: {gpu.uncorrected_ecc} uncorrected errors",
            (node,),
            "its memory has returned wrong bits, which ECC has seen and could not correct",
            drain,
        )
    if gpu.remap_failed:
        yield Finding(
            "error",
            "GPU ECC",
            f"{where}: a row of memory could not be replaced",
            (node,),
            "it has no spare row left: the next error is not corrected",
            "replace the card",
        )
    if gpu.remap_pending:
        yield Finding(
            "warning",
            "GPU ECC",
            f"{where}: rows of memory wait to be replaced",
            (node,),
            "the card has seen errors, and goes on with the bad rows until it is reset",
            f"nvidia-smi --gpu-reset -i {gpu.number} while nothing runs on it",
        )
    if gpu.prohibited:
        yield Finding(
            "error",
            "GPUs",
            f"{where}: compute mode is prohibited",
            (node,),
            "no process may compute on it",
            f"nvidia-smi -i {gpu.number} -c DEFAULT",
        )
    yield from _slow(node, gpu, where)


def _slow(node: int, gpu: GpuFacts, where: str) -> Iterator[Finding]:
    down = [link for link in gpu.nvlinks if not link.active]
    if down and len(down) < len(gpu.nvlinks):
        yield Finding(
            "warning",
            "NVLink",
            f"{where}: {len(down)} of {len(gpu.nvlinks)} links are down",
            (node,),
            "every all-reduce goes at the speed of the slowest card",
            "drain the node; `nvidia-smi nvlink -s` and the fabric manager's log say which and why",
        )
    if worn := [link for link in gpu.nvlinks if link.errors]:
        total = sum(link.errors or 0 for link in worn)
        yield Finding(
            "warning",
            "NVLink",
            f"{where}: {total} errors on {len(worn)} links since the driver was loaded",
            (node,),
            "what fails is sent again: slow at first, then the link goes down",
            "`nvidia-smi nvlink -e`; if the count grows, have card and cable looked at",
        )
    if gpu.slowdowns or (gpu.temperature or 0) >= _HOT:
        heat = "" if gpu.temperature is None else f", {gpu.temperature} °C"
        yield Finding(
            "warning",
            "GPU clock",
            f"{where}: {' and '.join(gpu.slowdowns) or 'hot'}{heat}",
            (node,),
            "its clock is held down, and all ranks wait for the slowest",
            "cooling and power of this node; `nvidia-smi -q -d PERFORMANCE`",
        )
    if gpu.pcie_width is not None and gpu.pcie_width < (gpu.pcie_width_most or 0):
        yield Finding(
            "warning",
            "PCIe",
            f"{where}: {gpu.pcie_width} of {gpu.pcie_width_most} lanes",
            (node,),
            "copies to and from the card take longer by that factor",
            "the card or its riser does not sit well; reseat it",
        )
    if gpu.others_memory > _OTHERS_BYTES:
        yield Finding(
            "warning",
            "GPU memory",
            f"{where}: other processes hold {size(gpu.others_memory)} of {size(gpu.memory_total)}",
            (node,),
            "what is left may not hold the model",
            "`dist-train devices` on that node says whose they are",
        )


def _inventory(node: NodeFacts) -> str:
    kinds = Counter(gpu.name for gpu in node.gpus)
    links = Counter(sum(link.active for link in gpu.nvlinks) for gpu in node.gpus)
    nvlink = ", ".join(f"{count} NVLinks each" if count else "no NVLink" for count in links)
    ecc = {gpu.ecc for gpu in node.gpus}
    states = {True: "ECC on", False: "ECC off", None: "ECC not known"}
    return (
        ", ".join(f"{count} x {name}" for name, count in kinds.items())
        + f"; {nvlink}; {', '.join(states[state] for state in ecc)}"
    )


def _odd_nodes(facts: Facts) -> Iterator[Finding]:
    kinds = {node.node: tuple(sorted(gpu.name for gpu in node.gpus)) for node in facts.nodes}
    counts = Counter(kinds.values())
    if len(counts) < 2:
        return
    usual = counts.most_common(1)[0][0]
    for node, kind in kinds.items():
        if kind != usual:
            yield Finding(
                "warning",
                "GPUs",
                f"{', '.join(kind) or 'none'}, where others have {', '.join(usual) or 'none'}",
                (node,),
                "all ranks wait for the slowest card, and its memory is the limit",
                "ask for one kind: --gpu-type on Slurm, --node-selector on Kubernetes",
            )
