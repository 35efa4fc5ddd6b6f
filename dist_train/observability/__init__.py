"""Where training and evaluation records go; loads no torch.

console      lines for people, on rank 0's stdout
jsonl        metrics.jsonl of the run directory
tensorboard  event files for TensorBoard
sink         what a sink is: Sink, SinkContext, SinkOptions
sink_fanout  one record to every sink of a run

Each sink is one file with the constant SINK; another distribution adds names by the entry-point group
`dist_train.sinks`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from dist_train.lazy_exports import lazy_exports

_PUBLIC = {
    "Sink": "dist_train.observability.sink",
    "SinkContext": "dist_train.observability.sink",
    "SinkOptions": "dist_train.observability.sink",
    "SinkFanout": "dist_train.observability.sink_fanout",
}

if TYPE_CHECKING:
    from dist_train.observability.sink import Sink as Sink
    from dist_train.observability.sink import SinkContext as SinkContext
    from dist_train.observability.sink import SinkOptions as SinkOptions
    from dist_train.observability.sink_fanout import SinkFanout as SinkFanout

__all__ = ["Sink", "SinkContext", "SinkFanout", "SinkOptions"]

__getattr__, __dir__ = lazy_exports(__name__, _PUBLIC)
