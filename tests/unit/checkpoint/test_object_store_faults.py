"""A fault at any request to an S3 server leaves the last committed checkpoint or the one before."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from bucket_server import BUCKET, BucketServer
from bucket_writer import Writers

# A process that imports torch, and dozens of writers.
pytestmark = pytest.mark.proof
URL = f"s3://{BUCKET}/runs/one"


class Case:
    """The server with steps 1 and 2 of a run, as often as a test wants it."""

    def __init__(self, folder: Path, server: BucketServer, writers: Writers) -> None:
        self.server, self.writers = server, writers
        self._before = folder / "before"
        self.hashes = {int(step): found for step, found in (writers.run("start", URL) or {}).items()}
        shutil.copytree(server.folder, self._before)
        self.reset()
        third = self.go_on()
        assert third is not None
        self.requests = len(server.log)
        self.hashes[3] = third["saved"]
        self.log = list(server.log)

    def reset(self) -> None:
        self.server.forget()
        shutil.rmtree(self.server.folder)
        shutil.copytree(self._before, self.server.folder)

    def go_on(self) -> dict[str, Any] | None:
        def meet(pid: int) -> None:
            self.server.writer_pid = pid

        return self.writers.run("go_on", URL, meet)

    def look(self) -> dict[str, Any]:
        found = self.writers.run("look", URL)
        assert found is not None
        return found


@pytest.fixture(scope="module")
def case(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Case]:
    folder = tmp_path_factory.mktemp("faults")
    with BucketServer(folder / "buckets") as server:
        writers = Writers(server.environ)
        try:
            yield Case(folder, server, writers)
        finally:
            writers.close()


def check_kill(case: Case, at: int, how: str) -> int:
    """Kill the writer by one request; return the step that the next attempt finds."""
    where = f"request {at} of {case.requests}, {how}: {case.log[at - 1]}"
    case.reset()
    case.server.fail(at, how)
    case.go_on()
    case.server.forget()
    second = case.go_on()
    assert second is not None, where
    assert second["restored"] in (2, 3), where
    assert second["loaded"] == case.hashes[second["restored"]], where
    assert case.look() == {
        "steps": [second["restored"], second["restored"] + 1],
        "problems": [],
        "left": [],
    }, where
    return int(second["restored"])


def check_error(case: Case, how: str, fails: Callable[[str], bool]) -> None:
    """Fail these requests once each; the library sends them again, and nothing else is to be seen."""
    case.reset()
    failed: set[str] = set()

    def fault(_number: int, line: str) -> str | None:
        if line in failed or not fails(line):
            return None
        failed.add(line)
        return how

    case.server.fault = fault
    done = case.go_on()
    case.server.forget()
    assert failed
    assert done is not None
    assert (done["restored"], done["saved"]) == (2, case.hashes[3])
    assert case.look() == {"steps": [2, 3], "problems": [], "left": []}


def is_commit(line: str) -> bool:
    return line.startswith("PUT") and "step-00000003/manifest" in line


def test_a_kill_at_the_commit(case: Case) -> None:
    (at,) = (number for number, line in enumerate(case.log, 1) if is_commit(line))
    assert check_kill(case, at, "kill before") == 2
    assert check_kill(case, at, "kill after") == 3


@pytest.mark.parametrize("how", ["500", "reset before", "reset after"])
def test_an_error_at_the_commit_is_borne(case: Case, how: str) -> None:
    check_error(case, how, is_commit)


@pytest.mark.proves(
    "Checkpoints in S3: `kill -9` before or after any request leaves a whole checkpoint, and no other's rest",
    limits="localbucket is the server; 5 files per checkpoint",
)
@pytest.mark.timeout(600)
@pytest.mark.parametrize("part", range(4))
@pytest.mark.parametrize("how", ["kill before", "kill after"])
def test_a_kill_at_any_request(case: Case, how: str, part: int) -> None:
    assert case.requests > 30
    found = {}
    for at in range(1 + part, case.requests + 1, 4):
        found[at] = check_kill(case, at, how)
        folders = {key.split("/data/")[1].split("/")[0] for key in case.server.objects() if "/data/" in key}
        assert len(folders) == 2, (at, case.log[at - 1], folders)
    assert set(found.values()) == {2, 3}


@pytest.mark.proves(
    "Checkpoints in S3: a server error, a slow answer or a lost connection at every request changes nothing",
    limits="each request fails once",
)
@pytest.mark.timeout(600)
@pytest.mark.parametrize("how", ["500", "503", "slow", "reset before", "reset after"])
def test_every_request_fails_once(case: Case, how: str) -> None:
    check_error(case, how, lambda line: True)
