"""Ranks of one node are all forked, also more than one message's descriptors allow, or none runs."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from dist_train.agent.warm_parent.server import MOST_RANKS

RANKS = MOST_RANKS + 20
# Argument 1: ranks. 2, 3: the fork that fails: by how many messages it has been asked, and its number among
# the forks of this message (0: of the process that forks the ranks). 4: the ranks' working directory.
PROGRAM = """
import json, os, sys, traceback
from dist_train.agent.warm_parent.forked_rank import RankForked, RankStart
from dist_train.agent.warm_parent.warm_parent import ForkFailed, WarmParent

count, fails_in, fails_at = (int(word) for word in sys.argv[1:4])

def limit_forks():
    real, server, messages, forks = os.fork, os.getpid(), 0, 0
    def fork():
        nonlocal messages, forks
        if os.getpid() == server:
            messages += 1
            number = 0
        else:
            number = forks = forks + 1
        if (messages, number) == (fails_in, fails_at):
            raise BlockingIOError(11, os.strerror(11))
        return real()
    os.fork = fork

def start():
    parent = WarmParent.start(os.environ, limit_forks)
    starts = [
        RankStart([str(os.getpid()), str(rank)], {**os.environ, "RANK": str(rank)}, sys.argv[4])
        for rank in range(count)
    ]
    known = []
    try:
        return parent, parent.start_ranks(starts, known.append), known, None
    except ForkFailed as error:
        return parent, [], known, str(error)

agent, opened = os.getpid(), len(os.listdir("/proc/self/fd"))
try:
    parent, ranks, known, error = start()
except RankForked as rank:
    print(rank.argv[1], os.environ["RANK"], flush=True)
    print("error output of", rank.argv[1], file=sys.stderr, flush=True)
    os._exit(int(rank.argv[1]) % 100 + 2)
except BaseException:
    open(f"escaped-{os.getpid()}", "w").write(traceback.format_exc())
    raise
assert os.getpid() == agent
said = [[each.stdout.read().decode(), each.stderr.read().decode(), each.wait()] for each in ranks]
parent.close()
codes = []
while True:
    try:
        codes.append(os.waitstatus_to_exitcode(os.wait()[1]))
    except ChildProcessError:
        break
for each in ranks:
    each.close_outputs()
left = len(os.listdir("/proc/self/fd")) - opened
print(json.dumps({"said": said, "known": len(known), "error": error, "orphans": codes, "left": left}))
"""


def run(
    folder: Path, ranks: int = RANKS, fails_in: int = 0, fails_at: int = 0, work: str = "."
) -> dict[str, Any]:
    words = [sys.executable, "-c", PROGRAM, str(ranks), str(fails_in), str(fails_at), work]
    done = subprocess.run(words, cwd=folder, capture_output=True, text=True, timeout=60, check=False)
    escaped = [path.read_text() for path in folder.glob("escaped-*")]
    assert (done.returncode, done.stderr, escaped) == (0, "", [])
    found: dict[str, Any] = json.loads(done.stdout)
    assert found["left"] == 0, "descriptors stay open in the agent"
    return found


@pytest.mark.multiprocess
def test_more_ranks_than_one_message_s_descriptors_are_forked_each_with_its_own_pipes(tmp_path: Path) -> None:
    found = run(tmp_path)
    assert found["error"] is None
    wanted = [[f"{rank} {rank}\n", f"error output of {rank}\n", rank % 100 + 2] for rank in range(RANKS)]
    assert found["said"] == wanted
    assert (found["known"], found["orphans"]) == (RANKS, [])


@pytest.mark.multiprocess
@pytest.mark.parametrize(
    ("fails_in", "fails_at", "forked"), [(1, 7, 6), (2, 0, MOST_RANKS), (2, 7, MOST_RANKS + 6)]
)
def test_where_one_rank_cannot_be_forked_none_runs_and_the_reason_is_known(
    tmp_path: Path, fails_in: int, fails_at: int, forked: int
) -> None:
    found = run(tmp_path, fails_in=fails_in, fails_at=fails_at)
    assert "Resource temporarily unavailable" in found["error"]
    assert (found["known"], found["said"]) == (0, [])
    assert found["orphans"] == [1] * forked


@pytest.mark.multiprocess
def test_a_fork_that_cannot_become_a_rank_ends_with_its_traceback_and_not_as_an_agent(tmp_path: Path) -> None:
    [(out, err, code)] = run(tmp_path, ranks=1, work="gone")["said"]
    assert (out, code) == ("", 1)
    assert "No such file or directory: 'gone'" in err
