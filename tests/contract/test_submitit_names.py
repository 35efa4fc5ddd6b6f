"""The names of submitit that our script is made with, private ones among them: a change is noticed here."""

from __future__ import annotations

import inspect
import tomllib
from importlib.metadata import version
from pathlib import Path

import pytest
from submitit import SlurmExecutor, SlurmJob
from submitit.core.utils import JobPaths

from dist_train.jobs import JobSpec, Target
from launchers._slurm import batch_script
from launchers._slurm.slurm_options import Options

ROOT = Path(__file__).parents[2]


class WithoutSrun(SlurmExecutor):
    """As launchers/_slurm/batch_script.py has it: no pickle, no srun looked for."""

    @property
    def _submitit_command_str(self) -> str:
        return "our step"

    @classmethod
    def affinity(cls) -> int:
        return 2


def rendered(folder: str = "/run/logs", **parameters: object) -> str:
    executor = WithoutSrun(folder=folder)
    executor.update_parameters(**parameters)
    text: str = executor._make_submission_file_text(executor._submitit_command_str, "")
    return text


def test_the_version_is_the_one_that_pyproject_asks_for() -> None:
    with (ROOT / "pyproject.toml").open("rb") as file:
        asked = tomllib.load(file)["project"]["dependencies"]
    assert [word for word in asked if word.startswith("submitit")] == ["submitit>=1.5.4,<1.6"]
    found = tuple(int(part) for part in version("submitit").split(".")[:3])
    assert (1, 5, 4) <= found < (1, 6)


@pytest.mark.parametrize(("name", "kind"), [("_submitit_command_str", property), ("affinity", classmethod)])
def test_what_we_override_is_there_and_of_the_same_kind(name: str, kind: type) -> None:
    assert isinstance(inspect.getattr_static(SlurmExecutor, name), kind)


def test_the_text_is_asked_for_in_the_same_words() -> None:
    found = inspect.signature(SlurmExecutor._make_submission_file_text)
    assert list(found.parameters) == ["self", "command", "uid"]


def test_affinity_is_where_a_missing_srun_would_be_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "/nowhere")
    with pytest.raises(RuntimeError, match="srun"):
        SlurmExecutor(folder="/run/logs")
    WithoutSrun(folder="/run/logs")


@pytest.mark.parametrize("device", ["cpu", "cuda"])
def test_every_parameter_that_we_set_is_a_known_one(device: str, tmp_path: Path) -> None:
    target = Target("script", "/train.py")
    spec = JobSpec("a", "a", tmp_path, target, device=device, time_limit_s=60)  # type: ignore[arg-type]
    ours = batch_script._parameters(spec, Options(gpu_request="gres"))
    assert set(ours) <= SlurmExecutor._valid_parameters()
    with pytest.raises(ValueError, match="Unavailable parameter"):
        rendered(tear_down=["exit 1"])


def test_our_step_stands_behind_srun_and_its_code_is_asked_for_at_once() -> None:
    text = rendered(setup=["first"], teardown=["rc=$?", "exit $rc"], srun_args=["--a", "b c"])
    [head, tail] = text.split("srun ")
    assert tail.startswith(
        "--unbuffered --output /run/logs/%j_%t_log.out --error /run/logs/%j_%t_log.err --a 'b c' "
    )
    after = [line for line in tail.splitlines()[1:] if line and not line.startswith("#")]
    assert tail.splitlines()[0].endswith(" our step")
    assert after == ["rc=$?", "exit $rc"], "nothing between that changes $?"
    assert "\nfirst\n" in head


def test_none_is_not_rendered_and_true_has_no_value() -> None:
    text = rendered(wckey=None, time=None, mem=None, additional_parameters={"requeue": True, "x": "a b"})
    options = [line for line in text.splitlines() if line.startswith("#SBATCH")]
    assert "#SBATCH --requeue" in options
    assert "#SBATCH --x='a b'" in options
    assert not [line for line in options if any(name in line for name in ("wckey", "time", "mem"))]


def test_the_output_file_is_named_by_job_and_task() -> None:
    # What launchers/_slurm/slurm_output.py looks for.
    assert JobPaths("/run/logs").stdout == Path("/run/logs/%j_%t_log.out")
    assert JobPaths("/run/logs", "12", 1).stdout == Path("/run/logs/12_1_log.out")
    assert "#SBATCH --output=/run/logs/%j_0_log.out\n" in rendered()
    assert "--error" not in rendered(stderr_to_stdout=True)
    assert SlurmJob is SlurmExecutor.job_class


def test_a_percent_sign_that_we_have_doubled_stays_so() -> None:
    assert "/run/100%%j/logs/%j_%t_log.out" in rendered(folder="/run/100%%j/logs")


def test_rendering_makes_nothing(tmp_path: Path) -> None:
    first = rendered(folder=str(tmp_path / "logs"), signal_delay_s=90)
    assert first == rendered(folder=str(tmp_path / "logs"), signal_delay_s=90)
    assert list(tmp_path.iterdir()) == []
    assert "#SBATCH --signal=USR2@90\n" in first
