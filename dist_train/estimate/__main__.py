"""`python -P -m dist_train.estimate`: what `dist-train estimate` starts, which itself loads no torch.

It reads one JSON object from stdin (the config's text, the folder of its modules, the size) and prints one.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from typing import Any

from dist_train.config.load import load_text
from dist_train.errors import DistTrainError, ExitCode
from dist_train.estimate.child_answer import answer_by


def respond(asked: Mapping[str, Any]) -> tuple[int, dict[str, Any]]:
    """Return exit code and answer. Exceptions of the user's own model, data or optimizer are not caught.

    Args:
        asked: `config` (text), `on_gpu`, `nodes`, `gpus_per_node`, `most_per_node` (for other sizes) and
            `gpu_memory` (bytes, or None).
    """
    try:
        from dist_train.estimate.job_estimate import JobEstimate

        config = load_text(asked["config"], "config.yaml").config
        job = JobEstimate(config, on_gpu=asked["on_gpu"])
        size = (asked["nodes"], asked["gpus_per_node"])
        return 0, job.record(*size, asked["most_per_node"], asked["gpu_memory"])
    except DistTrainError as error:
        if error.exit_code == ExitCode.INTERNAL:
            raise
        return int(error.exit_code), {"what": error.what, "cause": error.cause, "hint": error.hint}


if __name__ == "__main__":
    sys.exit(answer_by(respond))
