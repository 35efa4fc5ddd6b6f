"""Run the life-cycle tests on a site's own Slurm cluster; `make test-slurm-site PARTITION=…` calls it.

It fails where something is missing, and names it: nothing is skipped. Jobs are cancelled and the folder is
removed at the end, also after a failure, Ctrl-C or SIGTERM.
"""

from __future__ import annotations

import argparse
import os
import secrets
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from types import FrameType

ROOT = Path(__file__).resolve().parent.parent
TESTS = ROOT / "tests" / "slurm" / "test_slurm_life_cycle.py"
COMMANDS = ("sbatch", "squeue", "scancel", "scontrol", "sinfo")
NODES = 2
_END_S = 60.0
_GONE_S = 120.0


def main() -> int:
    """Parse arguments, check the site, run the tests, clean up; 0 if all tests passed."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--partition", default="", help="where jobs go")
    parser.add_argument("--account", default="", help="the account that they are charged to")
    parser.add_argument("--folder", default=str(ROOT / "build"), help="a folder that all nodes see")
    parser.add_argument("--arguments", default="", help="further options of `dist-train launch`")
    parser.add_argument("--queue-s", type=float, default=1800.0, help="how long a job may wait for nodes")
    parser.add_argument("pytest_args", nargs="*", help="after --: for pytest")
    options = parser.parse_args()
    missing = what_is_missing(options.partition, Path(options.folder))
    for line in missing:
        print(f"[site] missing: {line}", file=sys.stderr)
    if missing:
        return 1
    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, interrupt)
    folder = Path(options.folder).resolve() / f"site-{secrets.token_hex(4)}"
    environ = {
        **os.environ,
        "DIST_TRAIN_SITE_FOLDER": str(folder),
        "DIST_TRAIN_SITE_PARTITION": options.partition,
        "DIST_TRAIN_SITE_ACCOUNT": options.account,
        "DIST_TRAIN_SITE_ARGS": options.arguments,
        "DIST_TRAIN_SITE_QUEUE_S": str(options.queue_s),
    }
    code = 1
    try:
        folder.mkdir(parents=True, mode=0o700)
        print(f"[site] runs are in {folder}, jobs are called {folder.name}-…", flush=True)
        code = run_tests(environ, options.pytest_args)
    except KeyboardInterrupt:
        print("\n[site] interrupted", file=sys.stderr)
        code = 130
    finally:
        # A second Ctrl-C must not interrupt the cleanup.
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            signal.signal(number, signal.SIG_IGN)
        left = clean_up(folder)
    for line in left:
        print(f"[site] left behind: {line}", file=sys.stderr)
    return code or int(bool(left))


def interrupt(number: int, frame: FrameType | None) -> None:
    """Treat the signal as Ctrl-C."""
    raise KeyboardInterrupt


def what_is_missing(partition: str, folder: Path) -> list[str]:
    """What the tests need and the site does not have, one line for each."""
    absent = [name for name in COMMANDS if shutil.which(name) is None]
    if absent:
        return [f"{', '.join(absent)}: not on PATH; run this on a login node"]
    found = []
    ping = slurm("scontrol", "ping")
    if ping.returncode != 0 or " is UP" not in ping.stdout:
        found.append(f"Slurm's controller does not answer: {(ping.stdout + ping.stderr).strip()}")
    elif not partition:
        names = slurm("sinfo", "-h", "-o", "%R").stdout.split()
        found.append(f"PARTITION=…, one of: {', '.join(sorted(set(names)))}")
    elif (count := nodes_of(partition)) < NODES:
        found.append(f"{NODES} nodes in partition {partition!r}: it has {count} (`sinfo -p {partition}`)")
    try:
        folder.mkdir(parents=True, exist_ok=True)
        probe = folder / f".probe-{secrets.token_hex(4)}"
        probe.touch()
        probe.unlink()
    except OSError as error:
        found.append(f"a folder to write to: {error}; give FOLDER=…, one that all nodes see")
    return found


def nodes_of(partition: str) -> int:
    """How many nodes a partition has; 0 for one that does not exist."""
    words = slurm("sinfo", "-h", "-p", partition, "-o", "%D").stdout.split()
    return sum(int(word) for word in words if word.isdigit())


def run_tests(environ: dict[str, str], pytest_args: Sequence[str]) -> int:
    """pytest on the life-cycle tests alone, one at a time; after Ctrl-C it gets some time to end."""
    argv = [sys.executable, "-m", "pytest", "-v", "-p", "no:cacheprovider", "-m", "", str(TESTS)]
    with subprocess.Popen([*argv, *pytest_args], env=environ, cwd=ROOT, start_new_session=True) as tests:
        try:
            return tests.wait()
        except KeyboardInterrupt:
            os.killpg(tests.pid, signal.SIGINT)
            try:
                tests.wait(_END_S)
            except (subprocess.TimeoutExpired, KeyboardInterrupt):
                pass
            raise
        finally:
            try:
                os.killpg(tests.pid, signal.SIGKILL)
            except ProcessLookupError:
                pass


def clean_up(folder: Path) -> list[str]:
    """Cancel the jobs of the folder's name, wait until they are gone, remove it; what is left."""
    deadline = time.monotonic() + _GONE_S
    while jobs := jobs_of(folder.name):
        slurm("scancel", *jobs)
        if time.monotonic() > deadline:
            break
        time.sleep(1)
    shutil.rmtree(folder, ignore_errors=True)
    for _ in range(20):  # NFS may keep a file that a process has open
        if not folder.exists():
            break
        time.sleep(0.5)
        shutil.rmtree(folder, ignore_errors=True)
    return [*(f"job {job}" for job in jobs), *([str(folder)] if folder.exists() else [])]


def jobs_of(prefix: str) -> list[str]:
    """Ids of this user's jobs whose names begin with the prefix."""
    lines = slurm("squeue", "-h", "-u", str(os.getuid()), "-o", "%A %j").stdout.splitlines()
    return [line.split()[0] for line in lines if line.split()[1].startswith(f"{prefix}-")]


def slurm(*argv: str) -> subprocess.CompletedProcess[str]:
    """One of Slurm's commands, with a time limit."""
    try:
        return subprocess.run(argv, capture_output=True, text=True, timeout=60, check=False)
    except subprocess.TimeoutExpired:
        return subprocess.CompletedProcess(argv, 1, "", f"{argv[0]}: no answer within 60 s")


if __name__ == "__main__":
    sys.exit(main())
