"""The batch script as text: it has what was requested, and nothing else."""

from __future__ import annotations

import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest
from slurm_stand_ins import Job

from dist_train.errors import ConfigError
from dist_train.jobs import JobSpec, Target
from launchers._slurm.batch_script import render
from launchers._slurm.slurm_options import Options


def text_of(spec: JobSpec, **options: object) -> str:
    return render(spec, Options(**options)).decode()  # type: ignore[arg-type]


def asked(spec: JobSpec, **options: object) -> dict[str, str]:
    """The script's #SBATCH lines, as sbatch reads them."""
    found = {}
    for line in text_of(spec, **options).splitlines():
        if line.startswith("#SBATCH "):
            [word] = shlex.split(line.removeprefix("#SBATCH "))
            name, _, value = word.removeprefix("--").partition("=")
            found[name] = value
    return found


def step(spec: JobSpec, **options: object) -> list[str]:
    """The arguments of the srun line."""
    lines = text_of(spec, **options).partition("export SUBMITIT_EXECUTOR=slurm\n")[2]
    return shlex.split(lines.partition("\n\n\n# teardown")[0])


def test_only_given_options_are_rendered(job: Job, tmp_path: Path) -> None:
    assert asked(job()) == {
        "cpus-per-task": "2",
        "job-name": "digits",
        "nodes": "1",
        "ntasks-per-node": "1",
        "open-mode": "append",
        "output": f"{tmp_path}/run/logs/%j_0_log.out",
        "requeue": "",
        "signal": "USR2@90",
    }


def test_names_of_the_site(job: Job) -> None:
    names = {"partition": "gpu", "account": "a", "qos": "high", "constraint": "a100&ib"}
    names |= {"exclude": "n[1-2]", "reservation": "r", "clusters": "c1"}
    found = asked(job(), **names, sbatch_arg=("exclusive", "comment=two words"))
    assert found.items() >= {**names, "exclusive": "", "comment": "two words"}.items()


@pytest.mark.parametrize(
    ("options", "found"),
    [
        ({}, {"gpus-per-node": "2"}),
        ({"gpu_type": "a100"}, {"gpus-per-node": "a100:2"}),
        ({"gpu_request": "gres"}, {"gres": "gpu:2"}),
        ({"gpu_request": "gres", "gpu_type": "a100"}, {"gres": "gpu:a100:2"}),
        ({"gpu_request": "none"}, {}),
        ({"gpu_request": "none", "gpu_type": "a100"}, {}),
    ],
)
def test_gpus_are_requested_in_the_sites_form(
    job: Job, options: dict[str, str], found: dict[str, str]
) -> None:
    lines = asked(job(device="cuda"), **options)
    assert {name: value for name, value in lines.items() if "gpu" in name or "gres" in name} == found


def test_a_job_on_cpus_requests_no_gpu(job: Job) -> None:
    assert not {"gpus-per-node", "gres"} & set(asked(job(), gpu_type="a100"))


@pytest.mark.parametrize(
    ("changes", "cores"),
    [
        ({"device": "cpu", "threads_per_rank": 3}, "6"),
        ({"device": "cpu", "threads_per_rank": 3, "resources": (("cpus_per_gpu", "8"),)}, "16"),
        ({"device": "cuda", "resources": (("cpus_per_gpu", "8"),)}, "16"),
        ({"device": "cuda", "threads_per_rank": 3}, None),
    ],
)
def test_the_one_task_of_a_node_has_the_cores_of_its_ranks(
    job: Job, changes: dict[str, object], cores: str | None
) -> None:
    assert asked(job(**changes)).get("cpus-per-task") == cores
    # srun does not take them from the job by itself.
    assert f"--cpus-per-task={cores or '$SLURM_CPUS_ON_NODE'}" in step(job(**changes))


@pytest.mark.parametrize(
    ("seconds", "limit", "signal"),
    [
        (None, None, "USR2@90"),
        (86400, "1440", "USR2@90"),
        (600, "10", "USR2@90"),
        (90, "1:30", "USR2@45"),
        (61, "1:01", "USR2@30"),
        (1, "0:01", "USR2@1"),
    ],
)
def test_time_limits_and_when_they_are_signalled(
    job: Job, seconds: int | None, limit: str | None, signal: str
) -> None:
    lines = asked(job(time_limit_s=seconds))
    assert (lines.get("time"), lines["signal"]) == (limit, signal)


def test_a_long_grace_is_requested_whole(job: Job) -> None:
    assert asked(job(grace_s=299.5, time_limit_s=86400))["signal"] == "USR2@360"


def test_memory_is_passed_on(job: Job) -> None:
    assert asked(job(resources=(("mem", "64G"),)))["mem"] == "64G"


@pytest.mark.parametrize(
    ("word", "lines"), [("yes", {"requeue"}), ("no", {"no-requeue"}), ("site", set[str]())]
)
def test_requeue(job: Job, word: str, lines: set[str]) -> None:
    assert {"requeue", "no-requeue"} & set(asked(job(), requeue=word)) == lines


def test_the_step_is_one_agent_per_node_with_blocked_signals(job: Job, tmp_path: Path) -> None:
    words = step(job())
    output = ["--output", f"{tmp_path}/run/logs/%j_%t_log.out"]
    assert words[:4] == ["srun", "--unbuffered", *output]
    assert {"--kill-on-bad-exit=1", "--mpi=none"} < set(words)
    shield = words.index("${shield[@]}")
    assert words[shield + 1 : shield + 6] == ["$python", "-u", "-P", "-m", "dist_train.agent"]
    assert words[-4:] == ["script", "/home/me/train.py", "--lr", "0.1"]


