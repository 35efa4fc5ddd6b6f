"""`--sbatch-arg signal=…`: the site's signal is kept, and reaches the agents; else it is refused."""

from __future__ import annotations

import os
import signal
import subprocess
import time
from pathlib import Path

import pytest
from pydantic import ValidationError
from slurm_stand_ins import Commands, Job

from launchers._slurm.batch_script import notes, render
from launchers._slurm.slurm_options import Options

# The script gives it to its step, and a launcher that ends a run kills whatever has the run's id: that of the
# fixture is also the one of the local launcher's tests, which run in another process at the same time.
OWN_RUN = f"signal-{os.getpid()}"


@pytest.mark.parametrize("text", ["USR2@300", "TERM@120", "SIGUSR2", "R:USR2@60", "B:USR1@300", "RB:INT@9"])
def test_a_signal_of_the_site_is_rendered_and_shown(job: Job, text: str) -> None:
    options = Options(sbatch_arg=(f"signal={text}",))
    lines = [line for line in render(job(), options).decode().splitlines() if "--signal=" in line]
    assert lines[0] == f"#SBATCH --signal={text}"
    assert not [line for line in lines if line.startswith("#SBATCH") and "USR2@90" in line]
    [note] = notes(job(), options)
    assert text in note
    assert "not USR2@90" in note
    assert ("hands it on" in note) == ("B:" in text)


def test_a_signal_that_leaves_less_than_the_grace_says_so(job: Job) -> None:
    short = Options(sbatch_arg=("signal=USR2@10",))
    assert "less than the 30 s of resilience.grace_s" in notes(job(grace_s=30.0), short)[0]
    assert "less than" not in notes(job(grace_s=30.0), Options(sbatch_arg=("signal=USR2",)))[0]


def test_without_it_nothing_is_shown(job: Job) -> None:
    assert notes(job(), Options()) == ()


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("USR1@300", "signal=B:USR1@SECONDS"),
        ("B:TERM@60", "cannot hand TERM on"),
        ("B:KILL", "cannot hand KILL on"),
        ("10@60", "not of the form"),
        ("B:USR1@", "not of the form"),
        ("", "not of the form"),
    ],
)
def test_a_signal_that_would_kill_the_ranks_is_refused(text: str, reason: str) -> None:
    with pytest.raises(ValidationError, match="signal=") as caught:
        Options(sbatch_arg=(f"signal={text}",))
    assert reason in str(caught.value)


@pytest.mark.parametrize(("srun_code", "wanted"), [(0, 0), (41, 41), (138, 138)])
def test_the_script_hands_the_signal_on_and_keeps_the_steps_code(
    commands: Commands, job: Job, tmp_path: Path, srun_code: int, wanted: int
) -> None:
    commands.put_all("exit 0")
    commands.put("srun", f"touch {tmp_path}/up; while [ ! -e {tmp_path}/go ]; do /bin/sleep 0.05; done")
    commands.put("scancel", f"/usr/bin/touch {tmp_path}/go")
    (commands.folder / "srun").write_text((commands.folder / "srun").read_text() + f"exit {srun_code}\n")
    script = tmp_path / "job.sbatch"
    script.write_bytes(render(job(run_id=OWN_RUN), Options(sbatch_arg=("signal=B:USR1@300",))))
    with subprocess.Popen(
        ["/bin/bash", str(script)],
        env={"PATH": f"{commands.folder}:/usr/bin:/bin", "SLURM_JOB_ID": "7"},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
    ) as shell:
        deadline = time.monotonic() + 20
        while not (tmp_path / "up").exists():
            assert time.monotonic() < deadline
            time.sleep(0.02)
        time.sleep(0.1)
        shell.send_signal(signal.SIGUSR1)
        output = shell.communicate(timeout=30)[0].decode()
    calls = [call for call in commands.calls if call.startswith("scancel")]
    assert calls == ["scancel --signal=USR2 7"], (shell.returncode, output, commands.calls)
    # 128 and more without a verdict is a lost node: requeued.
    requeued = any(call.startswith("scontrol requeue") for call in commands.calls)
    assert requeued == (srun_code == 138), output
    assert shell.returncode == (79 if requeued else wanted), output


def test_a_handler_of_setup_replaces_ours(job: Job) -> None:
    text = render(job(), Options(sbatch_arg=("signal=B:USR1@300",), setup=("trap 'mine' USR1",))).decode()
    assert text.index("trap 'scancel") < text.index("trap 'mine' USR1")


def test_a_cancelled_job_still_ends_the_script(commands: Commands, job: Job, tmp_path: Path) -> None:
    commands.put_all("exit 0")
    commands.put("srun", f"touch {tmp_path}/up; exec /bin/sleep 30")
    script = tmp_path / "job.sbatch"
    script.write_bytes(render(job(run_id=OWN_RUN), Options(sbatch_arg=("signal=B:USR1@300",))))
    with subprocess.Popen(
        ["/bin/bash", str(script)],
        env={"PATH": f"{commands.folder}:/usr/bin:/bin", "SLURM_JOB_ID": "7"},
        start_new_session=True,
    ) as shell:
        deadline = time.monotonic() + 20
        while not (tmp_path / "up").exists():
            assert time.monotonic() < deadline
            time.sleep(0.02)
        shell.terminate()
        assert shell.wait(10) == -signal.SIGTERM
        os.killpg(shell.pid, signal.SIGKILL)
    assert not any(call.startswith("scontrol") for call in commands.calls)
