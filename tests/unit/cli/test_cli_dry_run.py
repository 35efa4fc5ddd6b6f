"""`launch --dry-run`: stdout is only the plan, and nothing is made."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

DIGITS = Path(__file__).parents[3] / "examples" / "digits.yaml"


def plan_of(out: str) -> dict[str, Any]:
    """The local launcher's one file, agents.json; nothing else stands on stdout."""
    record: dict[str, Any] = json.loads(out)
    return record


@pytest.fixture(autouse=True)
def _no_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)


def test_only_the_plan_is_printed_and_nothing_made(here: Path, dist_train: Any) -> None:
    said = dist_train(
        "launch", DIGITS, "--nodes", "2", "--gpus-per-node", "2", "trainer.epochs=1", "--dry-run"
    )
    assert said.code == 0
    record = plan_of(said.out)
    assert [node["env"]["DIST_TRAIN_NODE_RANK"] for node in record["nodes"]] == ["0", "1"]
    assert record["spec"]["procs_per_node"] == 2
    assert "runs/digits-1" in said.err
    assert list(here.iterdir()) == []


def test_the_plan_is_a_function_of_config_options_and_run_id(here: Path, dist_train: Any) -> None:
    words = ["launch", DIGITS, "--run-id", "fixed", "--gpus-per-node", "2", "--dry-run"]
    first, again = dist_train(*words), dist_train(*words)
    assert first.out == again.out
    assert '"DIST_TRAIN_RUN_ID": "fixed"' in first.out


def test_both_spellings_and_both_names_mean_one_option(here: Path, dist_train: Any) -> None:
    (here / "train.py").write_text("")
    plans = [
        plan_of(dist_train("launch", "--run-id", "r", *words, "--dry-run", "train.py").out)["spec"]
        for words in (["--gpus-per-node", "3"], ["--nproc_per_node", "3"], ["--gpus_per_node=3"])
    ]
    assert plans[0] == plans[1] == plans[2]
    assert plans[0]["procs_per_node"] == 3


def test_arguments_after_a_script_are_the_scripts(here: Path, dist_train: Any) -> None:
    (here / "train.py").write_text("")
    said = dist_train("launch", "--dry-run", "train.py", "--nodes", "7", "--lr=0.1", "-x", "--help")
    spec = plan_of(said.out)["spec"]
    assert spec["nodes"] == 1
    assert spec["target"]["args"] == ["--nodes", "7", "--lr=0.1", "-x", "--help"]
    notices = [line for line in said.err.splitlines() if "--nodes" in line]
    assert notices == [
        "[dist-train] --nodes stands after train.py and goes to it; options of dist-train stand before"
    ]


def test_other_arguments_of_a_script_have_no_notice(here: Path, dist_train: Any) -> None:
    (here / "train.py").write_text("")
    assert "goes to it" not in dist_train("launch", "--dry-run", "train.py", "--lr", "0.1").err


def test_a_module_keeps_its_arguments(dist_train: Any) -> None:
    said = dist_train("launch", "--dry-run", "-m", "my_package.train", "--nodes", "7", "a=b")
    target = plan_of(said.out)["spec"]["target"]
    assert (target["kind"], target["value"]) == ("module", "my_package.train")
    assert target["args"] == ["--nodes", "7", "a=b"]
    assert "--nodes stands after my_package.train and goes to it" in said.err


@pytest.mark.parametrize("words", [["-mpkg.train", "-x"], ["--name", "-m", "-m", "pkg.train", "-x"]])
def test_a_module_in_other_spellings(dist_train: Any, words: list[str]) -> None:
    said = dist_train("launch", "--dry-run", *words)
    if "--name" in words:
        assert (said.code, "'-m' cannot be used" in said.err) == (78, True)
    else:
        target = plan_of(said.out)["spec"]["target"]
        assert (target["value"], target["args"]) == ("pkg.train", ["-x"])


def test_a_scripts_own_dash_m_is_the_scripts(here: Path, dist_train: Any) -> None:
    (here / "train.py").write_text("")
    target = plan_of(dist_train("launch", "--dry-run", "train.py", "-m", "x").out)["spec"]["target"]
    assert (target["kind"], target["args"]) == ("script", ["-m", "x"])


