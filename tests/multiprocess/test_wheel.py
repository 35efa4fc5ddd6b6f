"""The wheel, installed outside the checkout: --help, and the digits on two simulated nodes."""

from __future__ import annotations

import os
import subprocess
import sys
import zipfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import pytest

from dist_train.testing.command import CliResult

pytestmark = pytest.mark.multiprocess

ROOT = Path(__file__).resolve().parent.parent.parent
LAUNCH = ("--nodes", "2", "--gpus-per-node", "1", "--device", "cpu")


@dataclass(frozen=True)
class Installed:
    """A venv that holds the wheel, and of everything else what this environment has."""

    venv: Path
    home: Path
    cwd: Path

    def run(self, words: Sequence[str], timeout_s: float = 100.0) -> CliResult:
        """One command of the venv, with an empty HOME, in another folder, with none of our variables."""
        environ = {
            name: os.environ[name] for name in ("PATH", "LANG", "LEAK_POLICE_TEST") if name in os.environ
        }
        environ |= {"HOME": str(self.home), "OMP_NUM_THREADS": "1"}
        program = str(self.venv / "bin" / words[0])
        done = subprocess.run(
            [program, *words[1:]],
            cwd=self.cwd,
            env=environ,
            capture_output=True,
            text=True,
            timeout=timeout_s,
        )
        return CliResult(done.returncode, done.stdout, done.stderr, 0.0)


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Built from the checkout without asking any index."""
    folder = tmp_path_factory.mktemp("wheel")
    words = ["-m", "build", "--wheel", "--no-isolation", "--outdir", str(folder), str(ROOT)]
    done = subprocess.run([sys.executable, *words], capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stdout + done.stderr
    (built,) = folder.glob("dist_train-*.whl")
    return built


@pytest.fixture(scope="module")
def installed(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Installed:
    """The wheel alone in a venv of its own; its dependencies come from this environment."""
    place = Installed(*(tmp_path_factory.mktemp(name) for name in ("venv", "home", "elsewhere")))
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(place.venv)], check=True, timeout=60)
    (site,) = place.venv.glob("lib/python3*/site-packages")
    pip = [
        sys.executable,
        "-m",
        "pip",
        "--disable-pip-version-check",
        "--python",
        str(place.venv / "bin/python"),
    ]
    words = ["install", "--quiet", "--no-deps", "--no-index", str(wheel)]
    subprocess.run([*pip, *words], check=True, timeout=120, capture_output=True)
    # A line of a .pth adds a folder without reading that folder's own .pth files: the checkout's
    # editable install stays out, and the venv's own folder comes first.
    others = [path for path in sys.path if path.endswith(("site-packages", "dist-packages"))]
    (site / "the-others.pth").write_text("\n".join(others) + "\n")
    return place


def test_it_holds_what_a_run_needs(wheel: Path) -> None:
    names = set(zipfile.ZipFile(wheel).namelist())
    needed = {"dist_train/py.typed", "launchers/py.typed", "launchers/local.py"}
    needed |= {"dist_train/examples/digits.yaml", "dist_train/datasets/files/digits.csv.gz"}
    assert not needed - names
    strangers = {name for name in names if not name.startswith(("dist_train/", "launchers/", "dist_train-"))}
    assert not strangers
    assert any(name.endswith("licenses/LICENSE") for name in names)


def test_it_is_the_wheels_code_that_runs(installed: Installed) -> None:
    code = "import dist_train; from dist_train import registry as r; l = r.load('launchers', 'local')"
    code += "; import sys; print(dist_train.__file__, sys.modules['launchers.local'].__file__)"
    said = installed.run(["python", "-P", "-c", code])
    assert said.code == 0, str(said)
    assert all(path.startswith(str(installed.venv)) for path in said.stdout.split()), said.stdout


def test_help_works(installed: Installed) -> None:
    said = installed.run(["dist-train", "--help"])
    assert said.code == 0, str(said)
    assert "launch" in said.stdout
    assert said.stderr == ""
    assert not list(installed.home.iterdir())


def test_the_bundled_digits_are_trained(installed: Installed) -> None:
    bundled = next(installed.venv.glob("lib/python3*/site-packages/dist_train/examples/digits.yaml"))
    said = installed.run(["dist-train", "launch", *LAUNCH, str(bundled), "trainer.epochs=1"])
    assert said.code == 0, str(said)
    assert (installed.cwd / "runs" / "digits-1" / "result.json").is_file(), str(said)
    assert not list(installed.home.iterdir()), "something was written into HOME"


def test_no_target_is_the_bundled_example(installed: Installed) -> None:
    said = installed.run(["dist-train", "launch", *LAUNCH, "--dry-run"])
    assert said.code == 0, str(said)
    assert f"training the bundled digits example ({installed.venv}" in said.stderr
    assert "dist_train/examples/digits.yaml" in said.stdout
