"""The example of each page of docs/extend, installed as a distribution of its own, keeps its contract."""

from __future__ import annotations

import importlib
import itertools
import re
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from dist_train import registry
from dist_train.jobs import JobHandle
from dist_train.rundir import RunDir
from dist_train.testing import check_launcher, check_storage, check_strategy
from dist_train.testing.contracts.launcher_contract import example_spec

EXTEND = Path(__file__).resolve().parents[3] / "docs" / "extend"

PlugIn = Callable[..., Any]


@pytest.fixture
def plug_in(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[PlugIn]:
    """Installs a page's first Python block under an entry point; returns what the registry then loads."""
    folder = tmp_path / "site-packages"
    monkeypatch.syspath_prepend(str(folder))
    monkeypatch.setenv("PYTHONPATH", str(folder))

    def install(page: str, kind: str, name: str, constant: str) -> Any:
        text = (EXTEND / page).read_text(encoding="utf-8")
        module = f"docs_extend_{name}"
        block = re.search(r"^```python\n(.*?)^```", text, re.MULTILINE | re.DOTALL)
        assert block is not None
        information = folder / f"{module}-1.0.dist-info"
        information.mkdir(parents=True)
        (folder / f"{module}.py").write_text(block[1], encoding="utf-8")
        (information / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {module}\nVersion: 1.0\n")
        (information / "entry_points.txt").write_text(
            f"[{registry.KINDS[kind].group}]\n{name} = {module}:{constant}\n"
        )
        registry._owners.cache_clear()
        importlib.invalidate_caches()
        sys.modules.pop(module, None)
        return registry.load(kind, name)

    yield install
    registry._owners.cache_clear()


def test_the_launcher_keeps_the_contract(plug_in: PlugIn) -> None:
    check_launcher(plug_in("launcher.md", "launchers", "ssh", "LAUNCHER"))


def test_the_launcher_starts_an_agent_on_each_host(
    plug_in: PlugIn, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    launcher, started = plug_in("launcher.md", "launchers", "ssh", "LAUNCHER"), []
    monkeypatch.setattr("subprocess.Popen", lambda words, **_: started.append(words))
    (tmp_path / "run" / "control").mkdir(parents=True)
    handle = launcher.submit(launcher.plan(example_spec(tmp_path / "run"), launcher.example))
    assert [words[:2] for words in started] == [["ssh", "node1"], ["ssh", "node2"]]
    assert "DIST_TRAIN_NODE_RANK=1" in started[1][2]
    assert launcher.state(handle, str(tmp_path / "run")).phase == "pending"
    assert handle == JobHandle("ssh:contract-1")


@pytest.mark.proof
@pytest.mark.multiprocess
def test_the_strategy_keeps_the_contract(plug_in: PlugIn) -> None:
    check_strategy(plug_in("strategy.md", "strategies", "ddp_float64", "STRATEGY"), worlds=(2,))


def test_the_sink_keeps_the_contract_and_writes_every_second_step(plug_in: PlugIn, tmp_path: Path) -> None:
    from dist_train.observability.sink import SinkContext
    from dist_train.testing import check_sink

    sink_class = plug_in("sink.md", "sinks", "csv", "SINK")
    check_sink(sink_class)
    sink = sink_class(SinkContext(run_dir=RunDir(tmp_path)), sink_class.Options(every_steps=2))
    for step in (1, 2):
        sink.record({"kind": "train", "step": step, "epoch": 0, "loss": 0.5})
    sink.close()
    assert (tmp_path / "loss.csv").read_text().splitlines() == ["2,0,0.5"]


@pytest.mark.multiprocess
def test_the_callback_keeps_the_contract(plug_in: PlugIn) -> None:
    from dist_train.testing import check_callback

    callback = plug_in("callback.md", "callbacks", "print_norm", "PrintNorm")
    check_callback(lambda: callback(every_steps=2))


def test_the_callback_logs_and_asks_to_stop(plug_in: PlugIn) -> None:
    callback = plug_in("callback.md", "callbacks", "print_norm", "PrintNorm")(every_steps=2)
    logged: list[dict[str, float]] = []
    reasons: list[str] = []
    model = torch.nn.Linear(1, 1, bias=False)
    run = SimpleNamespace(log=lambda **values: logged.append(values))
    for step, weight in ((1, 9.0), (2, 3.0), (4, 2e6)):
        torch.nn.init.constant_(model.weight, weight)
        callback.on_step_end(SimpleNamespace(step=step, model=model, run=run, request_stop=reasons.append))
    assert logged == [{"step": 2, "weight_norm": 3.0}, {"step": 4, "weight_norm": 2e6}]
    assert reasons == ["the norm of the weights is 2e+06"]


def test_the_storage_keeps_the_contract(plug_in: PlugIn) -> None:
    storage, numbers = plug_in("storage.md", "checkpoint_storages", "memory", "STORAGE"), itertools.count()
    check_storage(lambda: storage(f"memory://contract-{next(numbers)}"))


def test_each_page_names_its_entry_point_group() -> None:
    groups = {kind.group for kind in registry.KINDS.values()}
    text = "\n".join(page.read_text(encoding="utf-8") for page in EXTEND.glob("*.md"))
    assert {group for group in groups if f"`{group}`" not in text} == set()
