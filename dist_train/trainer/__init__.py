"""The training loop of a YAML config, and the one place that connects all other packages.

run_training       `train`: config -> components -> Trainer -> fit -> result
build_components   makes what the config names: data sets, task, model, optimizer, schedule, callbacks
component_factory  calls one component of a config, with errors that name its key
build              assembles a Trainer from the components
trainer            the loop: step, records, callbacks, evaluation, stop, save
step               one optimizer step over its micro-batches
compiled_model     the model compiled by torch.compile
finite_update      an update that is left out where the step is not finite
non_finite         stop, skip or roll back
loss_normalizer    the divisor of the loss
evaluate           an exact evaluation that changes nothing
checkpointing      when to save and what; the restore
task               what a task is, and the two of ours
metrics            metrics that a config can name
schedules          learning-rate schedules that a config can name
parameter_groups   the optimizer's parameter groups, by patterns
pretrained         a model that begins with weights from a file
callback           what a callback is, and the rules for it
callback_hooks     calls the callbacks of a run
callback_rules     checks the rules: RNG state, collectives
callbacks/         callbacks that a config can name
records/           records of steps and evaluations
rng_isolation      seeds of the model and of the training
training_position  step, epoch and samples
console_messages   lines on rank 0's console
write_result       result.json
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from dist_train.lazy_exports import lazy_exports

_PUBLIC = {
    "Callback": "dist_train.trainer.callback",
    "CallbackContext": "dist_train.trainer.callback",
    "LossOutput": "dist_train.trainer.task",
    "NextTokenTask": "dist_train.trainer.task",
    "SupervisedTask": "dist_train.trainer.task",
    "Task": "dist_train.trainer.task",
    "Trainer": "dist_train.trainer.trainer",
    "train": "dist_train.trainer.run_training",
}

if TYPE_CHECKING:
    from dist_train.trainer.callback import Callback as Callback
    from dist_train.trainer.callback import CallbackContext as CallbackContext
    from dist_train.trainer.run_training import train as train
    from dist_train.trainer.task import LossOutput as LossOutput
    from dist_train.trainer.task import NextTokenTask as NextTokenTask
    from dist_train.trainer.task import SupervisedTask as SupervisedTask
    from dist_train.trainer.task import Task as Task
    from dist_train.trainer.trainer import Trainer as Trainer

__all__ = [
    "Callback",
    "CallbackContext",
    "LossOutput",
    "NextTokenTask",
    "SupervisedTask",
    "Task",
    "Trainer",
    "train",
]

__getattr__, __dir__ = lazy_exports(__name__, _PUBLIC)
