"""The batch script run by a real bash, with stand-ins for srun and scontrol."""

from __future__ import annotations

import os
import signal
import subprocess
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest
from slurm_stand_ins import Commands, Job

from dist_train.jobs import JobSpec
from launchers._slurm.batch_script import render
from launchers._slurm.slurm_options import Options

VERDICT = '"$DIST_TRAIN_RUN_DIR/control/verdict-$SLURM_JOB_ID.${SLURM_RESTART_COUNT:-0}"'
# As the real one: options first, then the step's words.
RUN_THE_STEP = 'while [ "$1" != env ] && [ "$1" != bash ]; do shift; done; "$@"'


@dataclass(frozen=True)
class Batch:
    """A node's shell that runs a job's script."""

    commands: Commands
    spec: JobSpec

    @property
    def control(self) -> Path:
        return self.spec.run_dir / "control"

    def start(self, restart: int = 0, python: str | None = None) -> subprocess.Popen[str]:
        """Begin the script in a session of its own."""
        script = self.spec.run_dir.parent / "job.sbatch"
        script.write_bytes(render(self.spec, Options(python=python)))
        variables = {"SLURM_JOB_ID": "7", **({"SLURM_RESTART_COUNT": str(restart)} if restart else {})}
        return subprocess.Popen(
            ["/bin/bash", str(script)],
            env={"PATH": f"{self.commands.folder}:/usr/bin:/bin", **variables},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )

    def run(self, restart: int = 0, python: str | None = None) -> subprocess.CompletedProcess[str]:
        """The script to its end."""
        with self.start(restart, python) as shell:
            out, err = shell.communicate(timeout=30)
        return subprocess.CompletedProcess("script", shell.returncode, out, err)

    def requeued(self) -> list[str]:
        """The calls of scontrol."""
        return [call for call in self.commands.calls if call.startswith("scontrol requeue")]


@pytest.fixture
def batch(commands: Commands, job: Job) -> Batch:
    """One node; srun and scontrol end well unless a test says otherwise."""
    commands.put_all("exit 0")
    return Batch(commands, job())


@pytest.fixture
def two_nodes(commands: Commands, job: Job) -> Batch:
    commands.put_all("exit 0")
    return Batch(commands, job(nodes=2))


def step(verdict: str | None, code: int) -> str:
    """A body of srun: what node 0 wrote, and srun's own code."""
    written = "" if verdict is None else f"echo {verdict} > {VERDICT}; "
    return f"{written}exit {code}"


@pytest.mark.proves(
    "The batch script ends with the code of the verdict, of a lost node, of a refused requeue",
    limits="real bash; srun and scontrol are stand-ins",
)
@pytest.mark.parametrize(
    ("verdict", "srun", "code", "requeued"),
    [
        ("0", 0, 0, False),
        ("41", 143, 41, False),
        ("1", 137, 1, False),
        ("75", 75, 75, True),
        ("75", 143, 75, True),
        ("79", 79, 79, True),
        ("79", 137, 79, True),
        ("76", 76, 76, False),
        ("77", 77, 77, False),
        ("78 the reason in words", 78, 78, False),
        (None, 0, 0, False),
        (None, 1, 1, False),
        (None, 127, 127, False),
        # Killed before node 0 could say anything: as lost as a node.
        (None, 137, 79, True),
        (None, 143, 79, True),
        # An agent killed while the nodes gathered: node 0 only saw srun's stop of the step.
        ("75", 137, 79, True),
        # A node that was found wrong says so itself, while node 0 only saw the stop.
        ("75", 78, 78, False),
        # Another node's own account of the attempt does not take the saved one away.
        ("75", 79, 75, True),
        ("41", 78, 41, False),
    ],
)
def test_the_scripts_code_and_who_is_requeued(
    batch: Batch, verdict: str | None, srun: int, code: int, requeued: bool
) -> None:
    batch.commands.put("srun", step(verdict, srun))
    done = batch.run()
    assert done.returncode == code, done.stderr
    assert batch.requeued() == (["scontrol requeue 7"] if requeued else [])
    assert "resume" not in done.stderr


@pytest.mark.parametrize("verdict", ["75", "79"])
def test_a_refused_requeue_keeps_the_code_and_prints_the_resume_command(batch: Batch, verdict: str) -> None:
    batch.commands.put("srun", step(verdict, 143))
    batch.commands.refuses("scontrol", "Requested operation is presently disabled for job 7")
    done = batch.run()
    assert done.returncode == int(verdict)
    assert f"[dist-train] not requeued; go on with: dist-train resume {batch.spec.run_dir}" in done.stderr
    assert "presently disabled" in done.stderr, "Slurm's own words too"