def test_options_and_overrides_mix_after_a_config(dist_train: Any) -> None:
    said = dist_train(
        "launch", DIGITS, "seed=3", "--nodes", "2", "trainer.epochs=1", "--device", "cpu", "--dry-run"
    )
    assert said.code == 0
    assert plan_of(said.out)["spec"]["nodes"] == 2


def test_no_target_trains_the_bundled_digits_with_a_notice(dist_train: Any) -> None:
    said = dist_train("launch", "--nodes", "2", "--gpus-per-node", "4", "--dry-run")
    assert said.code == 0
    assert "bundled digits example" in said.err
    spec = plan_of(said.out)["spec"]
    assert (spec["nodes"], spec["procs_per_node"], Path(spec["target"]["value"]).name) == (
        2,
        4,
        "digits.yaml",
    )


def test_no_target_prefers_the_folders_own_config(here: Path, dist_train: Any) -> None:
    (here / "dist-train.yaml").write_text(DIGITS.read_text())
    said = dist_train("launch", "--dry-run")
    assert plan_of(said.out)["spec"]["target"]["value"] == str(here / "dist-train.yaml")
    assert "bundled" not in said.err


def test_no_gpu_means_as_many_cpu_processes_and_one_line(here: Path, dist_train: Any) -> None:
    (here / "train.py").write_text("")
    said = dist_train("launch", "--nodes", "2", "--gpus-per-node", "2", "--dry-run", "train.py")
    spec = plan_of(said.out)["spec"]
    assert (spec["device"], spec["threads_per_rank"]) == ("cpu", 1)
    assert said.err.count("running 4 process(es) on CPU (gloo)") == 1


def test_the_next_free_name_is_taken_into_account(here: Path, dist_train: Any) -> None:
    (here / "runs" / "digits-1").mkdir(parents=True)
    said = dist_train("launch", DIGITS, "--dry-run")
    assert plan_of(said.out)["spec"]["run_dir"] == str(here / "runs" / "digits-2")


@pytest.mark.parametrize("words", [["--help"], ["--nodes", "2", "-h"], ["run.yaml", "seed=1", "--help"]])
def test_help_is_ours_before_a_target_and_after_a_config(dist_train: Any, words: list[str]) -> None:
    said = dist_train("launch", *words)
    assert said.code == 0
    assert "--gpus-per-node" in said.out
    for heading in ("Where:", "Size:", "Run:", "Failures:"):
        assert heading in said.out
    assert "--cpus-per-task" not in said.out


@pytest.mark.parametrize("words", [["./train", "--help"], ["-m", "pkg.train", "--help"]])
def test_help_after_a_script_or_module_is_theirs(here: Path, dist_train: Any, words: list[str]) -> None:
    (here / "train").write_text("")
    said = dist_train("launch", "--dry-run", *words)
    assert plan_of(said.out)["spec"]["target"]["args"] == ["--help"]


def test_a_secret_is_handed_over_by_name_alone(
    here: Path, dist_train: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HF_TOKEN", "canary-4711")
    said = dist_train("launch", DIGITS, "--secret", "HF_TOKEN", "--dry-run")
    assert plan_of(said.out)["spec"]["secrets"] == ["HF_TOKEN"]
    assert "canary-4711" not in said.out + said.err
    monkeypatch.delenv("HF_TOKEN")
    said = dist_train("launch", DIGITS, "--secret", "HF_TOKEN", "--dry-run")
    assert said.code == 78
    assert "--secret HF_TOKEN: the environment has no variable" in said.err


@pytest.mark.parametrize("words", [("--mem", "8G"), ("--cpus-per-gpu", "2"), ("--interface", "eth0")])
def test_what_the_local_launcher_cannot_honour_is_refused(
    here: Path, dist_train: Any, words: tuple[str, str]
) -> None:
    said = dist_train("launch", DIGITS, *words, "--dry-run")
    assert said.code == 2
    assert f"{words[0]} {words[1]} means nothing to the local launcher" in said.err
