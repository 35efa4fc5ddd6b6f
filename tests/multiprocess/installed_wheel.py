"""The wheel in a venv of its own: dist-train as users install it, without the checkout."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import pytest

from dist_train.testing.command import CliResult

ROOT = Path(__file__).resolve().parent.parent.parent


@dataclass(frozen=True)
class Installed:
    """A venv with the wheel; its dependencies come from this environment."""

    venv: Path
    home: Path
    cwd: Path

    @property
    def environ(self) -> dict[str, str]:
        """An empty HOME and none of our variables; the venv's programs come first."""
        kept = {name: os.environ[name] for name in ("LANG", "LEAK_CHECK_TEST") if name in os.environ}
        path = f"{self.venv / 'bin'}:{os.environ['PATH']}"
        return {**kept, "PATH": path, "HOME": str(self.home), "OMP_NUM_THREADS": "1"}

    def run(self, words: Sequence[str], timeout_s: float = 100.0) -> CliResult:
        """Run a command of the venv."""
        done = subprocess.run(
            [str(self.venv / "bin" / words[0]), *words[1:]],
            cwd=self.cwd,
            env=self.environ,
            capture_output=True,
            text=True,
            timeout=timeout_s,
        )
        return CliResult(done.returncode, done.stdout, done.stderr, 0.0)

    def in_folder(self, cwd: Path, home: Path) -> Installed:
        """The same venv with another working directory and HOME."""
        return replace(self, cwd=cwd, home=home)


@pytest.fixture(scope="session")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The wheel, built from the checkout without an index."""
    folder = tmp_path_factory.mktemp("wheel")
    words = ["-m", "build", "--wheel", "--no-isolation", "--outdir", str(folder), str(ROOT)]
    done = subprocess.run([sys.executable, *words], capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stdout + done.stderr
    (built,) = folder.glob("dist_train-*.whl")
    return built


@pytest.fixture(scope="session")
def installed(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Installed:
    """The wheel in a venv of its own; its dependencies come from this environment."""
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
