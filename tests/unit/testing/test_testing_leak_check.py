"""The leak check, by a pytest run on a file whose tests leave something behind."""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

from dist_train.testing.process_tree import pid_is_alive

TESTS = """
import os, subprocess, sys, threading, time
from pathlib import Path

SLEEPER = [sys.executable, "-c", "import time; time.sleep(60)"]


def test_clean(tmp_path):
    (tmp_path / "file").write_text("allowed")
    subprocess.run([sys.executable, "-c", "pass"], check=True)


def test_child():
    subprocess.Popen(SLEEPER)


def test_fork_of_a_thread():
    def fork():
        if os.fork() == 0:
            time.sleep(60)
            os._exit(0)

    thread = threading.Thread(target=fork)
    thread.start()
    thread.join()


def test_orphan(tmp_path):
    start = "import subprocess, sys; subprocess.Popen(sys.argv[1:], start_new_session=True)"
    subprocess.run([sys.executable, "-c", start, *SLEEPER], check=True, stdout=subprocess.DEVNULL)


def test_variable():
    os.environ["LEFT_BEHIND"] = "yes"


def test_variable_is_gone_again():
    assert "LEFT_BEHIND" not in os.environ


def test_thread():
    threading.Thread(target=time.sleep, args=(4,), name="left-thread").start()


def test_daemon_thread_is_no_leak():
    threading.Thread(target=time.sleep, args=(4,), daemon=True).start()


def test_file():
    Path("left.txt").write_text("")


def test_directory(tmp_path):
    os.chdir(tmp_path)
"""

# No other plug-ins: loading them takes longer than these tests.
_PLAIN = {"PYTEST_ADDOPTS": "", "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"}


def run_pytest(folder: Path, text: str, *words: str, **environ: str) -> tuple[int, str]:
    """Exit code and output of pytest with our plugin on one file."""
    (folder / "test_inner.py").write_text(text)
    plugins = ("-p", "xdist", "-p", "dist_train.testing.plugin")
    argv = [sys.executable, "-m", "pytest", *plugins, "-q", "--leak-grace-s=0.3", *words, "test_inner.py"]
    done = subprocess.run(
        argv,
        cwd=folder,
        env={**os.environ, "CI": "", "DIST_TRAIN_ALLOW_SKIP": "", **_PLAIN, **environ},
        capture_output=True,
        text=True,
        timeout=90,
    )
    return done.returncode, done.stdout + done.stderr


@pytest.mark.parametrize(
    "workers", [pytest.param((), marks=pytest.mark.proof), ("-n", "2")], ids=["one process", "xdist"]
)
def test_each_leak_fails_its_own_test_and_is_named(tmp_path: Path, workers: tuple[str, ...]) -> None:
    code, said = run_pytest(tmp_path, TESTS, "--tb=short", "-rE", *workers)
    assert code == 1, said
    failed = {line.split("::")[1].split()[0] for line in said.splitlines() if line.startswith("ERROR test_")}
    leaky = {"test_child", "test_fork_of_a_thread", "test_orphan"}
    leaky |= {"test_variable", "test_thread", "test_file", "test_directory"}
    assert failed == leaky, said
    assert "environment variable set: LEFT_BEHIND='yes'" in said
    assert "thread still running: left-thread" in said
    assert "file left in the working directory: left.txt" in said
    assert "the working directory was left at" in said
    pids = [
        int(line.split("pid ")[1].split()[0]) for line in said.splitlines() if "process still running" in line
    ]
    assert len(set(pids)) == 3, said
    assert not any(pid_is_alive(pid) for pid in pids)


FOLDERS = textwrap.dedent("""
    import os
    from pathlib import Path

    def test_untouched():
        Path(os.environ["NOTES"], "first").write_text(os.getcwd())

    def test_has_a_cache():
        assert os.getcwd() == Path(os.environ["NOTES"], "first").read_text()
        Path("__pycache__").mkdir()

    def test_is_empty():
        assert os.listdir() == []
        os.chmod(".", 0o755)

    def test_has_its_rights():
        assert os.stat(".").st_mode & 0o777 == 0o700
        Path(os.environ["NOTES"], "last").write_text(os.getcwd())
    """)


def test_a_folder_is_the_next_tests_too_only_where_it_is_as_it_was_made(tmp_path: Path) -> None:
    code, said = run_pytest(tmp_path, FOLDERS, NOTES=str(tmp_path))
    assert code == 0, said
    assert not any(Path((tmp_path / name).read_text()).exists() for name in ("first", "last"))


NEEDS = textwrap.dedent("""
    from dist_train.testing.plugin import require

    def test_with_slurm():
        require("slurm", "no slurmctld on PATH")

    def test_without():
        pass
    """)


def test_a_missing_component_fails_in_ci(tmp_path: Path) -> None:
    code, said = run_pytest(tmp_path, NEEDS, CI="true")
    assert code == 1
    assert "slurm is missing: no slurmctld on PATH" in said
    assert "DIST_TRAIN_ALLOW_SKIP=slurm makes it a counted skip" in said


def test_an_allowed_skip_is_counted(tmp_path: Path) -> None:
    code, said = run_pytest(tmp_path, NEEDS, CI="true", DIST_TRAIN_ALLOW_SKIP="docker, slurm")
    assert code == 0
    assert "skipped as DIST_TRAIN_ALLOW_SKIP allows: 1 for want of slurm" in said


SKIPS = "import pytest\n@pytest.mark.skip(reason='no reason')\ndef test_a(): pass\ndef test_b(): pass\n"
SKIPS_ALL = "import pytest\npytest.skip('not here', allow_module_level=True)\n"


@pytest.mark.parametrize(
    ("text", "reason", "workers"),
    [(SKIPS, "no reason", ()), (SKIPS_ALL, "not here", ()), (SKIPS, "no reason", ("-n", "2"))],
    ids=["test", "module", "xdist"],
)
def test_any_other_skip_fails_the_session_in_ci_only(
    tmp_path: Path, text: str, reason: str, workers: tuple[str, ...]
) -> None:
    code, said = run_pytest(tmp_path, text, *workers, CI="true")
    assert code != 0, said
    assert "CI allows no skip" in said
    assert reason in said
    if not workers:
        assert run_pytest(tmp_path, text)[0] in (0, 5)  # 5: pytest's code for no test at all
