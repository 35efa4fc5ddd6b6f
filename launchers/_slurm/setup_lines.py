"""The lines of --setup as bash reads them, before anything is submitted."""

from __future__ import annotations

import re
import shlex
import subprocess
from collections.abc import Sequence

from dist_train.errors import ConfigError

_TIMEOUT_S = 10.0


def check_setup(lines: Sequence[str]) -> None:
    """Raise ConfigError where `bash -n` finds an error in the lines: an open quote would swallow the script.

    Lines may belong together (`if`, `fi`), so all are read as one text. Without bash on this machine nothing
    is checked: the job's script is bash's.
    """
    if not lines:
        return
    # extglob: a line of `shopt -s extglob`, which -n does not run, would let the later ones be read.
    try:
        checked = subprocess.run(
            ["bash", "-O", "extglob", "-n"],
            input="\n".join(lines) + "\n",
            capture_output=True,
            text=True,
            errors="surrogateescape",
            timeout=_TIMEOUT_S,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired):
        return
    said = checked.stderr.strip()
    if checked.returncode == 0 and not said:  # of an open here-document it only warns
        return
    first = said.splitlines()[0] if said else f"exit code {checked.returncode}"
    raise ConfigError(
        f"--setup {shlex.quote(_meant(first, lines))} is no shell that ends: {first.removeprefix('bash: ')}",
        cause="in the job's script, the lines after it would be read as a part of it",
        hint="close the quote, the bracket or the block in it",
    )


def _meant(message: str, lines: Sequence[str]) -> str:
    """The line that bash names, by its number; else all of them."""
    number = re.search(r"line (\d+)", message)
    texts = [each for line in lines for each in line.splitlines()]
    if number is not None and 1 <= int(number[1]) <= len(texts):
        return texts[int(number[1]) - 1]
    return "; ".join(lines)
