"""`python -P -m dist_train.estimate`: what `dist-train estimate` starts, which itself loads no torch.

It reads one JSON object from stdin (the config's text, the folder of its modules, the size) and prints one.
"""

from __future__ import annotations

import json
import os
import sys
from typing import Any

from dist_train.config.load import load_text
from dist_train.errors import DistTrainError, ExitCode


def main() -> int:
    """Print the record, or `{what, cause, hint}` of an error; return the exit code."""
    asked: dict[str, Any] = json.load(sys.stdin)
    # What the user's modules print would break the answer.
    answer = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    sys.path.insert(0, asked["folder"])
    try:
        from dist_train.estimate.job_estimate import JobEstimate

        config = load_text(asked["config"], "config.yaml").config
        job = JobEstimate(config, on_gpu=asked["on_gpu"])
        record = job.record(asked["nodes"], asked["gpus_per_node"], asked["gpu_memory"])
    except DistTrainError as error:
        if error.exit_code == ExitCode.INTERNAL:
            raise
        json.dump({"what": error.what, "cause": error.cause, "hint": error.hint}, answer)
        answer.close()
        return int(error.exit_code)
    json.dump(record, answer)
    answer.close()
    return 0


if __name__ == "__main__":
    sys.exit(main())
