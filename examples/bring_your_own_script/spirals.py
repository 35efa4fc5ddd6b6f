"""Three spiral arms of points: trained on in a second, and not linearly separable."""

import math

import torch
from torch.utils.data import TensorDataset


def spirals(points_per_arm: int = 200) -> TensorDataset:
    """Samples (point float32 [2], arm int64 []); the same points at every call."""
    generator = torch.Generator().manual_seed(0)
    along = torch.linspace(0.2, 1.0, points_per_arm).repeat(3)
    arm = torch.arange(3).repeat_interleave(points_per_arm)
    angle = 4 * along + 2 * math.pi / 3 * arm + 0.1 * torch.randn(len(arm), generator=generator)
    return TensorDataset(torch.stack([along * angle.cos(), along * angle.sin()], dim=1), arm)
