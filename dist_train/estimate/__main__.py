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
    code, record = respond(asked)
    with answer:
        json.dump(record, answer)
    return code


def respond(asked: dict[str, Any]) -> tuple[int, dict[str, Any]]:
    """Return exit code and answer. Exceptions of the user's own model, data or optimizer are not caught.

    Args:
        asked: `config` (text), `on_gpu`, `nodes`, `gpus_per_node`, `most_per_node` (for other sizes) and
            `gpu_memory` (bytes, or None). With `fit` alone: refuse a model that the config's own strategy
            does not fit, and measure nothing.
    """
    try:
        from dist_train.estimate.job_estimate import JobEstimate

        config = load_text(asked["config"], "config.yaml").config
        job = JobEstimate(config, on_gpu=asked["on_gpu"])
        size = (asked["nodes"], asked["gpus_per_node"])
        if asked.get("fit"):
            job.refuse_unfit(*size)
            return 0, {"fits": True}
        return 0, job.record(*size, asked["most_per_node"], asked["gpu_memory"])
    except DistTrainError as error:
        if error.exit_code == ExitCode.INTERNAL:
            raise
        return int(error.exit_code), {"what": error.what, "cause": error.cause, "hint": error.hint}


if __name__ == "__main__":
    sys.exit(main())
