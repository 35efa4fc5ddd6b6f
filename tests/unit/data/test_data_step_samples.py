"""`python -m dist_train.data`: the samples of a step by rank are those that the loaders read."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

from dist_train.data.__main__ import samples_by_rank
from dist_train.data.batch_partition import BatchPartition
from dist_train.data.permutation import PERMUTATION_VERSION, Permutation
from dist_train.errors import ConfigError

ASKED = {
    "n": 103,
    "seed": 7,
    "shuffle": True,
    "dataset_id": "d",
    "batch_size": 10,
    "world_size": 3,
    "permutation_version": PERMUTATION_VERSION,
    "epoch": 2,
    "step": 4,
}


@pytest.mark.parametrize("step", [0, 4, 10])
@pytest.mark.parametrize("shuffle", [True, False])
def test_each_rank_has_what_its_loader_reads(step: int, shuffle: bool) -> None:
    found = samples_by_rank({**ASKED, "step": step, "shuffle": shuffle})
    order = Permutation(103, 7, 2, "d").__getitem__ if shuffle else lambda positions: positions
    for rank in range(3):
        partition = BatchPartition(103, 10, rank, 3, 1)
        assert found[rank] == next(partition.sample_ids(order, step))


def test_an_order_of_another_version_is_refused() -> None:
    with pytest.raises(ConfigError, match="version 99"):
        samples_by_rank({**ASKED, "permutation_version": 99})


def test_the_process_loads_no_torch() -> None:
    code = "import runpy, sys; runpy.run_module('dist_train.data', run_name='__main__')"
    code = (
        f"import atexit, sys; atexit.register(lambda: print('torch' in sys.modules, file=sys.stderr))\n{code}"
    )
    done = subprocess.run(
        [sys.executable, "-P", "-c", code],
        input=json.dumps(ASKED),
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.stderr.strip() == "False"
    assert set(json.loads(done.stdout)["ranks"]) == {"0", "1", "2"}
