"""Say whether there is a GPU, else how many tests need one; `.ci/test.py` runs it beside the tests."""

from __future__ import annotations

import contextlib
import io
import sys

A_GPU = "a GPU is here"


def main() -> int:
    """Print `a GPU is here`, or pytest's line with the number of tests; 0 if they could be collected."""
    import torch  # not with this module, which .ci/test.py imports

    if torch.cuda.is_available():
        print(A_GPU)
        return 0
    import pytest

    written = io.StringIO()
    with contextlib.redirect_stdout(written):
        code = int(pytest.main(["-q", "--collect-only", "-m", "gpu", "tests/gpu"]))
    lines = [line for line in written.getvalue().splitlines() if line.strip()]
    print("\n".join(lines if code else lines[-1:]))
    return code


if __name__ == "__main__":
    sys.exit(main())
