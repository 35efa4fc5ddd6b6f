"""Process groups, devices and the facts that all ranks must agree on.

run                   `Run`: what `dt.init` returns; `current()` is the open one
init_groups           form the job's process group and the control group
init_method           parse env://, tcp://HOST:PORT and file:///PATH
stores                the rendezvous store of each kind, failing with a reason
membership_check      wait for all ranks; refuse missing ranks, duplicates and shared GPUs
place                 `Place`: where a rank stands in the mesh, and its share of the data
control_group         `Control`: collectives for small values on a gloo group of its own
keyed_exchange        exchange a small value by the store; name the ranks that do not come
global_mean           `run.mean`: the mean over all samples of all ranks
gather_rows           `run.gather`: the rows of all ranks' tensors
after_import          act when the script has imported a module
group_teardown        leave the groups without torch's hangs; bounds on start and end
devices               choose and bind a rank's device
device_map            record which GPU each rank computes on
cuda_visible_devices  warn where a script has changed CUDA_VISIBLE_DEVICES
transfer, pytree      `dt.to_device`, and the tensors inside nested containers
seeding, determinism  seeds for each rank and purpose; what bitwise reproducibility needs
parameter_shards      parameters that are spread over ranks: own parts, gradients, norm
evaluation_buffers    exchange BatchNorm's statistics once per evaluation, not in its forward passes
smallest_batch        refuse a BatchNorm that the epoch's smallest micro-batch would make fail
finite_check          find a loss or gradient that is not finite, on all ranks together
loop_finite_check     the same for a loop of one's own: `run.check_finite`, `run.all_finite`
finite_numbers        one number that shows whether any gradient or weight is not finite
gradient_weights      weight what each rank adds to the gradients; `Run.backward`
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from dist_train.lazy_exports import lazy_exports

_PUBLIC = {
    "BatchWeight": "dist_train.distributed.gradient_weights.batch_weight",
    "Control": "dist_train.distributed.control_group",
    "Run": "dist_train.distributed.run",
    "current": "dist_train.distributed.run",
}

if TYPE_CHECKING:
    from dist_train.distributed.control_group import Control as Control
    from dist_train.distributed.gradient_weights.batch_weight import BatchWeight as BatchWeight
    from dist_train.distributed.run import Run as Run
    from dist_train.distributed.run import current as current

__all__ = ["BatchWeight", "Control", "Run", "current"]

__getattr__, __dir__ = lazy_exports(__name__, _PUBLIC)
