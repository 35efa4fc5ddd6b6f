"""`python -P -m dist_train.inference …`: what `dist-train predict` starts, which itself loads no torch."""

from __future__ import annotations

import argparse
import ctypes
import logging
import os
import signal
import sys
from collections.abc import Sequence
from pathlib import Path

from dist_train.errors import DistTrainError, ExitCode

_PR_SET_PDEATHSIG = 1


def main(argv: Sequence[str] | None = None) -> int:
    """One prediction; returns its exit code."""
    words = _parse(argv)
    # As an exception, so that half a file is not left behind.
    signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(128 + number))
    if words.parent is not None:
        _end_with(words.parent)
    logging.basicConfig(level="INFO", stream=sys.stderr, format="[dist-train] %(message)s")
    if words.folder is not None:
        sys.path.insert(0, str(words.folder))
    try:
        from dist_train.inference.job import Prediction, predict

        predict(
            Prediction(
                words.config,
                words.weights,
                words.input,
                words.output,
                words.device,
                words.processes,
                words.batch_size,
                words.entry,
            )
        )
    except KeyboardInterrupt:
        print("stopped: nothing was written", file=sys.stderr)
        return int(ExitCode.INTERRUPTED)
    except BrokenPipeError:
        # A reader that has had enough (`… | head`).
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


def _end_with(parent: int) -> None:
    if sys.platform == "linux":
        ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)
        if os.getppid() != parent:
            os._exit(1)


if __name__ == "__main__":
    sys.exit(main())
