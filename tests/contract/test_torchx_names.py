"""The names of TorchX that our schedulers use, private ones among them."""

from __future__ import annotations

import inspect
import sys
import tomllib
from importlib.metadata import entry_points, version
from pathlib import Path

import pytest
from torchx.runner import Runner
from torchx.schedulers.api import DescribeAppResponse, Scheduler
from torchx.schedulers.kubernetes_scheduler import KubernetesScheduler
from torchx.specs import AppDef, AppDryRunInfo, Role, parse_app_handle

from launchers._kubernetes.runner.scheduler import PlainScheduler
from launchers._kubernetes.runner.volcano_scheduler import VolcanoScheduler

ROOT = Path(__file__).parents[2]


def test_the_version_is_the_one_that_pyproject_asks_for() -> None:
    with (ROOT / "pyproject.toml").open("rb") as file:
        asked = tomllib.load(file)["project"]["dependencies"]
    assert [word for word in asked if word.startswith("torchx")] == ["torchx>=0.7,<0.8"]
    assert version("torchx").startswith("0.7.")


def test_no_entry_point_of_ours_hides_torchxs_own_schedulers() -> None:
    ours = [entry for entry in entry_points(group="torchx.schedulers") if "dist" in entry.value]
    assert ours == []


@pytest.mark.parametrize("ours", [PlainScheduler, VolcanoScheduler])
def test_every_verb_of_a_scheduler_is_ours(ours: type) -> None:
    verbs = ("_submit_dryrun", "schedule", "describe", "list", "_cancel_existing", "log_iter")
    for verb in verbs:
        assert getattr(ours, verb) is not getattr(Scheduler, verb)
        assert getattr(ours, verb) is not getattr(KubernetesScheduler, verb)
        theirs = inspect.signature(getattr(Scheduler, verb)).parameters
        assert list(inspect.signature(getattr(ours, verb)).parameters)[: len(theirs)] == list(theirs)
    assert not inspect.isabstract(ours)


def test_volcano_keeps_torchxs_own_options() -> None:
    assert issubclass(VolcanoScheduler, KubernetesScheduler)
    assert VolcanoScheduler._run_opts is KubernetesScheduler._run_opts
    names = [name for name, _ in VolcanoScheduler("s", None).run_opts()]  # type: ignore[arg-type]
    assert {"namespace", "queue", "service_account", "priority_class"} <= set(names)


def test_a_dry_run_can_be_scheduled_that_was_read_from_a_file() -> None:
    """submit() rebuilds one from the plan's bytes: these are all the fields that the Runner reads."""
    seen: list[object] = []

    class Fake(Scheduler):  # type: ignore[type-arg]
        def __init__(self, session_name: str, **_: object) -> None:
            super().__init__("fake", session_name)

        def _submit_dryrun(self, app: AppDef, cfg: object) -> AppDryRunInfo:  # type: ignore[type-arg]
            raise AssertionError

        def schedule(self, dryrun_info: AppDryRunInfo) -> str:  # type: ignore[type-arg]
            seen.append(dryrun_info.request)
            return "kind:namespace:name"

        def describe(self, app_id: str) -> DescribeAppResponse:
            seen.append(app_id)
            return DescribeAppResponse(app_id=app_id, structured_error_msg="{}", msg="said")

        def list(self) -> list:  # type: ignore[type-arg]
            return []

        def _cancel_existing(self, app_id: str) -> None:
            seen.append(f"cancelled {app_id}")

    runner = Runner("dist-train", {"fake": Fake})
    info: AppDryRunInfo[list[int]] = AppDryRunInfo([1, 2], repr)
    info._app, info._scheduler = AppDef("a", roles=[Role("trainer", image="i")]), "fake"
    handle = runner.schedule(info)
    assert handle == "fake://dist-train/kind:namespace:name"
    assert parse_app_handle(handle).app_id == "kind:namespace:name"
    status = runner.status(handle)
    assert status is not None
    assert (status.msg, status.structured_error_msg) == ("said", "{}")
    runner.cancel(handle)
    assert seen == [
        [1, 2],
        "kind:namespace:name",
        *["kind:namespace:name"] * 2,
        "cancelled kind:namespace:name",
    ]


def test_it_loads_no_torch_and_no_kubernetes_client() -> None:
    import subprocess

    code = "import torchx.runner, torchx.schedulers.api, torchx.specs, sys\n"
    code += "sys.exit(' '.join(n for n in ('torch', 'kubernetes', 'docker') if n in sys.modules) or 0)"
    done = subprocess.run([sys.executable, "-P", "-c", code], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")
