"""The end of a forked rank: what the program has made is finalized, and shared modules stay as they are."""

from __future__ import annotations

import subprocess
import sys
import textwrap
import zipfile
from pathlib import Path

import pytest

START = """
import atexit, ctypes, gc, gzip, json, os, sys
from dist_train.agent.warm_parent.shared_modules import SharedModules
atexit.register(SharedModules.of_this_process().end, 7)
class Loud:
    def __init__(self, name): self.name = name
    def __del__(self): print("freed", self.name, flush=True)
"""


def run(tmp_path: Path, program: str) -> subprocess.CompletedProcess[str]:
    (tmp_path / "own_module.py").write_text("from __main__ import Loud\nown = Loud('of a module')\n")
    (tmp_path / "program.py").write_text(START + textwrap.dedent(program))
    words = [sys.executable, "program.py"]
    return subprocess.run(words, cwd=tmp_path, capture_output=True, text=True, timeout=60, check=False)


# What the interpreter's own end does, and ours does not.
KEPT = """
def kept():
    try: yield
    finally: os.write(1, b"by the interpreter\\n")
json.kept = kept(); next(json.kept)
"""


def test_the_exit_code_is_the_one_given_and_the_interpreter_is_not_finalized(tmp_path: Path) -> None:
    done = run(tmp_path, KEPT)
    assert (done.returncode, done.stdout, done.stderr) == (7, "", "")


TEE = """
class Tee:
    def __init__(self, to=sys.stdout): self.one, self.write, self.flush = Loud("of a tee"), to.write, to.flush
sys.stdout = Tee()
"""
HANDLER = """
import signal
class Handles:
    def __init__(self): self.one = Loud("of a handler"); signal.signal(signal.SIGUSR2, self.on)
    def on(self, *_): pass
Handles()
"""
AT_EXIT = """
class Says:
    def __init__(self): self.one = Loud("of an exit function"); atexit.register(self.bye)
    def bye(self): pass
Says()
"""
ERROR = """
try:
    raise ValueError(Loud("of the last error"))
except ValueError as error:
    sys.last_value = error
"""


@pytest.mark.parametrize(
    ("program", "freed"),
    [
        ("one = Loud('a global')", "a global"),
        ("_one = Loud('private'); one = [_one]", "private"),
        ("one = Loud('in a cycle'); one.one = one; del one", "in a cycle"),
        ("import own_module", "of a module"),
        ("import own_module; json.kept = own_module", "of a module"),
        (TEE, "of a tee"),
        (ERROR, "of the last error"),
        (HANDLER, "of a handler"),
        (AT_EXIT, "of an exit function"),
        ("json.kept = Loud('of a shared module')", "of a shared module"),
    ],
)
def test_what_the_program_has_made_is_finalized(tmp_path: Path, program: str, freed: str) -> None:
    done = run(tmp_path, program)
    assert done.returncode == 7, done.stderr
    assert f"freed {freed}" in done.stdout.splitlines()


def test_exit_functions_of_the_program_run_before_anything_is_gone(tmp_path: Path) -> None:
    program = "import own_module; atexit.register(lambda: print('still', own_module.own.name, json.dumps(1)))"
    done = run(tmp_path, program)
    assert done.stdout == "still of a module 1\nfreed of a module\n"


@pytest.mark.parametrize("place", ["kept", "json.kept"])
def test_files_are_whole_also_compressed_ones_that_a_shared_module_refers_to(
    tmp_path: Path, place: str
) -> None:
    text = """
    PLACE = gzip.open("rows.gz", "wt")
    PLACE.write("a row")
    PLACE_plain = open("rows.txt", "w")
    PLACE_plain.write("a row")
    """
    done = run(tmp_path, text.replace("PLACE", place))
    assert done.returncode == 7, done.stderr
    import gzip

    assert gzip.open(tmp_path / "rows.gz", "rt").read() == "a row"  # noqa: SIM115
    assert (tmp_path / "rows.txt").read_text() == "a row"


@pytest.mark.parametrize("place", ["json.kept", "kept"])
def test_a_zip_file_is_whole(tmp_path: Path, place: str) -> None:
    done = run(
        tmp_path,
        f"""
    import zipfile
    {place} = zipfile.ZipFile("rows.zip", "w")
    {place}.writestr("one", "a row")
    """,
    )
    assert done.returncode == 7, done.stderr
    with zipfile.ZipFile(tmp_path / "rows.zip") as rows:
        assert rows.read("one") == b"a row"


DETACHED = "sys.stdout = io.TextIOWrapper(sys.stdout.detach(), encoding='utf-8')"


