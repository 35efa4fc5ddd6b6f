"""Variables of the environment that have done their work before a forked rank exists.

Read by the interpreter or the dynamic linker at the start of the process, or by torch and its libraries while
they are imported: set later they have no effect, so that a rank which needs another value is spawned.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

_AT_START = ("PYTHON", "LC_", "LANG", "LD_", "MALLOC_", "GLIBC_TUNABLES")
# Found by watching os.environ and getenv during the imports (torch 2.13, CPU build).
_AT_IMPORT = (
    "OMP_",
    "GOMP_",
    "KMP_",
    "MKL_",
    "OPENBLAS_",
    "GOTO_",
    "MKLDNN_",
    "ONEDNN_",
    "DNNL_",
    "ATEN_",
    "NPY_",
    "TORCH_DISTRIBUTED_",
    "TORCH_CPP_LOG_LEVEL",
    "TORCH_SHOW_CPP_STACKTRACES",
    "TORCH_LOGS",
    "TORCH_TRACE",
    "TORCH_COMPILE_",
    "TORCH_DEVICE_BACKEND_AUTOLOAD",
    "TORCHDYNAMO_",
    "TORCHINDUCTOR_",
    "PYTORCH_JIT",
    "SYMPY_",
    "TORCH_DYNAMO_",
    "TORCH_FAKE_TENSOR_",
    "TORCH_CUDAGRAPH_GC",
    "TORCH_CACHING_PRECOMPILE",
    "TORCH_STRICT_PRECOMPILE",
    "TORCH_USE_RTLD_GLOBAL",
    "TORCHEXPORT_",
    "INDUCTOR_",
    "AOT_",
    "AOTINDUCTOR_",
    "PARTITIONER_",
    "FAKE_ALLOW_META",
    "FX_",
    "CXX",
    "UNSAFE_SKIP_FSDP_MODULE_GUARDS",
    "NUMPY_",
    "MPMATH_",
    "PYTORCH_MATCHER_LOGLEVEL",
)
# Any word of a program's text; a name may be put together (f"{library}_NUM_THREADS").
_NAMED = re.compile(rf"\b(?:{'|'.join(_AT_IMPORT)})\w*|\w*_NUM_THREADS\b")
_PATH_CHANGE = re.compile(r"\bsys\.path\s*(?:\.insert\b|(?:\[[^\]]*\]\s*)?=(?!=))|\baddsitedir\b")


def early_variables(environ: Mapping[str, str]) -> dict[str, str]:
    """Return those of an environment that a forked rank cannot change."""
    return {name: value for name, value in environ.items() if name.startswith(_AT_START + _AT_IMPORT)}


def first_difference(ours: Mapping[str, str], theirs: Mapping[str, str]) -> str | None:
    """Return the first variable that differs in the two, among those that are read early."""
    mine, other = early_variables(ours), early_variables(theirs)
    return min(
        (name for name in mine.keys() | other.keys() if mine.get(name) != other.get(name)), default=None
    )


def named_in(text: str) -> str | None:
    """Return the first variable read while torch is imported that a program's text names."""
    found = _NAMED.search(text)
    return found.group(0) if found else None


def changes_path(text: str) -> bool:
    """Whether a program's text puts folders before others on sys.path: they may hide imported modules."""
    return _PATH_CHANGE.search(text) is not None


def is_read_at_import(name: str) -> bool:
    """Whether this variable has been read when torch has been imported."""
    return name.startswith(_AT_IMPORT)