@pytest.mark.parametrize(("newest", "requeued"), [(0, 1), (1, 0)])
def test_an_old_start_on_a_lost_node_does_not_requeue_the_new_one(
    batch: Batch, newest: int, requeued: int
) -> None:
    batch.commands.put("srun", step("79", 79))
    batch.commands.says("scontrol", f"   Requeue=1 Restarts={newest} BatchFlag=1 Reboot=0 ExitCode=0:0\n")
    done = batch.run()
    assert done.returncode == 79
    assert len(batch.requeued()) == requeued
    assert ("this start gives way" in done.stderr) == (newest > 0)


def test_a_verdict_of_another_start_is_not_this_ones(batch: Batch) -> None:
    batch.control.mkdir(parents=True)
    (batch.control / "verdict-7.0").write_text("75\n")
    batch.commands.put("srun", "exit 3")
    assert batch.run(restart=1).returncode == 3
    assert batch.requeued() == []
    batch.commands.put("srun", step("41", 143))
    assert batch.run(restart=2).returncode == 41


@pytest.mark.parametrize("allowed", [0, 1, 2])
def test_lost_without_a_verdict_it_is_requeued_as_often_as_restarts_are_allowed(
    batch: Batch, job: Job, allowed: int
) -> None:
    bounded = Batch(batch.commands, job(max_restarts=allowed))
    batch.commands.put("srun", "exit 137")
    codes = [bounded.run(restart).returncode for restart in range(allowed + 2)]
    assert codes == [79] * allowed + [137, 137]
    assert len(bounded.requeued()) == allowed


@pytest.mark.parametrize("allowed", [0, 1, 2])
def test_every_requeue_after_a_loss_is_counted(batch: Batch, job: Job, allowed: int) -> None:
    bounded = Batch(batch.commands, job(max_restarts=allowed))
    batch.commands.put("srun", step("79", 79))
    ended = [bounded.run(restart) for restart in range(allowed + 2)]
    assert [done.returncode for done in ended] == [79] * allowed + [69, 69]
    assert len(bounded.requeued()) == allowed
    assert f"all {allowed} restarts are used up" in ended[-1].stderr


def test_losses_with_and_without_a_verdict_count_together(batch: Batch, job: Job) -> None:
    bounded = Batch(batch.commands, job(max_restarts=2))
    codes = []
    for restart, srun in enumerate((step("79", 79), "exit 137", step("79", 137), "exit 79")):
        batch.commands.put("srun", srun)
        codes.append(bounded.run(restart).returncode)
    assert codes == [79, 79, 69, 69]
    assert len(bounded.requeued()) == 2


def test_preemptions_are_requeued_without_end(batch: Batch, job: Job) -> None:
    bounded = Batch(batch.commands, job(max_restarts=0))
    batch.commands.put("srun", step("75", 75))
    assert [bounded.run(restart).returncode for restart in range(3)] == [75] * 3
    assert len(bounded.requeued()) == 3


def write_and_wait(batch: Batch) -> str:
    """A step that saves when TERM comes, as the agents do."""
    save = f"echo 75 > {VERDICT}; exit 75"
    return f"trap '{save}' TERM; touch {batch.commands.folder}/running; while :; do /bin/sleep 0.05; done"


def wait_for_step(batch: Batch) -> int:
    """Pid of srun, once it runs."""
    running = batch.commands.folder / "running"
    deadline = time.monotonic() + 10
    while not running.exists():
        assert time.monotonic() < deadline
        time.sleep(0.02)
    return int((batch.commands.folder / "pid").read_text())


def test_a_cancel_ends_the_shell_and_nothing_requeues(batch: Batch) -> None:
    batch.commands.put("srun", f"echo $$ > {batch.commands.folder}/pid; {write_and_wait(batch)}")
    with batch.start() as shell:
        wait_for_step(batch)
        os.killpg(shell.pid, signal.SIGTERM)  # scancel: the step and the batch shell
        shell.communicate(timeout=10)
    assert shell.returncode == -signal.SIGTERM
    assert batch.requeued() == []


def test_a_preemption_ends_the_step_alone_and_the_shell_requeues(batch: Batch) -> None:
    batch.commands.put("srun", f"echo $$ > {batch.commands.folder}/pid; {write_and_wait(batch)}")
    with batch.start() as shell:
        os.kill(wait_for_step(batch), signal.SIGTERM)
        shell.communicate(timeout=10)
    assert shell.returncode == 75
    assert batch.requeued() == ["scontrol requeue 7"]


SIGNALS = 1 << signal.SIGUSR2 - 1 | 1 << signal.SIGTERM - 1


def masks(batch: Batch) -> dict[str, int]:
    """SigBlk and SigIgn of the process in python's place."""
    batch.commands.put("srun", RUN_THE_STEP)
    batch.commands.put(
        "python3", f'echo "$*" > {batch.commands.folder}/argv; exec /bin/cat /proc/self/status'
    )
    done = batch.run(python="python3")
    assert done.returncode == 0, done.stderr
    masks = dict(line.split(":\t") for line in done.stdout.splitlines() if line.startswith("Sig"))
    return {name: int(masks[name], 16) & SIGNALS for name in ("SigBlk", "SigIgn")}


