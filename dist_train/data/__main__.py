"""`python -P -m dist_train.data`: the samples of one step by rank, for the command line; no torch.

Reads {n, seed, epoch, dataset_id, shuffle, permutation_version, batch_size, world_size, step} from stdin, of
which `step` is the step of its epoch, from 0; prints {ranks: {rank: sample ids}}.
"""

from __future__ import annotations

import json
import sys
from typing import Any

from dist_train.data.permutation import PERMUTATION_VERSION, Permutation
from dist_train.errors import ConfigError, DistTrainError


def samples_by_rank(asked: dict[str, Any]) -> dict[int, list[int]]:
    """Position p of an epoch is in step p // B; there q = p % B is of rank q % W."""
    if asked["permutation_version"] != PERMUTATION_VERSION:
        raise ConfigError(
            f"its order is of version {asked['permutation_version']}, this is {PERMUTATION_VERSION}"
        )
    n, batch_size, world_size = asked["n"], asked["batch_size"], asked["world_size"]
    first = asked["step"] * batch_size
    positions = list(range(first, min(first + batch_size, n)))
    ids = positions
    if asked["shuffle"] and positions:
        ids = Permutation(n, asked["seed"], asked["epoch"], asked["dataset_id"])[positions].tolist()
    return {rank: ids[rank::world_size] for rank in range(world_size)}


def main() -> int:
    """Answer the request on stdin; returns the exit code."""
    try:
        print(json.dumps({"ranks": samples_by_rank(json.load(sys.stdin))}))
    except DistTrainError as error:
        print(f"error: {error}", file=sys.stderr)
        return int(error.exit_code)
    return 0


if __name__ == "__main__":
    sys.exit(main())
