"""The command's first code: Ctrl-C is 130 also while the command itself is imported."""

from __future__ import annotations


def main() -> None:
    """Run the command; ends the process with the documented exit code."""
    try:
        from dist_train.cli.main import main as run
    except KeyboardInterrupt:
        raise SystemExit(130) from None
    run()
