"""Whether a rank is still printing its stacks, after SIGUSR1 (faulthandler has no line that says the end)."""

from __future__ import annotations

import re
import signal
from pathlib import Path

_USR1 = 1 << (signal.SIGUSR1 - 1)
# ShdPnd: sent to the process and not taken yet. SigBlk: of its main thread, which takes it; the kernel blocks
# a signal while its handler runs.
_MASKS = re.compile(rb"^(?:ShdPnd|SigBlk):\s*([0-9a-f]+)$", re.MULTILINE)


def may_be_dumping(pid: int) -> bool:
    """Whether SIGUSR1 waits for this process, or its handler runs; also where the kernel does not say.

    Between the two there is an instant in which neither is shown: so ask only once something was printed.
    """
    try:
        masks = _MASKS.findall(Path(f"/proc/{pid}/status").read_bytes())
    except OSError:
        return False  # it has ended
    return len(masks) != 2 or any(int(mask, 16) & _USR1 for mask in masks)
