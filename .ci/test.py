"""Run ruff, mypy and every group of tests, then print a table with the seconds and the slowest tests.

`make test` calls it. Two groups run at once, and a check beside them; the output of each is one block.

--fast: unit and architecture only, without the tests that start several processes.
--lint: ruff and mypy only. --proof: only the longer tests, which CI runs too; --soak: the soak tests.
--gpu: only the tests that need a GPU, and the loop benchmark on GPUs; without one it fails. It prints the
environment first, and writes all of it into build/gpu-report.json. All other runs of whole groups do these
tests where there is a GPU, and say in their table how many were not run where there is none.
Arguments after `--` go to pytest.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import secrets
import signal
import subprocess
import sys
import tempfile
import time
import xml.etree.ElementTree as ElementTree
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from types import FrameType
from typing import NoReturn

import psutil
from gpu_look import A_GPU
from gpu_report import benchmark_command, environment, read_rows, tests_of, write_report
from parallel_groups import Ended, Part, run_parts

from dist_train.testing.required_components import apt_may_run

ROOT = Path(__file__).resolve().parent.parent
PACKAGES = ROOT / ".ci" / "debian-packages.txt"
# Workers per group (tests/forked_workers), the longest group first. So many groups run at once, and beside
# them so many checks: together they keep two cores busy, which each of them alone does not. Tests with the
# marker `alone` run one at a time, before all others.
GROUPS = {"unit": 3, "multiprocess": 3, "slurm": 4, "k8s": 4, "architecture": 2, "contract": 2}
CHECK, TESTS = "check", "tests"
AT_ONCE = {CHECK: 1, TESTS: 2}
FAST = ("unit", "architecture")
# No process of these is forked from one that has imported torch; elsewhere most ranks and launches are.
SPAWNED = {"DIST_TRAIN_TESTING_COLD": "1", "DIST_TRAIN_START_METHOD": "spawn"}
SAMPLE = ("test_plain_script.py", "test_exit_codes.py")
# As in pyproject.toml, where it is for those who call pytest.
DEFAULT = "not proof and not soak and not gpu"
# Proofs and soaks check time bounds, so fewer at once.
LONG_WORKERS, LONG_AT_ONCE = 3, {CHECK: 1, TESTS: 1}
# The slowest tests: of each group as it ends, and of all in the table.
SLOWEST_OF_GROUP, SLOWEST_OF_ALL = 15, 10
# Far above what any group needs: a hang must end, even if pytest hangs.
LIMIT_S = 2700.0
SOAK_LIMIT_S = 4 * 3600.0
GPU_BENCHMARK_S = 900.0


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
    # Commands of all groups are forks of one process that has imported torch (tests/warm_commands).
    os.environ["PYTEST_XDIST_TESTRUNUID"] = secrets.token_hex(16)
    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, end)
    began, busy = time.monotonic(), busy_s()
    try:
        with tempfile.TemporaryDirectory(prefix="dist-train-test-") as folder:
            outcomes = outcomes_of(options, Path(folder))
    except KeyboardInterrupt:
        print("\n[make] interrupted", flush=True)
        return 130
    print_table(outcomes, time.monotonic() - began, busy_s() - busy)
    return 0 if all(outcome.good for outcome in outcomes) else 1


def end(number: int, _: FrameType | None) -> NoReturn:
    """End as after Ctrl-C, with all that runs."""
    raise SystemExit(128 + number)


def busy_s() -> float:
    """Seconds that all cores of this machine have been at work since its start."""
    times = psutil.cpu_times()
    return float(times.user + times.nice + times.system)


def outcomes_of(options: argparse.Namespace, folder: Path) -> list[Outcome]:
    """Run what was asked for; a row for each."""
    everything = not options.fast and not options.gpu and options.long is None
    words = options.pytest_args
    parts: list[Part] = checks() if everything else []
    if not options.lint and not options.gpu:
        install_debian_packages()
        for name, marked in chosen(options.fast, options.long):
            parts += parts_of(name, marked, words, folder)
        if options.long == "proof":
            parts.append(spawned_ranks(words, folder))
    # First, or they would wait for the longest group, and all others for them.
    parts.sort(key=lambda part: not part.alone)
    at_once = AT_ONCE if options.long is None else LONG_AT_ONCE
    looks = [] if options.lint or not (everything or options.gpu) else [gpu_look()]
    done = run_parts([*parts, *looks], at_once)
    rows = [outcome(part, ended, folder) for part, ended in zip(parts, done, strict=False)]
    return [*rows, *(gpu_tests(ended, words, options.gpu, folder) for ended in done[len(parts) :])]


def chosen(fast: bool, long: str | None) -> list[tuple[str, str]]:
    """The groups to run, and the expression of markers that selects their tests."""
    if long is not None:
        return [(name, long) for name in GROUPS if has_marked(name, long)]
    if fast:
        return [(name, "not multiprocess and not proof and not soak") for name in FAST]
    return [(name, DEFAULT) for name in GROUPS]


def parts_of(name: str, marked: str, pytest_args: Sequence[str], folder: Path) -> list[Part]:
    """One folder of tests: several at a time, and those with the marker `alone` one after the other."""
    workers = GROUPS[name] if marked == DEFAULT else min(GROUPS[name], LONG_WORKERS)
    if not has_marked(name, "alone"):
        return [group(name, name, ["-m", marked, *pytest_args], folder, workers)]
    alone = ["-m", f"({marked}) and alone", *pytest_args]
    shared = ["-m", f"({marked}) and not alone", *pytest_args]
    return [
        replace(group(f"{name} alone", name, alone, folder, 0), alone=True),
        group(name, name, shared, folder, workers),
    ]


def checks() -> list[Part]:
    """The static checks."""
    python = sys.executable
    return [
        Part("ruff check", [python, "-m", "ruff", "check", "--quiet", "."], CHECK),
        Part("ruff format", [python, "-m", "ruff", "format", "--check", "--quiet", "."], CHECK),
        Part("mypy", [python, "-m", "mypy", "--no-error-summary"], CHECK),
    ]


def has_marked(name: str, marker: str) -> bool:
    """Whether any test of a group has the marker."""
    marked = re.compile(
        rf"^\s*@pytest\.mark\.{marker}\b|\b(marks|pytestmark) ?= ?.*\bmark\.{marker}\b", re.MULTILINE
    )
    files = (ROOT / "tests" / name).rglob("test_*.py")
    return any(marked.search(file.read_text(encoding="utf-8")) for file in files)


def group(name: str, path: str, words: Sequence[str], folder: Path, workers: int) -> Part:
    """One call of pytest on a folder of tests, or a file of them."""
    argv = [sys.executable, "-m", "pytest", "-q", f"tests/{path}", f"--junitxml={report(name, folder)}"]
    argv += [f"--durations={SLOWEST_OF_GROUP}", "--durations-min=1", *words, *at_once(workers)]
    if sys.stdout.isatty():
        argv.append("--color=yes")
    limit_s = SOAK_LIMIT_S if any(re.match(r"\(?soak\b", word) for word in words) else LIMIT_S
    return Part(name, argv, TESTS, limit_s=limit_s)


def report(name: str, folder: Path) -> Path:
    """Where the JUnit report of a group is."""
    return folder / f"{name.replace(' ', '-')}.xml"


def at_once(workers: int) -> list[str]:
    """Options of pytest for workers: forks of one process; pytest-xdist's where there are no pidfds.

    Tests of one xdist_group share a fixture that takes long: they run in one worker.
    """
    if not workers:
        return []
    if hasattr(os, "pidfd_open"):
        return ["--forked-workers", str(workers)]
    return ["-n", str(workers), "--dist", "loadgroup"]


def spawned_ranks(pytest_args: Sequence[str], folder: Path) -> Part:
    """A sample of the tests of ranks as on a machine with GPUs: each process is a new interpreter."""
    words = ["-m", DEFAULT, *(f"tests/multiprocess/{name}" for name in SAMPLE[1:]), *pytest_args]
    # One at a time: some bound a whole launch, in which each process now imports torch.
    part = group("spawned ranks", f"multiprocess/{SAMPLE[0]}", words, folder, 0)
    return replace(part, environ=SPAWNED)


def gpu_look() -> Part:
    """Whether there is a GPU, and how many tests need one."""
    return Part("gpu", [sys.executable, ".ci/gpu_look.py"], CHECK)


def gpu_tests(look: Ended, pytest_args: Sequence[str], needed: bool, folder: Path) -> Outcome:
    """Run the tests with the marker gpu; without a GPU, count them: a failure if they are needed."""
    if A_GPU in look.output:
        # Skipped tests say what this machine cannot show.
        part = group("gpu", "gpu", ["-m", "gpu", "-rs", *pytest_args], folder, 0)
        return tests_on_gpus(part, folder) if needed else outcome(part, run_parts([part], AT_ONCE)[0], folder)
    found = re.search(r"^(\d+) tests? collected", look.output, re.MULTILINE)
    if found is None:
        return Outcome("gpu", False, 0.0, f"no GPU, and the tests cannot be collected: {look.output[-200:]}")
    return Outcome("gpu", not needed, 0.0, f"no GPU: {found[1]} tests not run (make test-gpu)")


def tests_on_gpus(part: Part, folder: Path) -> Outcome:
    """Environment, tests and the loop benchmark of `make test-gpu`, in one file."""
    facts = environment()
    print(json.dumps(facts, indent=2), flush=True)
    ended = run_parts([part], AT_ONCE)[0]
    record, ranks = folder / "loop_overhead.json", max(1, len(facts["devices"]))
    benchmark = Part("loop benchmark", benchmark_command(ranks, record), CHECK, limit_s=GPU_BENCHMARK_S)
    measured = run_parts([benchmark], AT_ONCE)[0]
    row = outcome(part, ended, folder)
    answer = {"exit code": measured.code, "ranks": ranks, "rows": read_rows(record)}
    where = write_report(
        facts, tests_of(report(part.name, folder)), {**answer, "output": measured.output[-8000:]}
    )
    said = "" if measured.code == 0 else f", the loop benchmark ended with {measured.code}"
    return replace(row, good=row.good and measured.code == 0, summary=f"{row.summary}{said}; {where}")


def outcome(part: Part, ended: Ended, folder: Path) -> Outcome:
    """The row of a part."""
    good = ended.code == 0
    if part.kind == CHECK:
        return Outcome(part.name, good, ended.seconds, "clean" if good else f"exit code {ended.code}")
    found = report(part.name, folder)
    summary = counts(found) or f"exit code {ended.code}"
    return Outcome(part.name, good, ended.seconds, summary, durations(found))


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


def print_table(outcomes: Sequence[Outcome], total_s: float, busy: float) -> None:
    """Print one row for each outcome, and the total with the share of the cores' time that was used."""
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
    used = busy / (total_s * (os.cpu_count() or 1))
    print(f"{'FAIL' if bad else 'ok  '}  {'all':<18} {total_s:7.1f} s  {used:.0%} of the cores", flush=True)


if __name__ == "__main__":
    sys.exit(main())
