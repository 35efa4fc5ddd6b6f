"""Fixtures of all unit tests: ranks as processes, an environment without a launcher, a full disk."""

from __future__ import annotations

import os
import resource
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
import torch._dynamo  # noqa: F401 -- DDP imports it: once here, not once in every rank; so do all below

import dist_train.distributed.init_groups
import dist_train.distributed.stores.file_store
import dist_train.observability.console
import dist_train.observability.jsonl
import dist_train.resilience.session
import dist_train.strategies.ddp  # noqa: F401
from dist_train.testing import run_ranks

# ranks(n, fn, *args): fn(init_method, *args) on each of n ranks; `init_method` is a new file:// one.
Ranks = Callable[..., list[Any]]


@pytest.fixture(autouse=True)
def _no_launcher(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in list(os.environ):
        if name.startswith(("DIST_TRAIN_", "SLURM_", "OMPI_", "PMI_", "TORCHELASTIC_")):
            monkeypatch.delenv(name)
    for name in ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT"):
        monkeypatch.delenv(name, raising=False)


@pytest.fixture
def ranks(tmp_path: Path) -> Ranks:
    """Run fn on n ranks (`run_ranks`), each given a fresh file:// init method; returns their values."""
    numbers = iter(range(1000))

    def run(
        n: int,
        fn: Callable[..., Any],
        *args: Any,
        timeout_s: float = 50.0,
        environ: Mapping[str, str] | None = None,
    ) -> list[Any]:
        init_method = f"file://{tmp_path}/rendezvous-{next(numbers)}"
        return run_ranks(fn, n, timeout_s, args=(init_method, *args), environ=environ)

    return run


@pytest.fixture
def fill_disk() -> Iterator[Callable[[], None]]:
    """Call it to make every write beyond a file's first 20 000 bytes fail, as on a full disk."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    yield lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (20_000, before[1]))
    resource.setrlimit(resource.RLIMIT_FSIZE, before)
