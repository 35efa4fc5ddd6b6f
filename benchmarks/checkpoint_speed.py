"""Saves and loads beside torch.save, DCP, safetensors and plain writes: a large state, many small tensors.

Every measurement runs in a process of its own, forked from one that has the state in memory; so the peak of
memory (VmHWM after clear_refs) is that of one save or load. What a load fills is the child's own memory
before its time begins, and as much memory as the state has was used and freed just before. Files that are
read lie in the page cache. A load that changes nothing before all is checked needs memory besides the
state's: it is compared with plain reads into new memory, and those into the state's own are shown as well.
Nothing is asserted.

    python benchmarks/checkpoint_speed.py [--rounds 20] [--mib 1024] [--small 4096] [--directory DIR]

`--small 4096` makes 4096 parameters with Adam: 16,384 tensors.
"""

from __future__ import annotations

import argparse
import os
import shutil
import tempfile
import warnings
from collections.abc import Callable, Mapping
from pathlib import Path

import measurements
import safetensors.torch
import torch
import torch.distributed.checkpoint as dcp
from checkpoint_state import MEGA, State, map_large_tensors
from forked_case import Body, Measured, in_child
from measurements import Aim, Row, interleaved, row, show

from dist_train.checkpoint.format.tensor_bytes import view_bytes
from dist_train.checkpoint.manager import CheckpointManager

PARAMETERS = 48  # x (weight, two moments): 144 large tensors
CHUNK = 4 * MEGA
ROUNDS = 20
OURS_LOAD = "ours, verified"
RAW_NEW, RAW_USED = "raw read, new memory", "raw read, used memory"


def fsynced(path: Path) -> None:
    """Make a file durable."""
    descriptor = os.open(path, os.O_RDONLY)
    os.fsync(descriptor)
    os.close(descriptor)


def raw_write(path: Path, views: list[memoryview], sync: bool) -> None:
    """All bytes by plain writes of 4 MiB."""
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
    for view in views:
        for start in range(0, len(view), CHUNK):
            os.write(descriptor, view[start : start + CHUNK])
    if sync:
        os.fsync(descriptor)
    os.close(descriptor)


def alone() -> None:
    """A process group of this process, which DCP's async_save asks for."""
    folder = tempfile.mkdtemp(prefix="checkpoint-speed-")
    torch.distributed.init_process_group("gloo", init_method=f"file://{folder}/store", rank=0, world_size=1)


class Saves:
    """The cases of saving; each leaves nothing behind but our own directory of two checkpoints."""

    def __init__(self, state: State, folder: Path) -> None:
        self.state, self.folder = state, folder
        self.out = folder / "out"
        self._step = 2
        in_child(lambda: lambda: self._seed())

    def _seed(self) -> None:
        manager = CheckpointManager(self.folder / "kept", run_id="benchmark", attempt=0, keep_last=2)
        manager.save(1, self.state.for_ours())
        manager.save(2, self.state.for_ours())

    def ours(self) -> Body:
        """The first save of a run: nothing is removed, so nothing is read back."""
        manager = CheckpointManager(self.out, run_id="benchmark", attempt=0)
        return lambda: manager.save(1, self.state.for_ours())

    def ours_removes(self) -> Body:
        """A save in the middle of a run: the new one is read back from the disk, the oldest is removed."""
        manager = CheckpointManager(self.folder / "kept", run_id="benchmark", attempt=0, keep_last=2)
        manager.begin_attempt()
        step = self._step = manager.steps()[-1] + 1
        return lambda: manager.save(step, self.state.for_ours())

    def torch_save(self, sync: bool) -> Body:
        """torch.save to a path."""

        def body() -> None:
            torch.save(self.state.for_torch(), self.out)
            if sync:
                fsynced(self.out)

        return body

    def safetensors(self, sync: bool) -> Body:
        """safetensors.torch.save_file."""

        def body() -> None:
            safetensors.torch.save_file(self.state.flat(), self.out)
            if sync:
                fsynced(self.out)

        return body

    def dcp(self) -> Body:
        """torch.distributed.checkpoint.save, which fsyncs."""
        return lambda: dcp.save(self.state.for_torch(), checkpoint_id=self.out, no_dist=True)

    def dcp_async(self) -> Body:
        """Until async_save returns: how long the training stands still."""
        alone()
        return lambda: dcp.async_save(self.state.for_torch(), checkpoint_id=self.out)

    def raw(self) -> Body:
        """The same bytes by plain writes."""
        views = self.state.views()
        return lambda: raw_write(self.out, views, True)

    def memcpy(self) -> Body:
        """The same bytes copied to memory that was used before."""
        tensors = list(self.state.flat().values())
        copies = [torch.zeros_like(tensor) for tensor in tensors]
        return lambda: [copy.copy_(tensor) for copy, tensor in zip(copies, tensors, strict=True)]

    def cases(self, small: bool) -> dict[str, Callable[[], Body]]:
        """By name."""
        found: dict[str, Callable[[], Body]] = {
            "ours": self.ours,
            "ours, one removed": self.ours_removes,
            "torch.save": lambda: self.torch_save(False),
            "torch.save + fsync": lambda: self.torch_save(True),
            "safetensors + fsync": lambda: self.safetensors(True),
            "DCP": self.dcp,
            "DCP async, stall": self.dcp_async,
            "raw write + fsync": self.raw,
            "memcpy": self.memcpy,
        }
        if small:
            for name in ("raw write + fsync", "memcpy", "torch.save + fsync"):
                del found[name]
        return found

    def measure(self, prepare: Callable[[], Body]) -> Measured | None:
        """Run one case and remove what it left."""
        measured = in_child(prepare, self.state.bytes())
        if self.out.is_dir():
            shutil.rmtree(self.out)
        self.out.unlink(missing_ok=True)
        return measured