def test_the_prefix_is_between_the_shield_and_python(job: Job) -> None:
    prefix = ("apptainer", "exec", "--bind", "/my data", "$image.sif")
    words = step(job(), exec_prefix=prefix)
    shield = words.index("${shield[@]}")
    assert tuple(words[shield + 1 : shield + 7]) == (*prefix, "$python")
    assert "'$image.sif'" in text_of(job(), exec_prefix=prefix), "no shell expands it"


def test_python_is_this_one_unless_another_is_named(job: Job) -> None:
    assert f"\npython={sys.executable}\n" in text_of(job())
    assert "\npython='/my env/bin/python'\n" in text_of(job(), python="/my env/bin/python")


def test_setup_lines_are_unchanged_before_the_step(job: Job) -> None:
    lines = ("module load cuda/12", "export X=$(hostname)")
    text = text_of(job(), setup=lines)
    assert "\n".join(["", *lines, ""]) in text
    assert text.index(lines[1]) < text.index("\nsrun --unbuffered")


HOSTILE = "a 'b' \"c\" $HOME `date` $(id) \\ \n;é#"


def test_exports_arrive_unchanged(job: Job) -> None:
    text = text_of(job(env=(("MOTTO", HOSTILE), ("EMPTY", ""))))
    exports = re.search(r"^export MOTTO=.*?(?=^export DIST_TRAIN_RDZV)", text, re.MULTILINE | re.DOTALL)
    assert exports is not None
    script = f'{exports[0]}\nprintf \'%s\' "$MOTTO"; [ -n "${{EMPTY+x}}" ]'
    assert bash(script).stdout == HOSTILE


def test_arguments_of_the_script_arrive_unchanged(job: Job) -> None:
    target = Target("script", "/my folder/train.py", (HOSTILE, "", "--x=*"), "/my folder")
    assert step(job(target=target))[-4:] == ["/my folder/train.py", HOSTILE, "", "--x=*"]


@pytest.mark.parametrize("name", ["python", "shield", "verdict", "rc"])
def test_a_variable_of_the_script_itself_cannot_be_set_by_env(job: Job, name: str) -> None:
    with pytest.raises(ConfigError, match=f"--env {name}: the job's script has a variable of this name"):
        text_of(job(env=((name, "1"),)))


def test_a_percent_sign_is_a_pattern_of_slurm_and_is_escaped(job: Job, tmp_path: Path) -> None:
    odd = tmp_path / "100%j and more"
    assert asked(job(run_dir=odd))["output"] == f"{tmp_path}/100%%j and more/logs/%j_0_log.out"
    assert f"{tmp_path}/100%%j and more/logs/%j_%t_log.out" in step(job(run_dir=odd))
    assert f"export DIST_TRAIN_RUN_DIR='{odd}'\n" in text_of(job(run_dir=odd))


@pytest.mark.parametrize("odd", ["'", '"', "\\", "\n", "\t", "$", "`", "#", "\x7f"])
def test_a_run_directory_that_slurm_cannot_open_is_refused(job: Job, odd: str) -> None:
    with pytest.raises(ConfigError, match="Slurm itself opens the job's output file") as caught:
        text_of(job(run_dir=Path(f"/runs/a{odd}b")))
    assert repr(odd) in caught.value.what
    assert "--run-dir" in str(caught.value)


def test_the_config_is_part_of_the_script(job: Job) -> None:
    config = "name: it's\nnote: $HOME `x`\nEND-OF-CONFIG\n"
    text = text_of(job(config_yaml=config))
    function = re.search(r"^config\(\) \{.*?^\}$", text, re.MULTILINE | re.DOTALL)
    assert function is not None
    assert bash(f"{function[0]}\nconfig").stdout == config


def test_a_job_without_a_config_has_none(job: Job) -> None:
    assert "config.yaml" not in text_of(job())


def test_only_with_several_nodes_the_run_directory_is_checked(job: Job) -> None:
    assert "blind" not in text_of(job())
    assert 'seen=$(srun --mpi=none bash -c "$see"' in text_of(job(nodes=2))


def test_rendering_is_pure(job: Job, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first = text_of(job(nodes=2))
    monkeypatch.setenv("PATH", "/nowhere")
    monkeypatch.setenv("SBATCH_PARTITION", "other")
    assert text_of(job(nodes=2)) == first
    assert list(tmp_path.iterdir()) == [], "nothing is made"


def test_the_script_never_traps_term(job: Job) -> None:
    traps = [line for line in text_of(job(nodes=2)).splitlines() if re.search(r"\btrap\b", line)]
    assert [line.partition("||")[2].strip() for line in traps] == [
        'shield=(bash -c \'trap "" USR2 TERM; exec "$@"\' shield)'
    ], "but for the tasks, where coreutils are old"


@pytest.mark.parametrize("nodes", [1, 2])
@pytest.mark.parametrize("config", [None, "a: 'b'\n"])
@pytest.mark.parametrize("device", ["cpu", "cuda"])
@pytest.mark.parametrize("odd", ["plain", HOSTILE])
def test_bash_accepts_every_script(job: Job, nodes: int, config: str | None, device: str, odd: str) -> None:
    target = Target("script", "/a b/train.py", (odd,), "/a b")
    spec = job(nodes=nodes, config_yaml=config, device=device, target=target, env=(("X", odd),))
    text = text_of(spec, setup=("module load cuda",), exec_prefix=("wrap", odd))
    checked = subprocess.run(["bash", "-n"], input=text, capture_output=True, text=True, check=False)
    assert (checked.returncode, checked.stderr) == (0, "")


def bash(text: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(["bash", "-c", text], capture_output=True, text=True, check=True)
