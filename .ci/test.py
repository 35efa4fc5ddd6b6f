"""Run ruff, mypy and every group of tests, then print a table with the seconds and the slowest tests.

`make test` calls it.

--fast: unit and architecture only, without the tests that start several processes.
--lint: ruff and mypy only. --proof: only the longer tests, which CI runs too; --soak: the soak tests.
--gpu: only the tests that need a GPU; without one it fails. All other runs of whole groups do these tests
where there is a GPU, and say in their table how many were not run where there is none.
Arguments after `--` go to pytest.
"""

from __future__ import annotations

import argparse
import os
import re
import subprocess
import sys
import tempfile
import threading
import time
import xml.etree.ElementTree as ElementTree
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import psutil

from dist_train.testing.required_components import apt_may_run

ROOT = Path(__file__).resolve().parent.parent
PACKAGES = ROOT / ".ci" / "debian-packages.txt"
# Workers per group (tests/forked_workers): as many as keep two cores busy. Tests with the marker `alone` run
# one at a time.
GROUPS = {"unit": 3, "architecture": 2, "contract": 2, "multiprocess": 3, "slurm": 5, "k8s": 4}
FAST = ("unit", "architecture")
# No process of these is forked from one that has imported torch; elsewhere most ranks and launches are.
SPAWNED = {"DIST_TRAIN_TESTING_COLD": "1", "DIST_TRAIN_START_METHOD": "spawn"}
SAMPLE = ("test_plain_script.py", "test_exit_codes.py")
# As in pyproject.toml, where it is for those who call pytest.
DEFAULT = "not proof and not soak and not gpu"
# Proofs and soaks check time bounds, so fewer at once.
LONG_WORKERS = 3
# The slowest tests: of each group as it ends, and of all in the table.
SLOWEST_OF_GROUP, SLOWEST_OF_ALL = 15, 10
# Far above what any group needs: a hang must end, even if pytest hangs.
LIMIT_S = 2700.0
SOAK_LIMIT_S = 4 * 3600.0


@dataclass(frozen=True)
class Outcome:
    """One row of the table."""

    name: str
    good: bool
    seconds: float
    summary: str
    # Of single tests, with their set-up: seconds and name.
    tests: tuple[tuple[float, str], ...] = ()