def test_an_early_signal_waits_for_the_agent(batch: Batch) -> None:
    assert masks(batch) == {"SigBlk": SIGNALS, "SigIgn": 0}
    argv = (batch.commands.folder / "argv").read_text()
    assert argv.startswith("-u -P -m dist_train.agent --device cpu")


def test_old_coreutils_cannot_block_so_it_is_ignored(batch: Batch) -> None:
    refusal = '[[ "$1" = --block-signal* ]] && { echo "unrecognized option" >&2; exit 125; }'
    batch.commands.put("env", f'{refusal}; exec /usr/bin/env "$@"')
    assert masks(batch) == {"SigBlk": 0, "SigIgn": SIGNALS}
    argv = (batch.commands.folder / "argv").read_text()
    assert argv.startswith("-u -P -m dist_train.agent --device cpu"), "no word is lost"


CONFIG = "name: a\nnote: it's $HOME\n"


@pytest.fixture
def configured(commands: Commands, job: Job) -> Callable[[str], Batch]:
    commands.put_all("exit 0")
    return lambda text: Batch(commands, job(config_yaml=text))


def test_the_config_is_written_where_there_is_none(configured: Callable[[str], Batch]) -> None:
    batch = configured(CONFIG)
    assert batch.run().returncode == 0
    written = batch.spec.run_dir / "config.yaml"
    assert written.read_text() == CONFIG
    assert written.stat().st_mode & 0o777 == 0o600
    assert batch.run(restart=1).returncode == 0, "the same again"


@pytest.mark.parametrize("end", ["", "\n", "\n\n"])
def test_how_a_config_ends_makes_no_difference(configured: Callable[[str], Batch], end: str) -> None:
    batch = configured("name: a" + end)
    batch.spec.run_dir.mkdir()
    (batch.spec.run_dir / "config.yaml").write_text("name: a\n")
    assert batch.run().returncode == 0


def test_another_config_is_another_run(configured: Callable[[str], Batch]) -> None:
    batch = configured(CONFIG)
    batch.spec.run_dir.mkdir()
    (batch.spec.run_dir / "config.yaml").write_text(CONFIG.replace("a", "b"))
    done = batch.run()
    assert done.returncode == 78
    assert "is not the config of this script" in done.stderr
    assert batch.commands.calls == [], "nothing was started"


def test_the_run_directory_is_made_private_with_a_key(batch: Batch) -> None:
    assert batch.run().returncode == 0
    for name in ("attempts", "checkpoints", "control", "logs"):
        assert (batch.spec.run_dir / name).stat().st_mode & 0o777 == 0o700
    key = batch.control / "key"
    assert (len(key.read_bytes()), key.stat().st_mode & 0o777) == (32, 0o600)
    before = key.read_bytes()
    batch.run(restart=1)
    assert key.read_bytes() == before


def blind_step(*names: str) -> str:
    said = "; ".join(f"echo 'blind: {name}'" for name in names)
    return f'[ "$1" = --mpi=none ] && {{ echo Welcome to the site; {said or ":"}; exit; }}; exit 3'


def test_nodes_that_do_not_see_the_run_directory_are_named_before_anything_starts(two_nodes: Batch) -> None:
    two_nodes.commands.put("srun", blind_step("n2", "n1", "n2"))
    done = two_nodes.run()
    assert done.returncode == 78
    assert f"the run directory {two_nodes.spec.run_dir} is not shared by: n1 n2" in done.stderr
    verdict = (two_nodes.control / "verdict-7.0").read_text()
    assert verdict.strip() == "78 the run directory is not shared by: n1 n2"
    assert [call for call in two_nodes.commands.calls if "unbuffered" in call] == []
    assert two_nodes.requeued() == []


def test_what_a_prolog_prints_names_no_node(two_nodes: Batch) -> None:
    two_nodes.commands.put("srun", blind_step())
    assert two_nodes.run().returncode == 3, "the step's own code: it was started"


def test_each_node_looks_for_the_key(two_nodes: Batch) -> None:
    seeing = 'SLURMD_NODENAME=n1 "$@"; SLURMD_NODENAME=n2 "${@:1:4}" /nowhere'
    two_nodes.commands.put("srun", f'[ "$1" = --mpi=none ] || exit 3; shift; {seeing}')
    two_nodes.commands.put("sleep", "exit 0")
    done = two_nodes.run()
    assert (done.returncode, "not shared by: n2" in done.stderr) == (78, True)
    assert two_nodes.commands.calls.count("sleep 0.5") == 20, "10 s, for NFS"
