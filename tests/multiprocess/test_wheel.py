"""The wheel, installed outside the checkout: --help, and the digits on two simulated nodes."""

from __future__ import annotations

import json
import zipfile
from pathlib import Path

import pytest
from installed_wheel import Installed

pytestmark = [pytest.mark.multiprocess, pytest.mark.xdist_group("wheel")]

LAUNCH = ("--nodes", "2", "--gpus-per-node", "1", "--device", "cpu")


def test_it_contains_what_a_run_needs(wheel: Path) -> None:
    names = set(zipfile.ZipFile(wheel).namelist())
    needed = {"dist_train/py.typed", "launchers/py.typed", "launchers/local.py"}
    needed |= {"dist_train/examples/digits.yaml", "dist_train/datasets/files/digits.csv.gz"}
    needed |= {"dist_train/cli/starter/train.yaml", "dist_train/cli/starter/model.py.template"}
    assert not needed - names
    strangers = {name for name in names if not name.startswith(("dist_train/", "launchers/", "dist_train-"))}
    assert not strangers
    assert any(name.endswith("licenses/LICENSE") for name in names)


def test_the_wheels_code_is_imported(installed: Installed) -> None:
    code = "import dist_train; from dist_train import registry as r; l = r.load('launchers', 'local')"
    code += "; import sys; print(dist_train.__file__, sys.modules['launchers.local'].__file__)"
    done = installed.run(["python", "-P", "-c", code])
    assert done.code == 0, str(done)
    assert all(path.startswith(str(installed.venv)) for path in done.stdout.split()), done.stdout


def test_help_works(installed: Installed) -> None:
    done = installed.run(["dist-train", "--help"])
    assert done.code == 0, str(done)
    assert "launch" in done.stdout
    assert done.stderr == ""
    assert not list(installed.home.iterdir())


@pytest.mark.proof
@pytest.mark.proves(
    "The wheel alone, elsewhere, with an empty HOME, trains the digits",
    limits="dependencies of this environment",
)
def test_the_bundled_digits_are_trained(installed: Installed) -> None:
    bundled = next(installed.venv.glob("lib/python3*/site-packages/dist_train/examples/digits.yaml"))
    done = installed.run(["dist-train", "launch", *LAUNCH, str(bundled), "trainer.epochs=1"])
    assert done.code == 0, str(done)
    assert (installed.cwd / "runs" / "digits-1" / "result.json").is_file(), str(done)
    assert not list(installed.home.iterdir()), "something was written into HOME"


def test_without_a_target_the_bundled_example_is_launched(installed: Installed) -> None:
    done = installed.run(["dist-train", "launch", *LAUNCH, "--dry-run"])
    assert done.code == 0, str(done)
    assert f"training the bundled digits example ({installed.venv}" in done.stderr
    assert "dist_train/examples/digits.yaml" in done.stdout


@pytest.mark.proves(
    "What `dist-train init` writes trains unchanged",
)
@pytest.mark.proof
def test_the_project_that_init_writes_can_be_trained(installed: Installed, tmp_path: Path) -> None:
    newcomer = installed.in_folder(tmp_path, installed.home)
    assert newcomer.run(["dist-train", "init", "mine"]).code == 0
    done = installed.in_folder(tmp_path / "mine", installed.home).run(
        ["dist-train", "launch", "train.yaml", "--gpus-per-node", "2"]
    )
    assert done.code == 0, str(done)
    result = json.loads((tmp_path / "mine" / "runs" / "train-1" / "result.json").read_text())
    assert (result["samples"], result["world_size"]) == (15_000, 2)
    assert result["metrics"]["accuracy"] > 0.9
