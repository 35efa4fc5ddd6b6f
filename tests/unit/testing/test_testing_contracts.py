"""The contract suites catch what they are for: one broken adapter per rule."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest
from pydantic import BaseModel, ConfigDict

from dist_train import registry
from dist_train.errors import ConfigError
from dist_train.jobs import JobHandle, JobSpec, JobState, Plan
from dist_train.testing.contracts import launcher_contract as contract
from dist_train.testing.contracts import strategy_contract as strategies
from dist_train.testing.contracts.rules import check_options, check_registered

LOCAL: Any = registry.load("launchers", "local")


class Options(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class Wrapper(type(LOCAL)):  # type: ignore[misc]
    """The local launcher, with one thing changed by each test."""

    name = "local"
    Options = Options

    def plan(self, spec: JobSpec, options: BaseModel) -> Plan:
        return LOCAL.plan(spec, options)

    def state(self, handle: JobHandle, run_dir: str) -> JobState:
        return LOCAL.state(handle, run_dir)

    def cancel(self, handle: JobHandle, run_dir: str) -> None:
        LOCAL.cancel(handle, run_dir)


def changed(plan: Plan, old: str, new: str) -> Plan:
    files = tuple((name, content.replace(old.encode(), new.encode())) for name, content in plan.files)
    return Plan(plan.launcher, files, plan.summary)


class ReadsEnvironment(Wrapper):
    def plan(self, spec: JobSpec, options: BaseModel) -> Plan:
        return Plan("local", ((f"plan-{os.environ.get('USER')}.sh", b"x"),), "")


class ReadsFolder(Wrapper):
    def plan(self, spec: JobSpec, options: BaseModel) -> Plan:
        return Plan("local", (("plan.sh", f"cd {Path.cwd()} # {spec.run_id}".encode()),), "")


class MakesFiles(Wrapper):
    def plan(self, spec: JobSpec, options: BaseModel) -> Plan:
        spec.run_dir.mkdir(parents=True, exist_ok=True)
        return super().plan(spec, options)


class ForgetsTheRun(Wrapper):
    def plan(self, spec: JobSpec, options: BaseModel) -> Plan:
        return Plan("local", (("plan.sh", b"always the same"),), "")


@pytest.mark.parametrize(
    ("launcher", "words"),
    [
        (ReadsEnvironment(), "depends on the environment"),
        (ReadsFolder(), "plan.sh differs"),
        (MakesFiles(), "plan made files"),
        (ForgetsTheRun(), "does not depend on the run id"),
    ],
    ids=lambda value: type(value).__name__,
)
def test_a_plan_that_is_not_pure(launcher: Any, words: str) -> None:
    with pytest.raises(AssertionError, match=words):
        contract.check_plan_is_pure(launcher, Options())


class SplitsWords(Wrapper):
    """Joins by spaces, as a careless script does."""

    def plan(self, spec: JobSpec, options: BaseModel) -> Plan:
        line = f"python -m dist_train.agent {spec.target.value} {' '.join(spec.target.args)}"
        return Plan("local", (("job.sh", line.encode()),), "")


class DropsVariables(Wrapper):
    def plan(self, spec: JobSpec, options: BaseModel) -> Plan:
        return changed(super().plan(spec, options), "GREETING", "GREETINGS")


@pytest.mark.parametrize(
    ("launcher", "words"), [(SplitsWords(), "the argument"), (DropsVariables(), "--env GREETING")]
)
def test_words_that_do_not_come_through(launcher: Any, words: str) -> None:
    with pytest.raises(AssertionError, match=words):
        contract.check_hostile_texts(launcher, Options())


def test_a_launcher_may_refuse_a_path_that_its_script_cannot_hold() -> None:
    class Refuses(Wrapper):
        def plan(self, spec: JobSpec, options: BaseModel) -> Plan:
            if "\n" in str(spec.run_dir):
                raise ConfigError(f"the run directory {spec.run_dir} has a line break in its name")
            return super().plan(spec, options)

    contract.check_hostile_texts(Refuses(), Options())  # type: ignore[arg-type]


class Manifests(Wrapper):
    """As Kubernetes' containers get their words; `doubled` is what makes a dollar a dollar there."""

    doubled = True

    def run_dir_on_nodes(self, spec: JobSpec) -> Path:
        return Path("/runs") / spec.name

    def plan(self, spec: JobSpec, options: BaseModel) -> Plan:
        def word(text: str) -> str:
            return text.replace("$", "$$") if self.doubled else text

        pairs = {**dict(spec.env), "DIST_TRAIN_RUN_DIR": str(self.run_dir_on_nodes(spec))}
        environ = [{"name": name, "value": word(value)} for name, value in pairs.items()]
        command = [word(text) for text in (spec.target.value, *spec.target.args)]
        pod = {"apiVersion": "v1", "kind": "Pod", "spec": {"command": command, "env": environ}}
        return Plan("local", (("pod.json", json.dumps(pod).encode()),), "")


