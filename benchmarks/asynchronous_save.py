"""How long a save in the background holds the training: beside DCP's async_save and a copy of the memory.

Every measurement runs in a process of its own, forked from one that has the state in memory. `stall` is the
time until the call returns: of a process's first save, and of a later one, which uses the same buffers again.
`steps with a save` is the time of so many matrix products of the CPU with one save among them, up to its
commit: what a save costs in all, where training and save share the processors. Nothing is asserted.

    python benchmarks/asynchronous_save.py [--rounds 20] [--mib 1024] [--steps 40] [--directory DIR]
"""

from __future__ import annotations

import argparse
import shutil
import tempfile
import warnings
from collections.abc import Callable
from pathlib import Path

import measurements
import torch
import torch.distributed.checkpoint as dcp
from checkpoint_state import MEGA, State, map_large_tensors
from forked_case import Body, in_child
from measurements import Row, interleaved, row, show

from dist_train.checkpoint.manager import CheckpointManager
from dist_train.jobs.machine import usable_cores

PARAMETERS = 48  # x (weight, two moments): 144 large tensors
ROUNDS = 20
WIDTH = 1024
MEMCPY = "memcpy"


class Cases:
    """What is measured; each leaves nothing behind."""

    def __init__(self, state: State, folder: Path, steps: int) -> None:
        self.state, self.out, self.steps = state, folder / "out", steps

    def _manager(self) -> CheckpointManager:
        return CheckpointManager(self.out, run_id="benchmark", attempt=0)

    def ours(self, later: bool) -> Body:
        """Until start_save returns."""
        manager = self._manager()
        if later:
            manager.start_save(1, self.state.for_ours())
            manager.wait()
        return lambda: manager.start_save(2, self.state.for_ours())

    def dcp(self, later: bool) -> Body:
        """Until async_save returns."""
        folder = tempfile.mkdtemp(prefix="asynchronous-save-")
        torch.distributed.init_process_group(
            "gloo", init_method=f"file://{folder}/store", rank=0, world_size=1
        )
        if later:
            dcp.async_save(self.state.for_torch(), checkpoint_id=self.out / "1").result()
        return lambda: dcp.async_save(self.state.for_torch(), checkpoint_id=self.out / "2")

    def memcpy(self, later: bool) -> Body:
        """The same bytes copied, to memory that was used before or is new."""
        tensors = list(self.state.flat().values())
        used = [torch.zeros_like(tensor) for tensor in tensors] if later else []

        def body() -> None:
            copies = used or [torch.empty_like(tensor) for tensor in tensors]
            for copy, tensor in zip(copies, tensors, strict=True):
                copy.copy_(tensor)

        return body

    def waits(self) -> Body:
        """Until save returns: hashed, written and durable."""
        manager = self._manager()
        return lambda: manager.save(2, self.state.for_ours())

    def steps_with(self, save: str) -> Body:
        """Matrix products, and after a quarter of them a save."""
        torch.set_num_threads(usable_cores().amount)
        left, right = torch.randn(WIDTH, WIDTH), torch.randn(WIDTH, WIDTH)
        manager = self._manager()

        def body() -> None:
            for step in range(self.steps):
                torch.mm(left, right)
                if step == self.steps // 4 and save == "waits":
                    manager.save(1, self.state.for_ours())
                elif step == self.steps // 4 and save == "background":
                    manager.start_save(1, self.state.for_ours())
            manager.wait()

        return body

    def measure(self, prepare: Callable[[], Body]) -> float | None:
        """Wall seconds of one case; what it left is removed."""
        measured = in_child(prepare, 2 * self.state.bytes())
        shutil.rmtree(self.out, ignore_errors=True)
        return None if measured is None else measured.wall


def rows_of(
    what: str, cases: Cases, found: dict[str, Callable[[], Body]], base: str, rounds: int
) -> list[Row]:
    """Measure some cases, interleaved."""
    values = interleaved(
        {name: lambda prepare=prepare: cases.measure(prepare) for name, prepare in found.items()},  # type: ignore[misc]
        rounds,
    )
    return [
        row("asynchronous_save", what, name, mine, "s", None if name == base else (base, values[base]))
        for name, mine in values.items()
    ]


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    measurements.add_arguments(parser, ROUNDS)
    parser.add_argument("--mib", type=int, default=1024, help="size of the state, default 1024")
    parser.add_argument("--steps", type=int, default=40, help="matrix products, default 40")
    parser.add_argument("--directory", type=Path, help="where to write; default below the current directory")
    options = parser.parse_args()
    map_large_tensors()
    torch.set_num_threads(1)
    warnings.filterwarnings("ignore")
    state = State(PARAMETERS, options.mib * MEGA // (12 * PARAMETERS))
    size = f"{options.mib} MiB, {3 * PARAMETERS} tensors"
    with tempfile.TemporaryDirectory(prefix=".asynchronous-save-", dir=options.directory or ".") as folder:
        cases = Cases(state, Path(folder), options.steps)
        rows: list[Row] = []
        for later, when in ((False, "first save"), (True, "later save")):
            stalls: dict[str, Callable[[], Body]] = {
                "ours": lambda later=later: cases.ours(later),  # type: ignore[misc]
                "DCP async": lambda later=later: cases.dcp(later),  # type: ignore[misc]
                MEMCPY: lambda later=later: cases.memcpy(later),  # type: ignore[misc]
            }
            if later:
                stalls["ours, save that waits"] = cases.waits
            rows += rows_of(f"stall, {when}, {size}", cases, stalls, MEMCPY, options.rounds)
        beside = {
            name: lambda name=name: cases.steps_with(name) for name in ("no save", "waits", "background")
        }  # type: ignore[misc]
        what = f"{options.steps} steps with a save, {usable_cores().amount} threads, {size}"
        rows += rows_of(what, cases, beside, "no save", options.rounds)
        show(rows, options.record)


if __name__ == "__main__":
    main()
