"""`python -P -m dist_train.strategies NAME WORLD_SIZE DEVICE OPTIONS ACCUMULATE`: does it fit so many ranks?

One JSON object on stdout: the strategy that is used and its mesh, or what is wrong (exit code 78). The
command line runs this as a process of its own, since strategies load torch.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence

from dist_train.errors import DistTrainError
from dist_train.strategies.strategy_fit import fit_strategy


def main(argv: Sequence[str]) -> int:
    """Print the answer; return the exit code.

    Args:
        argv: name, ranks of the job, `cpu`, `cuda` or `-` (not known), options as JSON,
            micro-batches of a step.
    """
    name, world_size, device, options, accumulate = argv
    try:
        fitted = fit_strategy(
            name, json.loads(options), int(world_size), None if device == "-" else device, int(accumulate)
        )
    except DistTrainError as error:
        print(json.dumps({"what": error.what, "cause": error.cause, "hint": error.hint}))
        return int(error.exit_code)
    place = fitted.place
    print(json.dumps({"strategy": fitted.strategy.name, "mesh": place.mesh, "data_size": place.data_size}))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
