"""How much memory an export takes: `python export_memory.py TINY SOURCE TARGET` prints the bytes."""

from __future__ import annotations

import sys
from pathlib import Path

from dist_train.checkpoint.weights.convert import export_weights


def highest() -> int:
    """The most memory that this process has had until now."""
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith("VmHWM:"):
            return int(line.split()[1]) << 10
    raise RuntimeError("the kernel does not say VmHWM")


if __name__ == "__main__":
    tiny, source, target = map(Path, sys.argv[1:4])
    export_weights(tiny, target.with_name("tiny.safetensors"))  # what is imported and kept once
    before = highest()
    export_weights(source, target)
    print(highest() - before)
