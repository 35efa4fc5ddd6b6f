"""SIGTERM in what a rank starts: who starts it can end it, and a scheduler's signal to all costs no save."""

from __future__ import annotations

import io
import multiprocessing.reduction
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from started_rank import begin, output_of, run_forked

from dist_train import env
from dist_train.agent.workers.signals.child_signals import _Protected

EVERYWHERE = pytest.mark.parametrize("step_signals", ["0", "1"])
TERMINATE = """
import multiprocessing, subprocess, sys, time

if __name__ == "__main__":
    if sys.argv[1] == "popen":
        child = subprocess.Popen(["sleep", "60"])
        child.terminate()
        print(child.wait(5))
    else:
        child = multiprocessing.get_context(sys.argv[1]).Process(target=time.sleep, args=(60,), daemon=True)
        child.start()
        if sys.argv[2] == "running":
            time.sleep(0.5)
        child.terminate()
        child.join(5)
        print(child.exitcode)
        child.kill()
"""
# One worker, that the rank or (by `kill`) another process ends while it reads its sample.
LOADER = """
import os, signal, subprocess, sys, time
import torch

class Slow(torch.utils.data.Dataset):
    def __len__(self):
        return 2
    def __getitem__(self, index):
        open(__file__ + ".begun", "w").close()
        time.sleep(60 if sys.argv[1] == "parent" else 0.5)
        return index

batches = iter(torch.utils.data.DataLoader(Slow(), num_workers=1, multiprocessing_context="fork"))
worker = batches._workers[0]
while not os.path.exists(__file__ + ".begun"):
    time.sleep(0.01)
if sys.argv[1] == "parent":
    worker.terminate()
    worker.join(5)
    print(worker.exitcode)
    worker.kill()
else:
    subprocess.run(["kill", "-TERM", str(worker.pid), str(os.getpid())])
    print([int(batch) for batch in batches])
"""
# Ends commands in each way that Python has, in the process `where`: 143, or what subprocess makes of it.
COMMANDS = """
import asyncio, multiprocessing, os, signal, subprocess, sys, time

def raises(*command):
    try:
        subprocess.run(command, timeout=0.2)
    except subprocess.TimeoutExpired:
        return "timeout"

async def awaited():
    child = await asyncio.create_subprocess_exec("sleep", "60")
    child.terminate()
    return await child.wait()

def spawned():
    child = os.posix_spawn("/bin/sleep", ["sleep", "60"], os.environ)
    os.kill(child, signal.SIGTERM)
    return os.WTERMSIG(os.waitpid(child, 0)[1])

def forked():
    child = os.spawnvp(os.P_NOWAIT, "sleep", ["sleep", "60"])
    time.sleep(0.2)  # until it is one: a handler of its parent's acts before
    os.kill(child, signal.SIGTERM)
    return os.WTERMSIG(os.waitpid(child, 0)[1])

def ended():
    child = subprocess.Popen(["sleep", "60"])
    child.terminate()
    return child.wait(10)

def say(where):
    shell = os.waitstatus_to_exitcode(os.system("timeout 0.2 sleep 60"))
    timeout = subprocess.run(["timeout", "0.2", "sleep", "60"]).returncode
    print(where, ended(), shell, timeout, raises("sleep", "60"), asyncio.run(awaited()), spawned(), forked())
    sys.stdout.flush()

class Says:
    def __len__(self):
        return 1
    def __getitem__(self, index):
        say("loader")
        return index

if __name__ == "__main__":
    where = sys.argv[1]
    if where == "rank":
        say(where)
    elif where == "loader":
        import torch
        list(torch.utils.data.DataLoader(Says(), num_workers=1, multiprocessing_context="fork"))
    else:
        process = multiprocessing.get_context(where).Process(target=say, args=(where,))
        process.start()
        process.join()
"""
ALL_ENDED = "-15 124 124 timeout -15 15 15"
# What works in its processes while a stranger (not of the rank's session) signals all of them.
POOLS = """
import concurrent.futures, multiprocessing, os, subprocess, sys, time

def work(number):
    time.sleep(1)
    return number

class Slow:
    def __len__(self):
        return 2
    def __getitem__(self, index):
        time.sleep(0.5)
        return index

def signal_all():
    signalled = [child.pid for child in multiprocessing.active_children()]
    command = ["sh", "-c", f"kill -TERM {' '.join(map(str, signalled))}; sleep 1"]
    # It lives on, as a scheduler's daemon does.
    subprocess.Popen(command, start_new_session=True)
    return len(signalled)

if __name__ == "__main__":
    kind, method = sys.argv[1:]
    context = multiprocessing.get_context(method)
    if kind == "pool":
        with context.Pool(2) as pool:
            pool.map(abs, range(2))
            result = pool.map_async(work, range(2))
            print(signal_all(), result.get(10))
    elif kind == "executor":
        with concurrent.futures.ProcessPoolExecutor(2, mp_context=context) as pool:
            list(pool.map(abs, range(2)))
            result = pool.map(work, range(2))
            time.sleep(0.2)
            print(signal_all(), list(result))
    else:
        import torch
        batches = iter(torch.utils.data.DataLoader(Slow(), num_workers=1, multiprocessing_context=method))
        print(signal_all(), [int(batch) for batch in batches])
"""


