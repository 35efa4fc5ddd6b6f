"""Tests in forked workers: each runs once, and says of itself what it says in one process."""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap
import xml.etree.ElementTree as ElementTree
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from forked_workers.item_queue import MOST, ItemQueue

TESTS = Path(__file__).parents[2]
# No other plug-ins: loading them takes longer than these tests.
PLAIN = {"PYTEST_ADDOPTS": "", "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"}


def run_pytest(folder: Path, text: str, *words: str) -> tuple[int, str]:
    """Exit code and output of pytest with two forked workers on one file."""
    (folder / "test_inner.py").write_text(textwrap.dedent(text))
    outer = {name: value for name, value in os.environ.items() if name != "PYTEST_XDIST_WORKER"}
    argv = [sys.executable, "-m", "pytest", "-q", "-p", "forked_workers.worker_plugin"]
    done = subprocess.run(
        [*argv, "--forked-workers", "2", f"--basetemp={folder}/base", *words, "test_inner.py"],
        cwd=folder,
        env={**outer, **PLAIN, "PYTHONPATH": str(TESTS)},
        capture_output=True,
        text=True,
        timeout=60,
    )
    return done.returncode, done.stdout + done.stderr


MIXED = """
    import os, signal, sys, warnings
    from pathlib import Path
    import pytest

    @pytest.fixture(scope="session")
    def once_per_worker():
        Path("made").open("a").write(f"{os.getpid()}\\n")
        yield
        Path("taken-down").open("a").write(f"{os.getpid()}\\n")

    @pytest.mark.parametrize("number", range(30))
    def test_good(number, once_per_worker, tmp_path):
        assert os.environ["PYTEST_XDIST_WORKER"] in str(tmp_path)
        Path("good").open("a").write(f"{number}\\n")

    @pytest.mark.parametrize("number", range(6))
    @pytest.mark.xdist_group("one")
    def test_of_a_group(number, tmp_path):
        Path("group").open("a").write(f"{os.getpid()}\\n")

    def test_bad():
        print("said by the bad one")
        assert [1, 2] == [1, 3]

    def test_error(tmp_path):
        raise KeyError("broken")

    @pytest.fixture
    def broken_end():
        yield
        raise OSError("not taken down")

    def test_end(broken_end):
        os.write(2, b"written to descriptor 2\\n")

    @pytest.mark.skip(reason="not today")
    def test_skipped():
        pass

    @pytest.mark.xfail(reason="known")
    def test_known():
        assert False

    def test_warning():
        warnings.warn("mind the step", DeprecationWarning)
    """


def test_each_test_runs_once_and_every_report_arrives(tmp_path: Path) -> None:
    code, said = run_pytest(tmp_path, MIXED, f"--junitxml={tmp_path}/report.xml", "-rs")
    assert code == 1, said
    assert "2 failed, 38 passed, 1 skipped, 1 xfailed, 1 warning, 1 error" in said
    assert "assert [1, 2] == [1, 3]" in said
    assert "said by the bad one" in said
    assert "KeyError: 'broken'" in said
    assert "OSError: not taken down" in said
    assert "written to descriptor 2" in said
    assert "not today" in said
    assert "DeprecationWarning: mind the step" in said
    lines = (tmp_path / "good").read_text().split()
    assert sorted(map(int, lines)) == list(range(30))
    assert len(set((tmp_path / "group").read_text().split())) == 1
    made = (tmp_path / "made").read_text().split()
    assert len(made) == 2  # both workers had some
    assert sorted((tmp_path / "taken-down").read_text().split()) == sorted(made)
    cases = list(ElementTree.parse(tmp_path / "report.xml").iter("testcase"))
    assert len({case.get("name") for case in cases}) == len(cases) == 42


SERVERS = """
    import os
    from pathlib import Path
    import pytest
    from warm_commands.forked_command import _address

    @pytest.mark.parametrize("number", range(30))
    def test_good(number):
        Path("servers").open("a").write(f"{os.getpid()} {_address(os.environ, ())!r}\\n")
    """


def test_all_workers_have_the_same_command_server(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("PYTEST_XDIST_TESTRUNUID", raising=False)
    code, said = run_pytest(tmp_path, SERVERS)
    assert code == 0, said
    pids, addresses = zip(*map(str.split, (tmp_path / "servers").read_text().splitlines()), strict=True)
    assert len(set(pids)) == 2
    assert len(set(addresses)) == 1


DEATHS = """
    import os, signal
    import pytest

    def test_killed():
        os.kill(os.getpid(), signal.SIGKILL)

    def test_left():
        os._exit(0)

    @pytest.mark.parametrize("number", range(20))
    def test_good(number):
        pass
    """


def test_a_worker_that_ends_fails_its_test_and_the_others_are_run(tmp_path: Path) -> None:
    code, said = run_pytest(tmp_path, DEATHS)
    assert code == 1, said
    assert "2 failed, 20 passed" in said
    assert "ended while it ran this test: SIGKILL" in said
    assert "ended while it ran this test: exit code 0" in said


def test_the_first_failure_ends_the_session_where_asked(tmp_path: Path) -> None:
    text = """
        import time, pytest

        def test_bad():
            assert False

        @pytest.mark.parametrize("number", range(40))
        def test_good(number):
            time.sleep(0.1)
        """
    code, said = run_pytest(tmp_path, text, "-x")
    assert code == 1, said
    assert "stopping after 1 failures" in said
    assert int(said.split(" passed")[0].split()[-1]) < 20, said


def test_a_failed_collection_runs_nothing(tmp_path: Path) -> None:
    code, said = run_pytest(tmp_path, "import no_such_module\ndef test_a(): pass\n")
    assert code == 2, said
    assert "no_such_module" in said


def _item(module: str, number: int, group: str | None = None) -> Any:
    marker = SimpleNamespace(args=(group,), kwargs={}) if group else None
    return SimpleNamespace(nodeid=f"{module}::test[{number}]", get_closest_marker=lambda name: marker)


def test_a_worker_gets_neighbours_of_a_module_and_single_tests_at_the_end() -> None:
    items = [_item(f"test_{number // 500}.py", number) for number in range(1000)]
    queue = ItemQueue(items, workers=2)
    taken = []
    while numbers := queue.take():
        taken.append(numbers)
        assert len({number // 500 for number in numbers}) == 1
    assert [number for numbers in taken for number in numbers] == list(range(1000))
    assert max(map(len, taken)) == len(taken[0]) == MOST
    assert {len(numbers) for numbers in taken[-60:]} == {1}


def test_a_group_is_given_to_one_worker_as_a_whole_and_what_was_not_run_comes_first() -> None:
    items = [_item("a.py", 0, "g"), _item("a.py", 1), _item("b.py", 2, "g"), _item("b.py", 3)]
    queue = ItemQueue(items, workers=2)
    assert queue.take() == [0, 2]
    assert queue.take() == [1]
    queue.give_back([2])
    assert [queue.take(), queue.take(), queue.take()] == [[2], [3], []]


def test_none_are_forked_where_none_are_asked_for(tmp_path: Path) -> None:
    text = "import os\ndef test_a(): assert 'PYTEST_XDIST_WORKER' not in os.environ\n"
    code, said = run_pytest(tmp_path, text, "--forked-workers", "0")
    assert code == 0, said
