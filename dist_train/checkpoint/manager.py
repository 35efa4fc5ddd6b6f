"""CheckpointManager: save, resume, keep; every method that moves state is collective."""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import torch

from dist_train.checkpoint.agreement import on_every_rank, on_rank_zero
from dist_train.checkpoint.canonical import dump_canonical
from dist_train.checkpoint.draft import Facts, draft
from dist_train.checkpoint.fence import begin_attempt
from dist_train.checkpoint.layout import MANIFEST, step_directories, step_name
from dist_train.checkpoint.locate import newest_good, open_exactly
from dist_train.checkpoint.manifest import read_manifest
from dist_train.checkpoint.owner import current_control, determinism_facts, run_seed, who_writes
from dist_train.checkpoint.perrank import gather_per_rank, own_tensors
from dist_train.checkpoint.position import DataPosition, identity, position_from
from dist_train.checkpoint.reader import Loaded, read_checkpoint
from dist_train.checkpoint.records import Committed, Restored
from dist_train.checkpoint.replicas import differing_buffers
from dist_train.checkpoint.restore import apply, apply_buffers, apply_rng, check_fits
from dist_train.checkpoint.retention import Retention, apply_retention
from dist_train.checkpoint.state import Collected, collect
from dist_train.checkpoint.verify import Report, verify_checkpoint
from dist_train.checkpoint.writer import write_checkpoint
from dist_train.errors import CheckpointError, ConfigError, NotFoundError

if TYPE_CHECKING:
    from dist_train.distributed.control import Control, JsonValue

logger = logging.getLogger(__name__)
