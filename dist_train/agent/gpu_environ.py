"""What a rank's environment says of GPUs, beyond what its node was given."""

from __future__ import annotations

from collections.abc import Mapping

_VISIBLE, _ORDER = "CUDA_VISIBLE_DEVICES", "CUDA_DEVICE_ORDER"


def gpu_environ(environ: Mapping[str, str], device: str, local_rank: int) -> dict[str, str]:
    """Variables to add for one rank: set before CUDA can start, whatever the script does.

    Numbers count in the order of the PCI bus, as nvidia-smi's do. CUDA shows a process one MIG slice
    at most, so each rank is shown its own alone (its cuda:0).
    """
    if device != "cuda":
        return {}
    added = {} if _ORDER in environ else {_ORDER: "PCI_BUS_ID"}
    given = [word.strip() for word in environ.get(_VISIBLE, "").split(",")]
    if any(word.startswith("MIG-") for word in given) and local_rank < len(given):
        added[_VISIBLE] = given[local_rank]
    return added
