"""Launchers are subclasses of `Launcher`: defaults for what they do not define, refused if they are not."""

from __future__ import annotations

from collections.abc import Iterator
from importlib.metadata import EntryPoint
from pathlib import Path
from typing import Any

import pytest
from pydantic import BaseModel, ConfigDict

from dist_train import registry
from dist_train.cli.launch.launch_options import option_groups
from dist_train.errors import ConfigError
from dist_train.jobs import JobHandle, JobSpec, JobState, Launcher, Plan, Target, load_launcher
from dist_train.testing.contracts.launcher_contract import check_launcher


class Options(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class Least(Launcher):
    """What every launcher must define, and no more."""

    name = "least"
    Options = Options

    def plan(self, spec: JobSpec, options: BaseModel) -> Plan:
        return Plan(self.name, (("job.sh", b""),), "")

    def submit(self, plan: Plan) -> JobHandle:
        return JobHandle("least:1")

    def state(self, handle: JobHandle, run_dir: str) -> JobState:
        return JobState("unknown", "nobody")

    def logs(
        self, handle: JobHandle, run_dir: str, rank: int | None, attempt: int | None, follow: bool
    ) -> Iterator[str]:
        return iter(())

    def cancel(self, handle: JobHandle, run_dir: str) -> None: ...

    def wait(self, handle: JobHandle, run_dir: str) -> int:
        return 0


class SameMethods:
    """As launchers were written when the interface was a Protocol."""

    name = "least"
    Options = Options
    plan, submit, state, logs, cancel, wait = (
        Least.plan,
        Least.submit,
        Least.state,
        Least.logs,
        Least.cancel,
        Least.wait,
    )


def test_what_a_launcher_does_not_define_has_a_default() -> None:
    launcher, handle = Least(), JobHandle("least:1")
    spec = JobSpec("a", "a-1", Path("/runs/a"), Target("script", "train.py"))
    assert launcher.detach(handle, "/runs/a") == handle
    assert launcher.detach_output(handle) == "least:1"
    assert launcher.run_dir_on_nodes(spec) is None
    assert (dict(launcher.refuses), launcher.holds_secrets, launcher.example) == ({}, False, None)


def test_a_launcher_without_one_of_the_methods_cannot_be_made() -> None:
    class NoWait(Least):
        wait = Launcher.wait

    with pytest.raises(TypeError, match="wait"):
        NoWait()  # type: ignore[abstract]


@pytest.fixture
def plugin(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Make the registry hand out this launcher under the name `least`."""

    def install(launcher: object) -> object:
        monkeypatch.setattr(registry, "names", lambda kind: ["least"])
        monkeypatch.setattr(registry, "load", lambda kind, name: launcher)
        return launcher

    return install


def test_a_class_with_the_same_methods_is_refused_with_the_base_class_to_use(plugin: Any) -> None:
    plugin(SameMethods())
    with pytest.raises(ConfigError, match="'least' is not a ") as caught:
        load_launcher("least")
    assert "class SameMethods(dist_train.jobs.Launcher)" in str(caught.value)


def test_the_contract_suite_wants_the_base_class(plugin: Any) -> None:
    with pytest.raises(AssertionError, match="not a subclass of"):
        check_launcher(plugin(SameMethods()))


def test_a_subclass_is_loaded(plugin: Any) -> None:
    launcher = plugin(Least())
    assert load_launcher("least") is launcher


def test_a_class_in_place_of_an_instance_is_refused(plugin: Any) -> None:
    plugin(Least)
    with pytest.raises(ConfigError, match="'least' is a class, not an instance") as caught:
        load_launcher("least")
    assert "LAUNCHER = Least()" in str(caught.value)


def test_a_launcher_without_options_is_refused(plugin: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(Least, "Options")
    plugin(Least())
    with pytest.raises(ConfigError, match="'least' has no Options"):
        load_launcher("least")


def test_a_plugin_that_cannot_be_imported_leaves_the_other_launchers(monkeypatch: pytest.MonkeyPatch) -> None:
    entry = EntryPoint("absent", "no_such_package.launcher:LAUNCHER", "dist_train.launchers")
    monkeypatch.setattr(
        registry, "entry_points", lambda group: [entry] if group == "dist_train.launchers" else []
    )
    registry._owners.cache_clear()
    try:
        with pytest.raises(ConfigError, match="'absent' cannot be loaded: ModuleNotFoundError") as caught:
            load_launcher("absent")
        assert "ModuleNotFoundError: No module named 'no_such_package'" in str(caught.value)
        assert any(group.launchers == {"slurm"} for group in option_groups())
    finally:
        registry._owners.cache_clear()


def test_an_entry_point_of_the_importlib_metadata_backport_is_loaded(monkeypatch: pytest.MonkeyPatch) -> None:
    """Once a package imports the backport, the standard library returns entry points of its class."""
    import importlib_metadata as backport

    entry = backport.EntryPoint("other", "launchers.local:LAUNCHER", "dist_train.launchers")
    monkeypatch.setattr(
        registry, "entry_points", lambda group: [entry] if group == "dist_train.launchers" else []
    )
    registry._owners.cache_clear()
    try:
        assert load_launcher("other") is load_launcher("local")
    finally:
        registry._owners.cache_clear()
