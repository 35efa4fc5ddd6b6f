"""What GPUs can do at most: floating-point operations per second without sparsity, by their makers' figures.

For matrix products that accumulate in fp32. Of an MI250X torch sees one of its two dies, and half of its
figures is here. A card of another power limit or clock than the sheet's reaches less.

V100     https://images.nvidia.com/content/technologies/volta/pdf/volta-v100-datasheet-update-us-1165301-r5.pdf
T4       https://www.nvidia.com/en-us/data-center/tesla-t4/
A100     https://www.nvidia.com/en-us/data-center/a100/
A10      https://www.nvidia.com/en-us/data-center/products/a10-gpu/
L4       https://www.nvidia.com/en-us/data-center/l4/
L40S     https://www.nvidia.com/en-us/data-center/l40s/
H100     https://www.nvidia.com/en-us/data-center/h100/
H200     https://www.nvidia.com/en-us/data-center/h200/
B200     https://www.nvidia.com/en-us/data-center/hgx/
RTX 4090 https://images.nvidia.com/aem-dam/Solutions/geforce/ada/nvidia-ada-gpu-architecture.pdf
MI250X   https://www.amd.com/en/products/accelerators/instinct/mi200/mi250x.html
MI300X   https://www.amd.com/en/products/accelerators/instinct/mi300/mi300x.html
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass

_TERA = 1e12


@dataclass(frozen=True)
class _Gpu:
    """One GPU.

    Attributes:
        name: a pattern of whole words in what torch calls it.
        tera: precision -> 10^12 operations per second.
    """

    name: str
    tera: Mapping[str, float]


def _tensor_cores(half: float, tf32: float, fp32: float) -> dict[str, float]:
    return {"bf16": half, "fp16": half, "tf32": tf32, "fp32": fp32}


# The first whose pattern is in the device's name; variants come before the plain name.
_GPUS = (
    _Gpu(r"V100-PCIE", {"fp16": 112, "fp32": 14}),
    _Gpu(r"V100-SXM\d", {"fp16": 125, "fp32": 15.7}),
    _Gpu(r"T4", {"fp16": 65, "fp32": 8.1}),
    _Gpu(r"A100", _tensor_cores(312, 156, 19.5)),
    _Gpu(r"A10", _tensor_cores(125, 62.5, 31.2)),
    _Gpu(r"L4", _tensor_cores(121, 60, 30.3)),
    _Gpu(r"L40S", _tensor_cores(362, 183, 91.6)),
    _Gpu(r"H100 NVL", _tensor_cores(835, 418, 60)),
    _Gpu(r"H100 PCIe", _tensor_cores(756, 378, 51)),
    _Gpu(r"H100 80GB HBM3", _tensor_cores(989, 494, 67)),
    _Gpu(r"H200 NVL", _tensor_cores(835, 418, 60)),
    _Gpu(r"H200", _tensor_cores(989, 494, 67)),
    _Gpu(r"B200", _tensor_cores(2250, 1125, 75)),
    _Gpu(r"RTX 4090", _tensor_cores(165.2, 82.6, 82.6)),
    _Gpu(r"MI250X", {"bf16": 191.5, "fp16": 191.5, "fp32": 47.9}),
    _Gpu(r"MI300X", _tensor_cores(1307.4, 653.7, 163.4)),
)


def device_peaks(device: str) -> dict[str, float] | None:
    """Peaks of the GPU that torch calls so, in operations per second by precision; None: not known."""
    for gpu in _GPUS:
        if re.search(rf"(?<![\w]){gpu.name}(?![\w])", device, re.IGNORECASE):
            return {precision: tera * _TERA for precision, tera in gpu.tera.items()}
    return None


@dataclass(frozen=True)
class Utilisation:
    """Model FLOPs utilisation: the time that the operations take at the peak, as a part of the time taken.

    Attributes:
        fraction: None where `why_not` says why it is not known.
    """

    fraction: float | None
    why_not: str = ""


def utilisation(device: str, flops: Mapping[str, int], seconds: float) -> Utilisation:
    """Of one device for so many operations by precision in so many seconds."""
    peaks = device_peaks(device)
    if peaks is None:
        return Utilisation(None, f"the peak of {device} is not known")
    if "fp32" in peaks:
        peaks.setdefault("tf32", peaks["fp32"])  # torch is set to TF32 also where the device has none
    missing = [precision for precision in flops if precision not in peaks]
    if missing:
        return Utilisation(None, f"the peak of {device} in {missing[0]} is not known")
    if not flops or seconds <= 0:
        return Utilisation(None, "no matrix product, convolution or attention of torch was seen")
    at_peak = sum(count / peaks[precision] for precision, count in flops.items())
    return Utilisation(at_peak / seconds)
