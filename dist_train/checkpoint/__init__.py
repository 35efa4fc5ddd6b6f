"""Checkpoints that exist whole or not at all, and are verified before they are used.

manager             CheckpointManager: save, resume, retain
save_results        what saving and loading return
prepared_save       a save up to its writing: collected and compared
write_prepared      write it, and commit it
background          saves that are written while the training goes on
collective_write    one save by all ranks
snapshot_writer     rank 0's part: stage, write, publish
rank_files          the files of one rank
sharded_state       which rank writes which parts of sharded tensors
collective_load     choose and verify a checkpoint, all ranks together
restore_together    put it into the state of every rank
init_from           begin with a checkpoint that is named
node_readers        read once per node, for all its ranks
rank_zero_writes    rank 0 works, called by all ranks or by it alone
long_work           work that may outlast every time-out
agreement           fail on all ranks when one fails
run_context         defaults from the current run
format              the bytes: manifest, tensor files, hashes
store               where they are kept: storage, commit, fence, retention
state               the live state: collect, encode, restore
weights             weights alone, also of other tools
__main__            list, verify, show, import, export as a process
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from dist_train.lazy_exports import lazy_exports

# Public name -> the module that defines it.
_PUBLIC = {
    "CheckpointManager": "dist_train.checkpoint.manager",
    "CheckpointStorage": "dist_train.checkpoint.store.storage",
    "Committed": "dist_train.checkpoint.save_results",
    "PendingSave": "dist_train.checkpoint.background.pending_save",
    "PerRank": "dist_train.checkpoint.state.per_rank",
    "Restored": "dist_train.checkpoint.save_results",
    "list_checkpoints": "dist_train.checkpoint.store.verify",
    "load_model": "dist_train.checkpoint.weights.model_io",
    "save_model": "dist_train.checkpoint.weights.model_io",
    "verify_checkpoint": "dist_train.checkpoint.store.verify",
}

if TYPE_CHECKING:
    from dist_train.checkpoint.background.pending_save import PendingSave as PendingSave
    from dist_train.checkpoint.manager import CheckpointManager as CheckpointManager
    from dist_train.checkpoint.save_results import Committed as Committed
    from dist_train.checkpoint.save_results import Restored as Restored
    from dist_train.checkpoint.state.per_rank import PerRank as PerRank
    from dist_train.checkpoint.store.storage import CheckpointStorage as CheckpointStorage
    from dist_train.checkpoint.store.verify import list_checkpoints as list_checkpoints
    from dist_train.checkpoint.store.verify import verify_checkpoint as verify_checkpoint
    from dist_train.checkpoint.weights.model_io import load_model as load_model
    from dist_train.checkpoint.weights.model_io import save_model as save_model

__all__ = [
    "CheckpointManager",
    "CheckpointStorage",
    "Committed",
    "PendingSave",
    "PerRank",
    "Restored",
    "list_checkpoints",
    "load_model",
    "save_model",
    "verify_checkpoint",
]

__getattr__, __dir__ = lazy_exports(__name__, _PUBLIC)
