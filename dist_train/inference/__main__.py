"""`python -P -m dist_train.inference …`: what `dist-train predict` starts, which itself loads no torch."""

from __future__ import annotations

import argparse
import logging
import os
import signal
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from types import FrameType

from dist_train.errors import DistTrainError, ExitCode
from dist_train.jobs.parent_death_signal import end_with_parent, keep_exit_codes


def main(argv: Sequence[str] | None = None) -> int:
    """Run one prediction; return its exit code."""
    keep_exit_codes()
    # Importing torch may swallow an exception; nothing has to be cleaned up yet.
    _on_stop(lambda number, frame: os._exit(128 + number))
    options = _parse(argv)
    if options.parent is not None:
        end_with_parent(options.parent, signal.SIGTERM)
    logging.basicConfig(level="INFO", stream=sys.stderr, format="[dist-train] %(message)s")
    if options.folder is not None:
        sys.path.insert(0, str(options.folder))
    try:
        from dist_train.inference.predict_job import Prediction, predict

        # As an exception from here on, so that no half-written file is left.
        _on_stop(lambda number, frame: sys.exit(128 + number))
        predict(
            Prediction(
                options.config,
                options.weights,
                options.input,
                options.output,
                options.device,
                options.processes,
                options.batch_size,
                options.entry,
            )
        )
    except BrokenPipeError:
        # The reader has closed the pipe (`… | head`).
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 128 + signal.SIGPIPE
    except DistTrainError as error:
        if error.exit_code == ExitCode.INTERNAL:
            raise
        print(f"error: {error}", file=sys.stderr)
        return int(error.exit_code)
    return 0


def _parse(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="dist_train.inference", allow_abbrev=False)
    parser.add_argument("--config", type=Path, required=True)
    parser.add_argument("--folder", type=Path, help="the folder of the user's own config, first on sys.path")
    parser.add_argument("--weights", type=Path, required=True)
    parser.add_argument("--entry")
    parser.add_argument("--input", default="evaluation")
    parser.add_argument("--output", default="-")
    parser.add_argument("--device", action="append", help="one worker each")
    parser.add_argument("--processes", type=int)
    parser.add_argument("--batch-size", type=int)
    parser.add_argument("--parent", type=int, help="the pid to end with")
    return parser.parse_args(argv)


def _on_stop(act: Callable[[int, FrameType | None], object]) -> None:
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, act)


if __name__ == "__main__":
    sys.exit(main())
