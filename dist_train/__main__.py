"""`python -m dist_train`: the command `dist-train`."""

from __future__ import annotations

import sys
from pathlib import Path


def _leave_out_this_folder() -> None:
    """Have no file of this folder stand in for a module of the command, as for `dist-train`."""
    here = Path.cwd()
    installed_elsewhere = Path(__file__).resolve().parent.parent != here.resolve()
    if not sys.flags.safe_path and installed_elsewhere and sys.path[0] in ("", str(here)):
        del sys.path[0]


if __name__ == "__main__":
    _leave_out_this_folder()
    from dist_train.cli.console_script import main

    main()