class Loads:
    """The cases of loading into a state that is there already."""

    def __init__(self, state: State, folder: Path) -> None:
        self.state, self.folder = state, folder
        self.files = {
            name: folder / f"load-{name}" for name in ("torch", "safetensors", "raw", "dcp", "ours")
        }
        in_child(lambda: self._write)

    def _write(self) -> None:
        torch.save(self.state.for_torch(), self.files["torch"])
        safetensors.torch.save_file(self.state.flat(), self.files["safetensors"])
        raw_write(self.files["raw"], self.state.views(), False)
        dcp.save(self.state.for_torch(), checkpoint_id=self.files["dcp"], no_dist=True)
        manager = CheckpointManager(self.files["ours"], run_id="benchmark", attempt=0)
        manager.save(1, self.state.for_ours())

    def _ready(self, name: str) -> None:
        path = self.files[name]
        for file in path.rglob("*") if path.is_dir() else [path]:
            if file.is_file():
                with file.open("rb", buffering=0) as stream:
                    box = bytearray(CHUNK)
                    while stream.readinto(box):
                        pass
        self.state.touch()

    def ours(self) -> Body:
        """load_latest: verified whole, then put into the state."""
        self._ready("ours")
        manager = CheckpointManager(self.files["ours"], run_id="benchmark", attempt=1)
        return lambda: manager.load_latest(self.state.for_ours())

    def torch(self, mmap: bool) -> Body:
        """torch.load and both load_state_dict."""
        self._ready("torch")

        def body() -> None:
            found = torch.load(self.files["torch"], mmap=mmap)
            self.state.model.load_state_dict(found["model"])
            if not mmap:
                self.state.optimizer.load_state_dict(found["optimizer"])
                return
            # The optimizer keeps what it is given, and that is not read yet.
            for index, values in found["optimizer"]["state"].items():
                for key, tensor in values.items():
                    states[index][key].copy_(tensor)

        states = self.state.optimizer.state_dict()["state"]
        return body

    def safetensors(self) -> Body:
        """load_file and a copy of every tensor."""
        self._ready("safetensors")
        mine = self.state.flat()

        def body() -> None:
            for name, tensor in safetensors.torch.load_file(self.files["safetensors"]).items():
                mine[name].copy_(tensor)

        return body

    def dcp(self) -> Body:
        """torch.distributed.checkpoint.load, in place."""
        self._ready("dcp")
        return lambda: dcp.load(self.state.for_torch(), checkpoint_id=self.files["dcp"], no_dist=True)

    def raw(self, new: bool) -> Body:
        """Plain reads into the tensors, or into new ones of the same sizes."""
        self._ready("raw")
        tensors = list(self.state.flat().values())
        used = [] if new else self.state.views()

        def body() -> None:
            made = [torch.empty_like(tensor) for tensor in tensors] if new else []
            views = used or [view_bytes(tensor) for tensor in made]
            with self.files["raw"].open("rb", buffering=0) as stream:
                for view in views:
                    start = 0
                    while start < len(view):
                        start += stream.readinto(view[start:])

        return body

    def measure(self, prepare: Callable[[], Body]) -> Measured | None:
        """Run one case."""
        return in_child(prepare, self.state.bytes())

    def cases(self, small: bool) -> dict[str, Callable[[], Body]]:
        """By name."""
        found: dict[str, Callable[[], Body]] = {
            OURS_LOAD: self.ours,
            "torch.load": lambda: self.torch(False),
            "torch.load mmap + copy": lambda: self.torch(True),
            "DCP": self.dcp,
            "safetensors + copy": self.safetensors,
            RAW_NEW: lambda: self.raw(True),
            RAW_USED: lambda: self.raw(False),
        }
        if small:
            del found[RAW_NEW], found[RAW_USED]
        return found