@EVERYWHERE
@pytest.mark.parametrize(
    ("how", "when"), [("popen", ""), ("fork", "at once"), ("fork", "running"), ("spawn", "at once")]
)
def test_terminate_ends_a_child_of_a_rank(tmp_path: Path, how: str, when: str, step_signals: str) -> None:
    rank = begin(tmp_path, TERMINATE, how, when, **{env.STEP_SIGNALS: step_signals})
    assert output_of(rank) == f"{-signal.SIGTERM}\n"


@pytest.mark.parametrize("how", ["spawn", "forkserver"])
def test_terminate_ends_a_spawned_process_that_obeys_only_its_rank(tmp_path: Path, how: str) -> None:
    rank = begin(tmp_path, TERMINATE, how, "running", **{env.STEP_SIGNALS: "1"})
    assert output_of(rank) == f"{-signal.SIGTERM}\n"


@EVERYWHERE
def test_a_rank_ends_its_loader_worker_by_sigterm(tmp_path: Path, step_signals: str) -> None:
    assert run_forked(tmp_path, LOADER, "parent", **{env.STEP_SIGNALS: step_signals}) == (0, "0\n")


def test_a_signal_to_all_processes_ends_neither_a_rank_nor_its_loader_worker(tmp_path: Path) -> None:
    assert run_forked(tmp_path, LOADER, "stranger") == (0, "[0, 1]\n")


@EVERYWHERE
@pytest.mark.parametrize("where", ["rank", "fork", "loader", "spawn"])
def test_each_process_of_a_rank_can_end_the_commands_that_it_starts(
    tmp_path: Path, where: str, step_signals: str
) -> None:
    names = {env.STEP_SIGNALS: step_signals}
    if where == "loader":
        _, said = run_forked(tmp_path, COMMANDS, where, **names)
    else:
        said = output_of(begin(tmp_path, COMMANDS, where, **names))
    assert said == f"{where} {ALL_ENDED}\n"


@EVERYWHERE
def test_leaving_a_busy_pool_ends_it(tmp_path: Path, step_signals: str) -> None:
    script = """
import multiprocessing, time

with multiprocessing.Pool(1) as pool:
    pool.apply_async(time.sleep, (60,))
    time.sleep(0.2)
pool.join()
print("left")
"""
    assert output_of(begin(tmp_path, script, **{env.STEP_SIGNALS: step_signals})) == "left\n"


@pytest.mark.parametrize(
    ("kind", "method", "signalled"),
    [
        ("pool", "fork", 2),
        ("pool", "spawn", 2),
        ("executor", "fork", 2),
        ("executor", "forkserver", 2),
        ("loader", "fork", 1),
        ("loader", "spawn", 1),
    ],
)
def test_a_schedulers_signal_to_all_processes_ends_none_of_multiprocessings(
    tmp_path: Path, kind: str, method: str, signalled: int
) -> None:
    if kind == "loader":
        _, said = run_forked(tmp_path, POOLS, kind, method, **{env.STEP_SIGNALS: "1"})
    else:
        said = output_of(begin(tmp_path, POOLS, kind, method, **{env.STEP_SIGNALS: "1"}))
    assert said == f"{signalled} [0, 1]\n"


def test_the_handler_of_a_worker_is_called_where_its_rank_signals_it(tmp_path: Path) -> None:
    script = """
import multiprocessing, os, signal, sys, time

def work():
    signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(7))
    time.sleep(60)

child = multiprocessing.get_context("fork").Process(target=work, daemon=True)
child.start()
time.sleep(0.5)
child.terminate()
child.join(5)
print(child.exitcode)
child.kill()
"""
    assert output_of(begin(tmp_path, script, **{env.STEP_SIGNALS: "1"})) == "7\n"


def test_a_spawned_process_of_another_python_without_dist_train_has_the_default(tmp_path: Path) -> None:
    prepared = io.BytesIO()
    multiprocessing.reduction.dump({"name": "worker", "signals": _Protected()}, prepared)
    code = """
import pickle, signal, sys
signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})
sys.modules["dist_train"] = None
print(pickle.load(sys.stdin.buffer), signal.pthread_sigmask(signal.SIG_BLOCK, ()))
"""
    command = [sys.executable, "-c", code]
    done = subprocess.run(command, input=prepared.getvalue(), capture_output=True, check=True, timeout=30)
    assert done.stdout == b"{'name': 'worker', 'signals': None} set()\n"


@pytest.mark.parametrize(("module", "ended"), [("multiprocess.popen_fork", 7), ("train", -signal.SIGTERM)])
def test_a_forked_process_outlives_a_schedulers_signal_where_a_multiprocessing_forked_it(
    tmp_path: Path, module: str, ended: int
) -> None:
    # multiprocess is that of HF datasets; a bare os.fork() is the script's own business.
    script = f"""
import os, subprocess, time, types

forks = types.ModuleType({module!r})
exec("import os\\ndef launch():\\n    return os.fork()", forks.__dict__)
child = forks.launch()
if child == 0:
    time.sleep(1)
    os._exit(7)
subprocess.Popen(["sh", "-c", f"kill -TERM {{child}}; sleep 1"], start_new_session=True)
print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
"""
    assert output_of(begin(tmp_path, script, **{env.STEP_SIGNALS: "1"})) == f"{ended}\n"
