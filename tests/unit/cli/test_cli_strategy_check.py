"""`config check`, `launch` and `resume` refuse a strategy that does not fit the job, before they submit."""

from __future__ import annotations

import contextlib
import io
import json
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from dist_train import registry
from dist_train.cli.launch import device_choice, strategy_check
from dist_train.config import dump_config, load_config

EXAMPLES = Path(__file__).parents[3] / "examples"
DIGITS = EXAMPLES / "digits.yaml"
FOUR = ("--nodes", "2", "--gpus-per-node", "2")

# Overrides of the config, and what the error has.
UNFIT = [
    pytest.param(
        ["strategy=hsdp", "strategy.replicate=3"], ["replicate 3 on 4 ranks", "nodes x ranks"], id="mesh"
    ),
    pytest.param(
        ["strategy=hsdp", "strategy.replicate=2", "strategy.shard=4"],
        ["replicate 2 x shard 4 on 4 ranks"],
        id="both-sizes",
    ),
    pytest.param(
        ["strategy=fsdp", "strategy.unit=[Block]"], ["no option 'unit'", "'units'?"], id="unknown-option"
    ),
    pytest.param(
        ["strategy=ddp", "strategy.static_grph=true"], ["did you mean 'static_graph'?"], id="ddp-option"
    ),
    pytest.param(
        ["strategy=fsdp", "strategy.units=[Block]", "strategy.unit_parameters=5"],
        ["unit_parameters=5", "units=['Block'] says what a unit is too"],
        id="contradiction",
    ),
    pytest.param(
        ["strategy=fsdp", "strategy.param_dtype=fp8"], ["param_dtype='fp8'", "'bf16'"], id="bad-value"
    ),
    pytest.param(
        ["strategy=pipeline", "strategy.stage=3", "trainer.accumulate=3"],
        ["stage 3 on 4 ranks", "nodes x ranks"],
        id="stages",
    ),
    pytest.param(
        ["strategy=pipeline", "strategy.stage=2", "trainer.accumulate=1"],
        ["2 stages, and trainer.accumulate is 1", "trainer.accumulate=2"],
        id="micro-batches",
    ),
    pytest.param(
        ["strategy=fsdp_tensor_parallel", "strategy.tensor=3"], ["tensor 3 on 4 ranks"], id="tensor-groups"
    ),
    pytest.param(
        ["strategy=fsdp", "strategy.units=[Blok]"], ["'Blok' is neither a class", "ConvNet"], id="units"
    ),
    pytest.param(
        ["strategy=fsdp", "optimizer={target: torch.optim:SGD, args: {lr: 0.1, fused: true}}"],
        ["the optimizer torch.optim:SGD cannot step", "leave optimizer.args.fused out"],
        id="optimizer",
    ),
    pytest.param(["strategy=single"], ["'single' cannot train on 4 ranks", "ddp"], id="single"),
    pytest.param(["strategy=dp"], ["'dp' cannot train on 4 ranks"], id="dp"),
    pytest.param(
        ["strategy=fsdp", "strategy.cpu_offload=true", "launch.device=cpu"],
        ["trained on a CPU"],
        id="offload-on-cpu",
    ),
]
LAUNCHES = {
    "local": ("--device", "cpu"),
    "slurm": ("--launcher", "slurm", "--device", "cpu"),
    "kubernetes": (
        "--launcher",
        "kubernetes",
        "--device",
        "cpu",
        "--image",
        "registry/image:1",
        "--run-volume",
        "pvc/runs",
    ),
}


@pytest.fixture
def in_this_process(monkeypatch: pytest.MonkeyPatch) -> None:
    """Ask the strategy as its own process does, without the seconds that importing torch takes in each."""

    def run(command: list[str], input: str, **kwargs: Any) -> Any:
        if command[1:] == ["-P", "-m", "dist_train.estimate.model_check"]:
            from dist_train.estimate.model_check import respond

            code, record = respond(json.loads(input))
            return subprocess.CompletedProcess(command, code, json.dumps(record), "")
        assert command[1:4] == ["-P", "-m", "dist_train.strategies"]
        from dist_train.strategies.__main__ import main

        written = io.StringIO()
        with contextlib.redirect_stdout(written):
            code = main(command[4:])
        return subprocess.CompletedProcess(command, code, written.getvalue(), "")

    monkeypatch.setattr(strategy_check.subprocess, "run", run)