Found = Mapping[str, list[Measured | None]]


def rounds_of(
    cases: Mapping[str, Callable[[], Body]],
    measure: Callable[[Callable[[], Body]], Measured | None],
    rounds: int,
) -> Found:
    """Interleave the cases; everything that was measured of each."""
    found: dict[str, list[Measured | None]] = {name: [] for name in cases}

    def once(name: str) -> None:
        found[name].append(measure(cases[name]))

    interleaved({name: lambda name=name: once(name) for name in cases}, rounds)  # type: ignore[misc]
    return found


def rows_of(what: str, found: Found, base: str, aim: Aim, state_bytes: int, small: bool) -> list[Row]:
    """Wall time, processor time and memory; the aims hold for what is ours."""
    rows = []
    for title, unit, value in (("wall", "s", "wall"), ("processor time", "s", "cpu")):
        values = {
            name: [None if one is None else getattr(one, value) for one in all_of]
            for name, all_of in found.items()
        }
        wanted = aim if small or value == "wall" else None
        for name, mine in values.items():
            rows.append(
                row(
                    "checkpoint_speed",
                    f"{what}, {title}",
                    name,
                    mine,
                    unit,
                    None if name == base else (base, values[base]),
                    wanted if name.startswith("ours") else None,
                )
            )
    for name, all_of in found.items():
        peaks = [None if one is None else one.peak / MEGA for one in all_of]
        size: list[float | None] = [state_bytes / MEGA] * len(peaks)
        bound = Aim(at_most=1.0) if name.startswith("ours") and not small else None
        title = f"{what}, memory in addition"
        rows.append(row("checkpoint_speed", title, name, peaks, "MiB", ("the state", size), bound))
    return rows


def beside_used_memory(what: str, loaded: Found) -> Row:
    """Our load beside reads into memory that is there already."""
    ours, used = (
        [None if one is None else one.wall for one in loaded[name]] for name in (OURS_LOAD, RAW_USED)
    )
    return row("checkpoint_speed", what, OURS_LOAD, ours, "s", (RAW_USED, used))


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    measurements.add_arguments(parser, ROUNDS)
    parser.add_argument("--mib", type=int, default=1024, help="size of the large state, default 1024")
    parser.add_argument("--small", type=int, default=4096, help="parameters of the small one, default 4096")
    parser.add_argument("--directory", type=Path, help="where to write; default below the current directory")
    options = parser.parse_args()
    map_large_tensors()
    torch.set_num_threads(1)
    warnings.filterwarnings("ignore")
    sizes = (
        (f"{options.mib} MiB, {3 * PARAMETERS} tensors", PARAMETERS, options.mib * MEGA // (12 * PARAMETERS)),
        (f"{4 * options.small:,} small tensors", options.small, 64),
    )
    for index, (title, count, size) in enumerate(sizes):
        small = index == 1
        state = State(count, size)
        with tempfile.TemporaryDirectory(prefix=".checkpoint-speed-", dir=options.directory or ".") as folder:
            saves, loads = Saves(state, Path(folder)), Loads(state, Path(folder))
            saved = rounds_of(saves.cases(small), saves.measure, options.rounds)
            loaded = rounds_of(loads.cases(small), loads.measure, options.rounds)
        base = "torch.save" if small else "raw write + fsync"
        aim = Aim(at_most=1.5 if small else 1.2)
        rows = rows_of(f"save, {title}", saved, base, aim, state.bytes(), small)
        base = "torch.load" if small else RAW_NEW
        aim = Aim(at_most=1.5 if small else 1.8)
        rows += rows_of(f"load, {title}", loaded, base, aim, state.bytes(), small)
        if not small:
            rows.append(beside_used_memory(f"load, {title}, wall", loaded))
        show(rows, options.record)


if __name__ == "__main__":
    main()