@pytest.mark.parametrize("program", [DETACHED, DETACHED.replace("stdout", "stderr")])
def test_a_stream_that_the_program_has_detached_is_no_failure(tmp_path: Path, program: str) -> None:
    done = run(tmp_path, f"import io\n{program}\nprint('done')")
    assert (done.returncode, done.stdout, done.stderr) == (7, "done\n", "")


def test_a_finalizer_that_fails_is_said_and_the_others_run(tmp_path: Path) -> None:
    program = """
    class Fails:
        def __del__(self): raise ValueError("of a finalizer")
    json.kept = [Loud("before"), Fails(), Loud("after")]
    """
    done = run(tmp_path, program)
    assert done.returncode == 7
    assert sorted(done.stdout.splitlines()) == ["freed after", "freed before"]
    assert done.stderr.startswith("Exception ignored in: <function Fails.__del__")
    assert done.stderr.endswith("ValueError: of a finalizer\n")


def test_a_module_is_not_run_once_more_by_a_finalizer(tmp_path: Path) -> None:
    (tmp_path / "writes.py").write_text("out = open('rows.txt', 'w')\n")
    program = """
    import writes
    class Late:
        def __del__(self):
            try: from writes import out
            except ImportError: print("not any more")
    late = Late()
    writes.out.write("a row")
    """
    done = run(tmp_path, program)
    assert (done.returncode, done.stdout, done.stderr) == (7, "not any more\n", "")
    assert (tmp_path / "rows.txt").read_text() == "a row"


def test_files_of_a_module_that_is_dropped_are_whole(tmp_path: Path) -> None:
    (tmp_path / "writes.py").write_text(
        """if True:
        import gzip
        rows = open("rows.txt", "w")
        rows.write("a row")
        packed = gzip.open("rows.gz", "wt")
        packed.write("a row")
        def refers_to_the_globals(): pass
        """
    )
    done = run(tmp_path, "import writes; del writes")
    assert done.returncode == 7, done.stderr
    import gzip

    assert (tmp_path / "rows.txt").read_text() == "a row"
    assert gzip.open(tmp_path / "rows.gz", "rt").read() == "a row"  # noqa: SIM115


def test_what_c_has_printed_is_written(tmp_path: Path) -> None:
    assert run(tmp_path, "ctypes.CDLL(None).printf(b'of C')").stdout == "of C"


@pytest.mark.parametrize(("library", "printed"), [("libc.so.6", ""), ("libanl.so.1", "exit function\n")])
def test_exit_functions_of_libraries_that_the_program_has_loaded_run(
    tmp_path: Path, library: str, printed: str
) -> None:
    text = f"""
    ctypes.CDLL("{library}")
    printing = ctypes.CDLL(None).puts
    kind = ctypes.CFUNCTYPE(None, ctypes.c_int, ctypes.c_void_p)
    json.kept = kind(lambda *_, puts=printing: puts(b"exit function") and None)
    ctypes.CDLL(None).on_exit(json.kept, None)
    """
    done = run(tmp_path, text)
    assert (done.returncode, done.stdout) == (7, printed), done.stderr


def test_output_that_cannot_be_written_is_the_interpreters_to_report(tmp_path: Path) -> None:
    program = "sys.stdout = sys.__stdout__ = open('/dev/full', 'w')\nprint('lost')"
    done = run(tmp_path, program)
    assert done.returncode != 7
    assert "No space left on device" in done.stderr


def test_what_was_to_be_finalized_in_the_parent_is_not_in_its_forks(tmp_path: Path) -> None:
    program = """
    import weakref
    from dist_train.agent.warm_parent.shared_modules import forget_finalizers
    def say(text): print(text, flush=True)
    json.parents = [weakref.finalize(Loud, say, "of the parent")]
    forget_finalizers()
    if os.fork() == 0:
        json.ranks = [weakref.finalize(Loud, say, "of the rank")]
    else:
        os.wait()
    """
    assert run(tmp_path, program).stdout == "of the rank\n"


THREAD = f"""{KEPT}
import threading, time, own_module
class Slow:
    def __del__(self, sleep=time.sleep): sleep(0.1)
own_module.slow = Slow()
def work(own_module=own_module, sleep=time.sleep):
    while True:
        own_module.own.name.upper()
        sleep(0.001)
"""


@pytest.mark.parametrize(
    "start",
    [
        "threading.Thread(target=work, daemon=True).start()",
        "import _thread; _thread.start_new_thread(work, ())",
        "timer = threading.Timer(0.05, work); timer.daemon = True; timer.start()",
    ],
)
def test_no_thread_of_the_program_runs_on_while_its_modules_are_finalized(tmp_path: Path, start: str) -> None:
    done = run(tmp_path, THREAD + start + "\ntime.sleep(0.02)")
    assert done.stderr == "", "a thread found its module's globals gone"
    assert "by the interpreter" in done.stdout.splitlines()
