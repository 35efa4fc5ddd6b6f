"""A checkpoint of any layout opens in any other, to the last bit."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from pathlib import Path

import pytest
from sharded_training import LAYOUTS, Layout, load, save
from warm_commands.once_for_all_workers import once_for_all_workers

from dist_train.checkpoint.format.manifest import parse_manifest
from dist_train.checkpoint.store.verify import verify_checkpoint
from dist_train.testing import run_ranks

pytestmark = pytest.mark.multiprocess

Written = dict[str, tuple[Path, dict[str, str], str]]


# One of each kind, on as few ranks as it takes: the others cost a minute of CPU time.
FEW = tuple(
    layout for layout in LAYOUTS if layout.name in {"single1", "fsdp3", "tensor_parallel2", "pipeline2"}
)


@pytest.fixture(scope="module")
def few(tmp_path_factory: pytest.TempPathFactory) -> Written:
    """The checkpoints of FEW."""
    return written(tmp_path_factory, "few-layouts", FEW)


@pytest.fixture(scope="module")
def all_of_them(tmp_path_factory: pytest.TempPathFactory) -> Written:
    """The checkpoints of all layouts."""
    return written(tmp_path_factory, "layouts", LAYOUTS)


def written(tmp_path_factory: pytest.TempPathFactory, key: str, layouts: Sequence[Layout]) -> Written:
    """The checkpoint of each layout: its folder, the whole state's digests, weights_hash."""
    found = once_for_all_workers(tmp_path_factory, key, partial(write_all, layouts))
    return {name: (Path(folder), state, weights) for name, (folder, state, weights) in found.items()}


def write_all(layouts: Sequence[Layout], parent: Path) -> dict[str, tuple[str, dict[str, str], str]]:
    found = {}
    for layout in layouts:
        folder = parent / layout.name
        ranks = run_ranks(save, layout.ranks, args=(layout, folder))
        assert all(rank == ranks[0] for rank in ranks), "the ranks disagree on the whole state"
        found[layout.name] = (str(folder), ranks[0][0], ranks[0][1]["weights"])
    return found


@pytest.mark.parametrize("reader", FEW, ids=lambda layout: layout.name)
def test_a_few_layouts_open_here(reader: Layout, few: Written) -> None:
    check_all_open(reader, few)


@pytest.mark.proof
@pytest.mark.parametrize("reader", LAYOUTS, ids=lambda layout: layout.name)
def test_every_layout_opens_here(reader: Layout, all_of_them: Written) -> None:
    check_all_open(reader, all_of_them)


def check_all_open(reader: Layout, written: Written) -> None:
    folders = [folder for folder, _, _ in written.values()]
    ranks = run_ranks(load, reader.ranks, args=(reader, folders))
    for found in ranks:
        for (writer, (_, state, weights_hash)), (restored, hash_again) in zip(
            written.items(), found, strict=True
        ):
            assert restored == state, f"{writer} -> {reader.name}"
            assert hash_again == weights_hash, f"{writer} -> {reader.name}"


@pytest.mark.parametrize("layout", FEW, ids=lambda layout: layout.name)
def test_what_lies_where_for_a_few(layout: Layout, few: Written) -> None:
    check_parts(layout, few)


@pytest.mark.proof
@pytest.mark.parametrize("layout", LAYOUTS, ids=lambda layout: layout.name)
def test_what_lies_where(layout: Layout, all_of_them: Written) -> None:
    check_parts(layout, all_of_them)


def check_parts(layout: Layout, written: Written) -> None:
    folder = written[layout.name][0] / "step-00000002"
    assert verify_checkpoint(folder).ok
    manifest = parse_manifest((folder / "manifest.json").read_bytes())
    parts = layout.parts
    writers = layout.ranks if layout.strategy == "pipeline" else parts
    weight = manifest.tensors["model/blocks.0.up.weight"]
    assert len(weight.shards) == parts
    assert weight.shape == [10, 6]
    assert weight.digest
    # One row is on one rank; a replica of it is written once.
    assert len(manifest.tensors["model/scale"].shards) == 1
    assert manifest.aliases == {"model/again.weight": "model/embedding.weight"}
    of_ranks = {entry.name for entry in manifest.files if ".rank" in entry.name}
    assert len({name.split(".")[1] for name in of_ranks}) == (writers if writers > 1 else 0)
