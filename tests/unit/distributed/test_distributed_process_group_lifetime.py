"""A group lives until the reducers on it are freed; the hang itself: multiprocess/test_teardown_hang.py."""

from __future__ import annotations

import ctypes
import gc
import importlib
import inspect
import logging
import os
import pickle
import re
import subprocess
import sys
import types
import weakref
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as torch_dist
from torch.nn.parallel import DistributedDataParallel

from dist_train.distributed.group_teardown import process_group_lifetime
from dist_train.distributed.group_teardown.process_group_lifetime import (
    keep_groups_for_reducers,
    keep_groups_once_torch_is_imported,
    never_free_kept_groups,
)
from dist_train.testing import run_ranks

REDUCER_DOC = "__init__(self: R, params: P, bucket_indices: B, per_bucket_size_limits: L, {}) -> None"


def prepared() -> DistributedDataParallel:
    model = DistributedDataParallel(torch.nn.Linear(2, 2))
    model(torch.ones(1, 2)).sum().backward()
    return model


def left_after_destroy() -> tuple[DistributedDataParallel, weakref.ref[Any]]:
    """A model whose group is destroyed, and its group."""
    torch_dist.init_process_group("gloo")
    model = prepared()
    group = weakref.ref(torch_dist.group.WORLD)
    model.process_group = None
    torch_dist.destroy_process_group()
    return model, group


def test_a_group_outlives_the_reducer_and_the_logger_on_it() -> None:
    def rank() -> dict[str, bool]:
        unkept, group = left_after_destroy()
        seen = {"without": group() is not None}
        # Freeing it is what may block the process.
        ctypes.pythonapi.Py_IncRef(ctypes.py_object(unkept))
        assert keep_groups_for_reducers()
        model, group = left_after_destroy()
        seen["with"] = group() is not None
        reducer, logger = weakref.ref(model.reducer), weakref.ref(model.logger)
        at_its_end: list[bool] = []
        watch = weakref.ref(group(), lambda _: at_its_end.append(reducer() is None and logger() is None))
        model.reducer = None
        seen["logger alone"] = group() is not None
        model.logger = None
        seen["freed"] = group() is None and watch() is None
        seen["after them"] = at_its_end == [True]
        return seen

    expected = {"without": False, "with": True, "logger alone": True, "freed": True, "after them": True}
    assert run_ranks(rank, 1) == [expected]


def test_a_model_in_a_cycle_is_freed_before_its_group() -> None:
    """The collector clears weak references to what it frees early; a reducer is not among that."""

    def rank() -> tuple[bool, bool]:
        keep_groups_for_reducers()
        model, group = left_after_destroy()
        at_its_end: list[bool] = []
        reducer = weakref.ref(model.reducer)
        watch = weakref.ref(group(), lambda _: at_its_end.append(reducer() is None))
        model.itself = [model]
        del model
        before = group() is not None
        gc.collect()
        return before, watch() is None and at_its_end == [True]

    assert run_ranks(rank, 1) == [(True, True)]


def test_a_reducer_that_changes_its_group_keeps_the_new_one_only() -> None:
    def rank() -> tuple[bool, bool]:
        keep_groups_for_reducers()
        torch_dist.init_process_group("gloo")
        model = prepared()
        second = torch_dist.new_group()
        model._update_process_group(second)
        model.process_group = None
        old, new = weakref.ref(torch_dist.group.WORLD), weakref.ref(second)
        del second
        torch_dist.destroy_process_group()
        return old() is None, new() is not None

    assert run_ranks(rank, 1) == [(True, True)]


def test_the_classes_stay_what_they_are_and_are_changed_once() -> None:
    def rank() -> None:
        before = torch_dist.Reducer, torch_dist.Logger
        assert keep_groups_for_reducers()
        constructors = [kind.__init__ for kind in before]
        assert keep_groups_for_reducers()
        assert [kind.__init__ for kind in before] == constructors
        assert (torch_dist.Reducer, torch_dist.Logger) == before
        assert torch._C._distributed_c10d.Reducer is torch_dist.Reducer
        torch_dist.init_process_group("gloo")
        model = prepared()
        assert isinstance(model.reducer, torch_dist.Reducer)
        assert type(model.logger) is torch_dist.Logger
        assert torch_dist.Reducer.__init__.__doc__.startswith("__init__(self: ")
        with pytest.raises(TypeError, match="incompatible constructor arguments"):
            torch_dist.Reducer([])

    run_ranks(rank, 1)


def test_at_the_interpreters_end_kept_groups_are_not_freed() -> None:
    def rank() -> tuple[int, bool]:
        keep_groups_for_reducers()
        model, group = left_after_destroy()
        kept = never_free_kept_groups()
        del model
        return kept, group() is not None

    assert run_ranks(rank, 1) == [(1, True)]


