"""How a batch is cut for the devices of one process."""

from __future__ import annotations


def chunk_sizes(batch: int, devices: int, first: int | None = None) -> tuple[int, ...]:
    """Samples for each device, the first device first; fewer numbers than devices if samples are few.

    The first device never gets more than another: it also holds the outputs, the loss and the
    optimizer. The others' parts differ by one at most. torch's own cut (32 + 32 + 32 + 4 for a
    hundred samples on four devices) does neither.

    Args:
        batch: samples.
        devices: at least 1.
        first: samples of the first device; None, or more than an even part: as many as the others.
    """
    used = min(devices, batch)
    if used <= 1:
        return (batch,)
    even = batch // used
    head = even if first is None else min(first, even)
    rest, extra = divmod(batch - head, used - 1)
    return (head, *(rest + (place < extra) for place in range(used - 1)))