def test_manifests_are_read_as_their_containers_get_them_and_runs_may_lie_elsewhere() -> None:
    contract.check_hostile_texts(Manifests(), Options())  # type: ignore[arg-type]
    raw = Manifests()
    raw.doubled = False
    with pytest.raises(AssertionError, match="shell: the argument"):
        contract.check_hostile_texts(raw, Options())  # type: ignore[arg-type]


def test_options_without_which_there_is_no_plan() -> None:
    class Asks(Wrapper):
        class Options(Options):
            image: str = ""

        example = Options(image="a:1")

    assert contract.example_options(Asks()).image == "a:1"  # type: ignore[arg-type,attr-defined]
    assert contract.example_options(LOCAL) == LOCAL.Options()


@pytest.mark.parametrize("variable", ["DIST_TRAIN_GRACE_S", "DIST_TRAIN_NODE_RANK", "DIST_TRAIN_INTERFACE"])
def test_a_variable_of_the_seam_is_missing(variable: str) -> None:
    class Forgets(Wrapper):
        def plan(self, spec: JobSpec, options: BaseModel) -> Plan:
            return changed(super().plan(spec, options), variable, "SOMETHING_ELSE")

    with pytest.raises(AssertionError, match=f"does not set {variable}"):
        contract.check_seam(Forgets(), Options())  # type: ignore[arg-type]


class Guesses(Wrapper):
    def state(self, handle: JobHandle, run_dir: str) -> JobState:
        return JobState("failed", "a guess")


def test_an_unknown_run_is_unknown() -> None:
    with pytest.raises(AssertionError, match="is 'failed'"):
        contract.check_unknown_run(Guesses())  # type: ignore[arg-type]


class CancelsOnce(Wrapper):
    def cancel(self, handle: JobHandle, run_dir: str) -> None:
        (Path(run_dir) / "cancelled").mkdir()


def test_cancel_twice_must_be_no_error() -> None:
    with pytest.raises(AssertionError, match="raised FileExistsError"):
        contract.check_cancel(CancelsOnce())  # type: ignore[arg-type]


def test_a_stranger_to_the_registry() -> None:
    with pytest.raises(AssertionError, match="another object for 'local'"):
        check_registered("launchers", Wrapper())


class Loose(BaseModel):
    model_config = ConfigDict(extra="ignore", frozen=True)


class Melting(BaseModel):
    model_config = ConfigDict(extra="forbid")


class Demanding(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)
    queue: str


@pytest.mark.parametrize(
    ("options", "words"),
    [(Loose, "extra='forbid'"), (Melting, "frozen=True"), (Demanding, "no default"), (dict, "pydantic")],
)
def test_options(options: type, words: str) -> None:
    class Adapter:
        Options = options

    with pytest.raises(AssertionError, match=words):
        check_options(Adapter())


GOOD = {"unwraps": True, "untied": False, "thawed": False, "group": False, "threads": []}


@pytest.mark.parametrize(
    ("facts", "words"),
    [
        ({"steps": [(1.0, 2.0)]}, None),
        ({"steps": [(1.00001, 2.0)]}, "loss of step 0 is 1.00001 on rank 0, one process has 1.0"),
        ({"steps": [(1.0, 1.0)]}, "gradient norm of step 0"),
        ({"steps": [(1.0, 2.0)], "unwraps": False}, "unwrap"),
        ({"steps": [(1.0, 2.0)], "untied": True}, "tied parameters are no longer one"),
        ({"steps": [(1.0, 2.0)], "thawed": True}, "needs no gradient was changed"),
        ({"steps": [(1.0, 2.0)], "group": True}, "process group is there"),
        ({"steps": [(1.0, 2.0)], "threads": ["t"]}, "threads are left"),
    ],
)
def test_a_strategy_that_trains_otherwise(facts: dict[str, Any], words: str | None) -> None:
    def compare() -> None:
        strategies._compare("ddp", [{**GOOD, **facts}], [(1.0, 2.0)])

    if words is None:
        compare()
    else:
        with pytest.raises(AssertionError, match=words):
            compare()


SHAPES = {name: tuple(p.shape) for name, p in strategies._model(seed=0).named_parameters()}


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"parameters": 10}, "10 bytes for parts of"),
        ({"shapes": {"fixed": (6,)}}, "it names ['fixed'], not"),
        ({"rank": 9}, "there is no rank 9"),
        (
            {"shapes": {**SHAPES, "first.weight": (60, 6)}},
            "holds more of ['first.weight'] than there is",
        ),
    ],
)
def test_a_strategy_whose_memory_cannot_be(changes: dict[str, Any], words: str) -> None:
    from dataclasses import replace

    from dist_train.strategies.ddp import Ddp
    from dist_train.strategies.rank_memory import whole_model_memory

    class Other(Ddp):
        def memory(self, options: Any, model: Any, world_size: int, accumulate: int) -> Any:
            return [replace(whole_model_memory(model), **changes)]

    strategies.check_memory(Ddp())
    with pytest.raises(AssertionError) as caught:
        strategies.check_memory(Other())
    assert words in str(caught.value)