def test_what_uses_reducers_works_as_before() -> None:
    """join, no_sync, static graphs, comm hooks, compiled DDP, pickling, FSDP."""

    def rank() -> None:
        keep_groups_for_reducers()
        torch_dist.init_process_group("gloo")
        torch.manual_seed(0)
        from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import fp16_compress_hook
        from torch.distributed.fsdp import fully_shard
        from torch.distributed.utils import _verify_param_shape_across_processes

        model = DistributedDataParallel(torch.nn.Linear(2, 2), static_graph=True)
        model.register_comm_hook(None, fp16_compress_hook)
        with model.join():
            for _ in range(1 + torch_dist.get_rank()):
                model(torch.ones(1, 2)).sum().backward()
        again = pickle.loads(pickle.dumps(model))
        again(torch.ones(1, 2)).sum().backward()
        assert isinstance(again.reducer, torch_dist.Reducer)
        builtin = DistributedDataParallel(torch.nn.Linear(2, 2), find_unused_parameters=True)
        builtin._register_builtin_comm_hook(torch_dist.BuiltinCommHookType.ALLREDUCE)
        with builtin.no_sync():
            builtin(torch.ones(1, 2)).sum().backward()
        builtin(torch.ones(1, 2)).sum().backward()
        compiled = torch.compile(prepared(), backend="aot_eager")
        compiled(torch.ones(1, 2)).sum().backward()
        assert compiled._get_ddp_logging_data()["world_size"] == 2
        _verify_param_shape_across_processes(
            torch_dist.group.WORLD, list(model.module.parameters()), model.logger
        )
        sharded = torch.nn.Linear(2, 2)
        fully_shard(sharded, mesh=torch_dist.init_device_mesh("cpu", (2,)))
        sharded(torch.ones(1, 2)).sum().backward()

    run_ranks(rank, 2)


class Collected:
    """A class of Python's own: its weak references are cleared before what it is made of."""

    def __init__(self) -> None:
        pass


def other_classes() -> Iterator[tuple[str, Any, str]]:
    Collected.__init__.__doc__ = REDUCER_DOC.format("process_group: G")
    yield "a function", lambda *given: None, "it is <function"
    yield "other parameters", type("Reducer", (), {}), r"Reducer's first parameters are \(\)"
    yield "collected", Collected, "Collected's objects are collected in another way"


@pytest.mark.parametrize(("reducer", "why"), [pytest.param(r, why, id=n) for n, r, why in other_classes()])
def test_a_torch_with_other_reducers_is_left_alone_with_one_warning(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, reducer: Any, why: str
) -> None:
    other = types.SimpleNamespace(Reducer=reducer, Logger=torch_dist.Logger)
    monkeypatch.setitem(sys.modules, "torch.distributed", other)
    process_group_lifetime._warn_once.cache_clear()
    constructor = reducer.__init__
    with caplog.at_level(logging.WARNING):
        assert [keep_groups_for_reducers(), keep_groups_for_reducers()] == [False, False]
    assert reducer.__init__ == constructor
    assert [record.levelname for record in caplog.records] == ["WARNING"]
    assert caplog.text.count(f"torch {torch.__version__} has another") == 1
    assert re.search(why, caplog.text), caplog.text


def test_a_torch_without_distributed_is_no_reason_for_a_warning(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setitem(sys.modules, "torch.distributed", types.ModuleType("torch.distributed"))
    assert (keep_groups_for_reducers(), caplog.text) == (False, "")


def test_the_import_is_seen_without_importing_anything(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "like_torch_distributed.py").write_text("Reducer = None  # as written")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(process_group_lifetime, "_TORCH_DISTRIBUTED", "like_torch_distributed")
    seen: list[object] = []
    monkeypatch.setattr(
        process_group_lifetime,
        "keep_groups_for_reducers",
        lambda: seen.append(sys.modules["like_torch_distributed"].Reducer),
    )
    finders = list(sys.meta_path)
    keep_groups_once_torch_is_imported()
    try:
        assert "like_torch_distributed" not in sys.modules
        assert importlib.util.find_spec("like_torch_distributed") is not None
        assert (seen, len(sys.meta_path)) == ([], len(finders) + 1)
        module = importlib.import_module("like_torch_distributed")
        assert (seen, sys.meta_path) == ([None], finders)
        assert inspect.getsource(module).rstrip().endswith("as written")
        keep_groups_once_torch_is_imported()
        assert (len(seen), sys.meta_path) == (2, finders)
    finally:
        sys.modules.pop("like_torch_distributed", None)
        sys.meta_path[:] = finders


AS_RANK = """
import sys
assert "torch" not in sys.modules, "imported early"
import torch.distributed as dist
assert "dist_train.distributed.init_groups" not in sys.modules
print(dist.Reducer.__init__._keeps_groups, dist.Logger.__init__._keeps_groups)
print([finder for finder in sys.meta_path if "dist_train" in type(finder).__module__])
"""


def test_a_rank_that_knows_only_torch_has_it_from_its_first_import(tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text(AS_RANK)
    worker = [sys.executable, "-P", "-m", "dist_train.agent.workers.worker_main", str(os.getpid())]
    done = subprocess.run([*worker, "script", str(script)], capture_output=True, text=True, timeout=90)
    assert (done.returncode, done.stdout) == (0, "True True\n[]\n"), done


def test_ranks_that_are_started_by_hand_have_it_from_init() -> None:
    def rank() -> bool:
        import dist_train as dt

        with dt.init(device="cpu"):
            return bool(torch_dist.Reducer.__init__._keeps_groups)

    assert run_ranks(rank, 2) == [True, True]
