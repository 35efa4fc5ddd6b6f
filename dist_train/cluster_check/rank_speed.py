"""Links between neighbouring ranks, and the all-reduce of all ranks, by torch as a training uses it."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from statistics import median

import torch
import torch.distributed as torch_dist

from dist_train.distributed.control_group import Control
from dist_train.doctor.facts import AllReduceSpeed, LinkSpeed

_ROUNDS = 5
# Bytes. The last is a usual bucket of DDP; on CPU less, for a machine whose ranks share cores.
_SIZES = {"nccl": (8, 1 << 20, 256 << 20), "gloo": (8, 1 << 20, 16 << 20)}
_LINK_SIZE = {"nccl": 256 << 20, "gloo": 16 << 20}


def measure_all_reduces(device: torch.device, ranks: int) -> Iterator[AllReduceSpeed]:
    """The median of several all-reduces of each size; the sum is compared with what it must be."""
    backend = backend_of(device)
    for size in _SIZES[backend]:
        values = torch.empty(size // 4, device=device)
        times = []
        wrong = ""
        for number in range(_ROUNDS + 1):
            values.fill_(float(_addend(torch_dist.get_rank())))
            took = _timed(device, lambda values=values: torch_dist.all_reduce(values))  # type: ignore[misc]
            wrong = wrong or _compare(values, ranks)
            if number:  # the first opens connections
                times.append(took)
        yield AllReduceSpeed(backend=backend, ranks=ranks, size=size, seconds=median(times), wrong=wrong)


def measure_links(
    device: torch.device, rank: int, procs: int, pairs: Sequence[tuple[int, int]]
) -> list[LinkSpeed]:
    """The links that this rank sends over; every rank calls it with the same pairs.

    Pairs are measured in turns in which no rank has two.
    """
    backend = backend_of(device)
    values = torch.ones(_LINK_SIZE[backend] // 4, device=device)
    found = []
    for turn in turns(pairs):
        for sender, receiver in turn:
            if rank == sender:
                seconds = _exchange(device, lambda peer=receiver: torch_dist.send(values, peer))  # type: ignore[misc]
                nodes = (sender // procs, receiver // procs)
                rate = values.numel() * 4 / seconds
                found.append(
                    LinkSpeed(backend=backend, ranks=(sender, receiver), nodes=nodes, rate=round(rate))
                )
            elif rank == receiver:
                _exchange(device, lambda peer=sender: torch_dist.recv(values, peer))  # type: ignore[misc]
    return found


def neighbours(nodes: int, procs: int) -> list[tuple[int, int]]:
    """Each rank to the next on its node, and the first rank of each node to that of the next node."""
    within = [
        (node * procs + local, node * procs + local + 1)
        for node in range(nodes)
        for local in range(procs - 1)
    ]
    between = [(node * procs, (node + 1) % nodes * procs) for node in range(nodes)] if nodes > 1 else []
    return [*within, *between]


def turns(pairs: Sequence[tuple[int, int]]) -> list[list[tuple[int, int]]]:
    """The pairs in groups in which no rank occurs twice, all in the same order on every rank."""
    grouped: list[list[tuple[int, int]]] = []
    for pair in pairs:
        free = (group for group in grouped if not {rank for one in group for rank in one} & set(pair))
        group = next(free, None)
        if group is None:
            grouped.append(group := [])
        group.append(pair)
    return grouped


def backend_of(device: torch.device) -> str:
    """The backend of collectives on this device: that of AMD's GPUs is called nccl, too."""
    return "nccl" if device.type == "cuda" else "gloo"


def gather_links(control: Control, found: list[LinkSpeed]) -> list[LinkSpeed]:
    """Those of all ranks; collective."""
    gathered = control.all_gather([link.model_dump(mode="json") for link in found])
    return [LinkSpeed.model_validate(link) for links in gathered if isinstance(links, list) for link in links]


def _exchange(device: torch.device, call: Callable[[], object]) -> float:
    """The shortest of several, less the first, which opens the connection."""
    return min([_timed(device, call) for _ in range(_ROUNDS)][1:])


def _timed(device: torch.device, call: Callable[[], object]) -> float:
    _wait(device)
    began = time.perf_counter()
    call()
    _wait(device)
    return time.perf_counter() - began


def _wait(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def _addend(rank: int) -> int:
    """Small, so that sums of any number of ranks are exact; unlike, so that a rank that is absent shows."""
    return rank % 64 + 1


def _compare(values: torch.Tensor, ranks: int) -> str:
    wanted = sum(map(_addend, range(ranks)))
    if bool((values == wanted).all()):
        return ""
    odd = int((values != wanted).sum())
    return f"{odd} of {values.numel()} sums are not {wanted}"