@pytest.mark.usefixtures("in_this_process")
@pytest.mark.parametrize(("overrides", "texts"), UNFIT)
def test_check_refuses_a_strategy_that_does_not_fit(
    dist_train: Any, overrides: list[str], texts: list[str]
) -> None:
    said = dist_train("config", "check", DIGITS, *overrides, *FOUR)
    assert (said.code, said.out) == (78, "")
    assert [text for text in (*texts, "`strategy`") if text not in said.err] == [], said.err


def test_a_process_of_its_own_is_asked(dist_train: Any) -> None:
    said = dist_train("config", "check", DIGITS, "strategy=hsdp", "strategy.replicate=3", *FOUR)
    assert (said.code, "replicate 3 on 4 ranks" in said.err) == (78, True), said.err


@pytest.mark.usefixtures("in_this_process")
@pytest.mark.parametrize("launcher", LAUNCHES)
def test_launch_refuses_it_before_it_submits(here: Path, dist_train: Any, launcher: str) -> None:
    words = ("launch", *LAUNCHES[launcher], *FOUR, DIGITS, "strategy=hsdp", "strategy.replicate=3")
    said = dist_train(*words)
    assert (said.code, said.out) == (78, "")
    assert "replicate 3 on 4 ranks" in said.err
    assert list(here.iterdir()) == [], "no run directory"


@pytest.mark.proof
def test_launch_refuses_more_stages_than_layers_and_starts_no_rank(here: Path, dist_train: Any) -> None:
    model = EXAMPLES / "language_model.yaml"
    words = ("--device", "cpu", "--gpus-per-node", "5", model, "strategy=pipeline", "trainer.accumulate=5")
    said = dist_train("launch", *words)
    assert (said.code, said.out) == (78, "")
    assert "5 stages, and ByteTransformer has 4 layers" in said.err
    assert list(here.iterdir()) == [], "no run directory"


@pytest.mark.usefixtures("in_this_process")
def test_resume_refuses_a_size_that_the_mesh_has_not(make_run: Callable[..., Any], dist_train: Any) -> None:
    made = make_run("a-1", nodes=2, procs_per_node=2, device="cpu").began().preempted()
    resolved = load_config(DIGITS, ["strategy=hsdp", "strategy.replicate=2"])
    made.run.config.write_text(dump_config(resolved.config))
    said = dist_train("resume", "a-1", "--nodes", "1", "--gpus-per-node", "3", "--dry-run")
    assert (said.code, said.out) == (78, "")
    assert "replicate 2 on 3 ranks" in said.err


@pytest.mark.usefixtures("in_this_process")
def test_the_line_of_the_value_is_named(here: Path, dist_train: Any) -> None:
    text = f"{DIGITS.read_text().rstrip()}\n"
    line = len(text.splitlines()) + 3
    Path("a.yaml").write_text(f"{text}strategy:\n  name: hsdp\n  replicate: 3\n")
    said = dist_train("config", "check", "a.yaml", *FOUR)
    assert f"a.yaml:{line}: `strategy`: strategy hsdp: replicate 3 on 4 ranks" in said.err


@pytest.mark.usefixtures("in_this_process")
def test_the_size_is_that_of_the_config_or_of_the_flags(dist_train: Any) -> None:
    hsdp = ("strategy=hsdp", "strategy.replicate=3")
    said = dist_train("config", "check", DIGITS, *hsdp, "launch.nodes=2", "launch.gpus_per_node=2")
    assert (said.code, "on 4 ranks" in said.err) == (78, True)
    said = dist_train(
        "config", "check", DIGITS, *hsdp, "launch.nodes=2", "launch.gpus_per_node=2", "--nodes", "3"
    )
    assert (said.code, said.err) == (0, "")
    assert "strategy hsdp (replicate 3 x shard 2); launcher local, 3 node(s) x 2" in said.out


@pytest.mark.usefixtures("in_this_process")
def test_what_fits_is_printed_with_its_mesh(dist_train: Any) -> None:
    said = dist_train(
        "config", "check", DIGITS, "strategy=fsdp", "--nodes", "128", "--gpus-per-node", "8", "--json"
    )
    found = json.loads(said.out)
    assert (found["ok"], found["world_size"], found["mesh"]) == (True, 1024, [["shard", 1024]])


