"""Compute a trained model's results over batches, in order, with one process per device.

predictor           Predictor: batches in, results out
predict_job         one `dist-train predict`
input_batches       inputs of a config's data set or of files
result_files        outputs: JSON lines, .npy, .safetensors
batch_queue         which batch is waiting, at a worker, done
worker_devices      one device per worker
worker_handle       a worker process, as its parent sees it
worker_bootstrap    start of a worker, before torch is imported
worker_loop         the loop of a worker
serialization       tensors and models as bytes between processes
prediction_errors   BatchFailed, WorkerBroken
__main__            `python -m dist_train.inference`
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from dist_train.lazy_exports import lazy_exports

_PUBLIC = {
    "BatchFailed": "dist_train.inference.prediction_errors",
    "Predictor": "dist_train.inference.predictor",
}

if TYPE_CHECKING:
    from dist_train.inference.prediction_errors import BatchFailed as BatchFailed
    from dist_train.inference.predictor import Predictor as Predictor

__all__ = ["BatchFailed", "Predictor"]

__getattr__, __dir__ = lazy_exports(__name__, _PUBLIC)