def main() -> int:
    """Run the selected checks and groups; 0 if everything passed."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--fast", action="store_true")
    parser.add_argument("--lint", action="store_true")
    parser.add_argument("--proof", dest="long", action="store_const", const="proof")
    parser.add_argument("--soak", dest="long", action="store_const", const="soak")
    parser.add_argument("--gpu", action="store_true")
    parser.add_argument("pytest_args", nargs="*")
    options = parser.parse_args()
    os.chdir(ROOT)
    # Tests start hundreds of processes: without bytecode each compiles dist_train again (0.15 s).
    os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
    # A test's processes share the cores; more threads would only slow each other down.
    os.environ["OMP_NUM_THREADS"] = "1"
    began = time.monotonic()
    outcomes: list[Outcome] = []
    if options.gpu:
        outcomes = [gpu_tests(options.pytest_args, needed=True)]
        print_table(outcomes, time.monotonic() - began)
        return 0 if outcomes[0].good else 1
    static = StaticChecks()
    if not options.fast and options.long is None:
        static.start()
    if not options.lint:
        install_debian_packages()
        names, marked = chosen(options.fast, options.long)
        most = LONG_WORKERS if options.long else max(GROUPS.values())
        for name in names:
            outcomes += parts_of(name, marked, options.pytest_args, min(GROUPS[name], most))
        if options.long == "proof":
            outcomes.append(spawned_ranks(options.pytest_args))
        if not options.fast and options.long is None:
            outcomes.append(gpu_tests(options.pytest_args, needed=False))
    outcomes = [*static.outcomes(), *outcomes]
    print_table(outcomes, time.monotonic() - began)
    return 0 if all(outcome.good for outcome in outcomes) else 1


def chosen(fast: bool, long: str | None) -> tuple[Sequence[str], str]:
    """The groups to run, and the expression of markers that selects their tests."""
    if long is not None:
        return [name for name in GROUPS if has_marked(name, long)], long
    if fast:
        return FAST, "not multiprocess and not proof and not soak"
    return tuple(GROUPS), DEFAULT


def parts_of(name: str, marked: str, pytest_args: Sequence[str], workers: int) -> list[Outcome]:
    """Run one folder of tests: several at a time, then those with the marker `alone` one after the other."""
    if not has_marked(name, "alone"):
        return [group(name, ["-m", marked, *pytest_args], workers)]
    shared = group(name, ["-m", f"({marked}) and not alone", *pytest_args], workers)
    alone = group(name, ["-m", f"({marked}) and alone", *pytest_args], 0)
    return [shared, replace(alone, name=f"{name} alone")]


def checks() -> dict[str, list[str]]:
    """The static checks: name -> command."""
    python = sys.executable
    return {
        "ruff check": [python, "-m", "ruff", "check", "--quiet", "."],
        "ruff format": [python, "-m", "ruff", "format", "--check", "--quiet", "."],
        "mypy": [python, "-m", "mypy", "--no-error-summary"],
    }


class StaticChecks(threading.Thread):
    """Runs them one after the other beside the first tests: mypy alone leaves all cores but one idle."""

    def __init__(self) -> None:
        super().__init__(daemon=True)
        self._done: list[tuple[Outcome, str]] = []

    def run(self) -> None:
        """Run all, and keep what they say."""
        self._done = [check(name, words) for name, words in checks().items()]

    def outcomes(self) -> list[Outcome]:
        """Wait for them, and print what they have said; none where they were not started."""
        if self.ident is not None:
            self.join()
        for outcome, said in self._done:
            print(f"\n$ {outcome.name}: {outcome.summary}\n{said}", end="", flush=True)
        return [outcome for outcome, _ in self._done]


def check(name: str, words: Sequence[str]) -> tuple[Outcome, str]:
    """Run one static check: its row, and its output."""
    began = time.monotonic()
    try:
        done = subprocess.run(words, capture_output=True, text=True, check=False, timeout=LIMIT_S)
        code, said = str(done.returncode), done.stdout + done.stderr
    except subprocess.TimeoutExpired:
        code, said = "none", f"not done after {LIMIT_S:.0f} s: ended\n"
    summary = "clean" if code == "0" else f"exit code {code}"
    return Outcome(name, code == "0", time.monotonic() - began, summary), said


def has_marked(name: str, marker: str) -> bool:
    """Whether any test of a group has the marker."""
    marked = re.compile(
        rf"^\s*@pytest\.mark\.{marker}\b|\b(marks|pytestmark) ?= ?.*\bmark\.{marker}\b", re.MULTILINE
    )
    files = (ROOT / "tests" / name).rglob("test_*.py")
    return any(marked.search(file.read_text(encoding="utf-8")) for file in files)


def group(name: str, words: Sequence[str], workers: int) -> Outcome:
    """Run one folder of tests."""
    with tempfile.TemporaryDirectory(prefix="dist-train-test-") as folder:
        report = Path(folder, "report.xml")
        argv = [sys.executable, "-m", "pytest", "-q", f"tests/{name}", f"--junitxml={report}"]
        argv += [f"--durations={SLOWEST_OF_GROUP}", "--durations-min=1", *words]
        code, seconds = timed([*argv, *at_once(workers)])
        return Outcome(name, code == 0, seconds, counts(report) or f"exit code {code}", durations(report))


def at_once(workers: int) -> list[str]:
    """Options of pytest for workers: forks of one process; pytest-xdist's where there are no pidfds.

    Tests of one xdist_group share a fixture that takes long: they run in one worker.
    """
    if not workers:
        return []
    if hasattr(os, "pidfd_open"):
        return ["--forked-workers", str(workers)]
    return ["-n", str(workers), "--dist", "loadgroup"]


def spawned_ranks(pytest_args: Sequence[str]) -> Outcome:
    """Run a sample of the tests of ranks as on a machine with GPUs: each process is a new interpreter."""
    os.environ.update(SPAWNED)
    try:
        words = ["-m", DEFAULT, *(f"tests/multiprocess/{name}" for name in SAMPLE[1:]), *pytest_args]
        # One at a time: some bound a whole launch, in which each process now imports torch.
        outcome = group(f"multiprocess/{SAMPLE[0]}", words, 0)
    finally:
        for name in SPAWNED:
            del os.environ[name]
    return replace(outcome, name="spawned ranks")


def gpu_tests(pytest_args: Sequence[str], needed: bool) -> Outcome:
    """Run the tests with the marker gpu; where there is no GPU, count them, a failure if they are needed."""
    look = "import sys, torch; sys.exit(not torch.cuda.is_available())"
    if subprocess.run([sys.executable, "-c", look], check=False).returncode == 0:
        return group("gpu", ["-m", "gpu", *pytest_args], 0)
    argv = [sys.executable, "-m", "pytest", "-q", "--collect-only", "-m", "gpu", "tests/gpu"]
    said = subprocess.run(argv, capture_output=True, text=True, check=False).stdout
    found = re.search(r"^(\d+) tests? collected", said, re.MULTILINE)
    if found is None:
        return Outcome("gpu", False, 0.0, f"no GPU, and the tests cannot be collected: {said[-200:]}")
    return Outcome("gpu", not needed, 0.0, f"no GPU: {found[1]} tests not run (make test-gpu)")


def timed(argv: Sequence[str]) -> tuple[int, float]:
    """Run a command: exit code and seconds; past the limit it is killed with all its descendants."""
    print(f"\n$ {' '.join(argv[1:])}", flush=True)
    limit_s = SOAK_LIMIT_S if any(re.match(r"\(?soak\b", word) for word in argv) else LIMIT_S
    began = time.monotonic()
    with subprocess.Popen(argv) as process:
        try:
            code = process.wait(limit_s)
        except subprocess.TimeoutExpired:
            print(f"[make] not done after {limit_s:.0f} s: ended", flush=True)
            for child in psutil.Process(process.pid).children(recursive=True):
                child.kill()
            process.kill()
            code = process.wait()
    return code, time.monotonic() - began


def counts(report: Path) -> str:
    """`312 passed, 1 failed, 2 skipped` of a JUnit report; empty if there is none."""
    try:
        suite = ElementTree.parse(report).getroot().find("testsuite")
    except (OSError, ElementTree.ParseError):
        return ""
    if suite is None:
        return ""
    number = {key: int(suite.get(key, "0")) for key in ("tests", "failures", "errors", "skipped")}
    failed = number["failures"] + number["errors"]
    parts = [(number["tests"] - failed - number["skipped"], "passed"), (failed, "failed")]
    parts.append((number["skipped"], "skipped"))
    return ", ".join(f"{count} {word}" for count, word in parts if count)


def durations(report: Path) -> tuple[tuple[float, str], ...]:
    """Seconds and names of the slowest tests of a JUnit report, the slowest first."""
    try:
        cases = list(ElementTree.parse(report).iter("testcase"))
    except (OSError, ElementTree.ParseError):
        return ()
    found = [(float(case.get("time", "0")), f"{case.get('classname')}::{case.get('name')}") for case in cases]
    return tuple(sorted(found, reverse=True)[:SLOWEST_OF_ALL])


def install_debian_packages() -> None:
    """Install the Debian packages that the tests need; without them `require` names what is missing."""
    lines = PACKAGES.read_text(encoding="utf-8").splitlines()
    names = [line.strip() for line in lines if line.strip() and not line.startswith("#")]
    missing = [name for name in names if not is_installed(name)]
    if not missing:
        return
    command = ["apt-get", "install", "-y", "-qq", "--no-install-recommends", *missing]
    if not apt_may_run():
        print(f"[make] missing packages, which only root can install: sudo {' '.join(command)}", flush=True)
        return
    print(f"[make] installing the Debian packages {' '.join(missing)}", flush=True)
    environ = {**os.environ, "DEBIAN_FRONTEND": "noninteractive"}
    subprocess.run(["apt-get", "update", "-qq"], env=environ, check=False, stdout=subprocess.DEVNULL)
    subprocess.run(command, env=environ, check=False, stdout=subprocess.DEVNULL)


def is_installed(name: str) -> bool:
    """Whether dpkg lists the package as installed."""
    command = ["dpkg-query", "-W", "-f", "${Status}", name]
    try:
        status = subprocess.run(command, capture_output=True, text=True, check=False).stdout
    except FileNotFoundError:
        return False
    return status == "install ok installed"


def print_table(outcomes: Sequence[Outcome], total_s: float) -> None:
    """Print one row for each outcome, and the total."""
    print()
    for outcome in outcomes:
        word = "ok  " if outcome.good else "FAIL"
        print(f"{word}  {outcome.name:<18} {outcome.seconds:7.1f} s  {outcome.summary}")
    slowest = sorted((test for outcome in outcomes for test in outcome.tests), reverse=True)[:SLOWEST_OF_ALL]
    if slowest:
        print(f"\nslowest {len(slowest)} tests:")
        for seconds, name in slowest:
            print(f"      {seconds:7.1f} s  {name}")
        print()
    bad = sum(not outcome.good for outcome in outcomes)
    print(f"{'FAIL' if bad else 'ok  '}  {'all':<18} {total_s:7.1f} s", flush=True)


if __name__ == "__main__":
    sys.exit(main())
