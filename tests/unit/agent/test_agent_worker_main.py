"""The first code of a rank, by itself."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from started_rank import run_forked

WAITS = """
import os, signal
os.kill(os.getpid(), signal.SIGINT)
signal.sigtimedwait([], 10)
"""


def test_a_rank_can_be_interrupted_though_its_shell_ignores_sigint(tmp_path: Path) -> None:
    """`dist-train launch … &` in a script: POSIX has the shell ignore SIGINT for it."""
    script = tmp_path / "train.py"
    script.write_text(WAITS)
    rank = [
        sys.executable,
        "-P",
        "-m",
        "dist_train.agent.workers.worker_main",
        str(os.getpid()),
        "script",
        str(script),
    ]
    in_background = ["sh", "-c", 'trap "" INT; exec "$@"', "sh", *rank]
    done = subprocess.run(in_background, capture_output=True, text=True, timeout=30)
    assert (done.returncode, "KeyboardInterrupt" in done.stderr) == (130, True), done


@pytest.mark.parametrize("last", ["", "raise SystemExit"])
def test_a_script_whose_last_losses_were_not_finite_ends_with_73(tmp_path: Path, last: str) -> None:
    script = (
        "import torch, dist_train as dt\n"
        'run = dt.init(seed=0, device="cpu")\n'
        "run.check_finite(torch.tensor(1.0))\n"
        'run.check_finite(torch.tensor(float("nan")))\n' + last
    )
    code, said = run_forked(tmp_path, script)
    assert (code, "call 2: the loss is not finite" in said) == (73, True), said


def test_a_scripts_globals_are_those_of_a_plain_python(tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text(
        "for name in sorted(globals()):\n"
        "    kind = type(globals()[name]).__name__\n"
        "    print(name, kind, globals()[name] if kind == 'str' else '')\n"
        "print(__loader__.get_data(__file__)[:8])\n"
    )
    rank = [sys.executable, "-P", "-m", "dist_train.agent.workers.worker_main", str(os.getpid()), "script"]
    plain, ours = (
        subprocess.run([*words, str(script)], capture_output=True, text=True, timeout=60).stdout
        for words in ([sys.executable], rank)
    )
    assert "SourceFileLoader" in plain
    assert ours == plain


def _both(tmp_path: Path, script: Path, **environ: str) -> list[str]:
    rank = [sys.executable, "-P", "-m", "dist_train.agent.workers.worker_main", str(os.getpid()), "script"]
    done = [
        subprocess.run(
            [*words, str(script), "word"],
            capture_output=True,
            text=True,
            timeout=60,
            cwd=tmp_path,
            env={**os.environ, **environ},
        )
        for words in ([sys.executable], rank)
    ]
    return [f"{one.returncode} {one.stdout}{one.stderr.splitlines()[-1:]}" for one in done]


MAIN = """
import sys, beside
print(__name__, __package__, beside.what, sys.argv[1:], sys.path[0] == sys.argv[0])
def spec(): return __spec__.name
print(spec())
"""


def test_an_archive_runs_its_main_as_under_a_plain_python(tmp_path: Path) -> None:
    folder = tmp_path / "job"
    folder.mkdir()
    (folder / "__main__.py").write_text(MAIN)
    (folder / "beside.py").write_text("what = 'beside'")
    plain, ours = _both(tmp_path, Path(shutil.make_archive(str(tmp_path / "packed"), "zip", folder)))
    assert plain.startswith("0 __main__  beside ['word'] True")
    assert ours == plain


@pytest.mark.parametrize("safe", ["", "1"])
def test_the_scripts_folder_is_on_the_path_as_under_a_plain_python(tmp_path: Path, safe: str) -> None:
    script = tmp_path / "train.py"
    script.write_text("import beside")
    (tmp_path / "beside.py").write_text("print('beside')")
    plain, ours = _both(tmp_path, script, PYTHONSAFEPATH=safe)
    assert ("beside" in plain, plain[0]) == (True, "1" if safe else "0")
    assert ours == plain


@pytest.mark.parametrize("code", ["2**70", "-(2**70)", "2**63 - 1", "-1", "300", "-(2**63)"])
def test_an_exit_code_that_is_no_byte_is_the_interpreters(tmp_path: Path, code: str) -> None:
    script = tmp_path / "train.py"
    script.write_text(f"raise SystemExit({code})")
    plain, ours = _both(tmp_path, script)
    assert ours == plain