@pytest.mark.parametrize(
    "words",
    [["strategy=ddp", *FOUR], ["strategy=single"], ["strategy=fsdp"]],
    ids=["ddp", "single", "one-rank"],
)
def test_no_process_is_started_where_nothing_can_be_wrong(
    dist_train: Any, monkeypatch: pytest.MonkeyPatch, words: list[str]
) -> None:
    def run(*args: Any, **kwargs: Any) -> Any:
        raise AssertionError("a process was started")

    monkeypatch.setattr(strategy_check.subprocess, "run", run)
    assert dist_train("config", "check", DIGITS, *words).code == 0


def test_a_config_for_gpus_can_be_checked_where_there_is_none(
    dist_train: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(device_choice, "visible_gpus", list)
    said = dist_train("config", "check", DIGITS, "launch.device=cuda")
    assert (said.code, said.err) == (0, "")


def test_only_a_strategy_for_any_size_says_so() -> None:
    declared = [
        name
        for name in registry.names("strategies")
        if registry.declares("strategies", name, "FITS_ANY_SIZE")
    ]
    assert "ddp" in declared
    for name in declared:
        strategy = registry.load("strategies", name)
        assert not hasattr(strategy, "place"), f"{name} may refuse a size"
        assert not getattr(strategy, "one_process", False), f"{name} refuses several ranks"


def test_a_check_that_fails_itself_is_said_and_refuses_nothing(
    dist_train: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    def run(command: list[str], **kwargs: Any) -> Any:
        return subprocess.CompletedProcess(command, 1, "", "Traceback\nImportError: libcudart.so.13")

    monkeypatch.setattr(strategy_check.subprocess, "run", run)
    said = dist_train("config", "check", DIGITS, "strategy=fsdp", *FOUR)
    assert said.code == 0
    assert "strategy fsdp could not be checked here (ImportError: libcudart.so.13)" in said.err


LANGUAGE_MODEL = DIGITS.with_name("language_model.yaml")
# The plan's styles of what is between qkv and the output, and what `config check` says.
PLANS = [
    pytest.param([], None, id="the-models-own"),
    pytest.param(["model.args.heads=1"], "(1 of them) cannot be shared evenly by 2 ranks", id="heads"),
    pytest.param(
        ["strategy.plan={blocks.*.mlp.1: colwise}"],
        "cannot be computed with the parts of one rank",
        id="nothing-rowwise",
    ),
    pytest.param(
        ["strategy.plan={blocks.*.mpl.1: colwise}"], "did you mean 'blocks.*.mlp.1'?", id="no-layer"
    ),
    pytest.param(["strategy.plan={head: colwise}"], "are one parameter", id="tied"),
    pytest.param(["trainer.compile={}"], "trainer.compile does not work", id="compiled"),
]


@pytest.mark.parametrize(("overrides", "said"), PLANS)
def test_a_plan_is_run_without_values(overrides: list[str], said: str | None) -> None:
    from dist_train.estimate.model_check import respond

    words = ["strategy=tensor_parallel", "launch.gpus_per_node=2", *overrides]
    resolved = load_config(LANGUAGE_MODEL, words)
    code, answer = respond(
        {
            "config": dump_config(resolved.config),
            "world_size": resolved.config.launch.gpus_per_node,
            "device": "cpu",
            "accumulate": 1,
            "forward": True,
        }
    )
    if said is None:
        assert (code, answer) == (0, {"mesh": (("tensor", 2),), "unchecked": None})
    else:
        assert code == 78
        assert said in f"{answer['what']} {answer['hint']}"


@pytest.mark.proof
@pytest.mark.parametrize("verb", [("config", "check"), ("launch", "--dry-run")], ids=["check", "launch"])
def test_a_plan_is_refused_in_a_process_of_its_own(
    here: Path, dist_train: Any, verb: tuple[str, ...]
) -> None:
    words = ("strategy=tensor_parallel", "strategy.plan={blocks.*.mpl.1: colwise}")
    said = dist_train(*verb, LANGUAGE_MODEL, *words, "--gpus-per-node", "2")
    assert said.code == 78
    assert "names no module of ByteTransformer" in said.err
    assert "did you mean 'blocks.*.mlp.1'?" in said.err
    assert list(here.iterdir()) == [], "no run directory"
