"""`.ci/parallel_groups.py`: which commands run at once, what is printed, and that Ctrl-C ends all of them."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

from source_tree import ROOT

from dist_train.testing.process_tree import pid_is_alive

# Runs the parts that its arguments name: NAME:KIND:PROGRAM, `!` before a name that is alone.
DRIVER = """
import sys
from parallel_groups import Part, run_parts
parts = []
for word in sys.argv[2:]:
    name, kind, program = word.split(":", 2)
    parts.append(Part(name.strip("!"), [sys.executable, "-c", program], kind, name[0] == "!", limit_s=LIMIT))
done = run_parts(parts, {"tests": 2, "check": 1})
print("codes", *(each.code for each in done), flush=True)
"""
# A program that notes when it begins and ends.
NOTES = "import os,time; w=lambda t: open('times','a').write(f'{t} {time.monotonic()}\\n'); "
# Long enough that two which run one after the other do not meet, on a busy machine too.
SHORT_S = 0.4


def start(folder: Path, *parts: str, limit_s: float = 60.0) -> subprocess.Popen[str]:
    environ = {**os.environ, "PYTHONPATH": str(ROOT / ".ci")}
    argv = [sys.executable, "-c", DRIVER.replace("LIMIT", str(limit_s)), "-", *parts]
    return subprocess.Popen(
        argv, cwd=folder, env=environ, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )


def noting(name: str, kind: str = "tests") -> str:
    plain = name.strip("!")
    return f"{name}:{kind}:{NOTES}w('{plain} begin'); time.sleep({SHORT_S}); w('{plain} end')"


def test_what_is_printed_is_one_block_each_in_order_and_codes_are_those_of_the_parts(tmp_path: Path) -> None:
    slow = "a:tests:import time; print('a1', flush=True); time.sleep(1); print('a2')"
    fast = "b:tests:import sys; print('b1'); sys.exit(3)"
    with start(tmp_path, slow, fast) as command:
        out, err = command.communicate(timeout=60)
    assert [line for line in out.splitlines() if re.fullmatch(r"[ab]\d", line)] == ["a1", "a2", "b1"], err
    assert out.splitlines()[-1] == "codes 0 3"


def test_so_many_of_a_kind_run_at_once_and_one_that_is_alone_before_them(tmp_path: Path) -> None:
    parts = [noting("!first"), noting("a"), noting("b"), noting("c"), noting("check", "check")]
    with start(tmp_path, *parts) as command:
        out, err = command.communicate(timeout=60)
    assert out.splitlines()[-1] == "codes 0 0 0 0 0", err
    times = {}
    for line in (tmp_path / "times").read_text().splitlines():
        name, when, seconds = line.split()
        times[name, when] = float(seconds)
    for name in ("a", "b", "c"):
        assert times["first", "end"] < times[name, "begin"]
    assert times["check", "begin"] < times["a", "begin"], "a check waits for no test"
    assert max(times["a", "begin"], times["b", "begin"]) < min(times["a", "end"], times["b", "end"])
    assert min(times["a", "end"], times["b", "end"]) < times["c", "begin"]


def test_a_part_past_its_limit_is_killed_with_its_descendants(tmp_path: Path) -> None:
    child = (
        "import subprocess as s; p = s.Popen(['sleep', '300']); open('pid', 'w').write(str(p.pid)); p.wait()"
    )
    with start(tmp_path, f"a:tests:{child}", limit_s=3) as command:
        out, err = command.communicate(timeout=60)
    assert "[make] not done after 3 s: ended" in out, err
    assert "codes -9" in out
    assert not pid_is_alive(int((tmp_path / "pid").read_text()))


def test_ctrl_c_reaches_every_part_once_and_what_they_still_write_is_printed(tmp_path: Path) -> None:
    program = (
        "import os, time\n"
        "try:\n"
        "    open(NAME, 'w').write(str(os.getpid()))\n"
        "    time.sleep(300)\n"
        "except KeyboardInterrupt:\n"
        "    print(NAME, 'takes down', flush=True); time.sleep(0.3); print(NAME, 'ends')\n"
    )
    names = ("one", "two", "waits")
    parts = [f"{name}:tests:{program.replace('NAME', repr(name))}" for name in names]
    with start(tmp_path, *parts) as command:
        deadline = time.monotonic() + 60
        while not all((tmp_path / name).is_file() and (tmp_path / name).read_text() for name in names[:2]):
            assert time.monotonic() < deadline
            time.sleep(0.02)
        command.send_signal(signal.SIGINT)
        out, err = command.communicate(timeout=60)
    assert command.returncode != 0
    for name in names[:2]:
        assert out.count(f"{name} takes down") == out.count(f"{name} ends") == 1, out + err
        assert not pid_is_alive(int((tmp_path / name).read_text()))
    assert not (tmp_path / "waits").exists(), "it was not begun"
