"""Start-up time: the command line's packages never load torch, and --help loads no large library."""

from __future__ import annotations

import json

import pytest
from source_tree import fresh_interpreter, imports, light_packages, module_of, package_of, shipped

# What --help and `import dist_train` must not load.
HEAVY = ("torch", "numpy", "pydantic", "yaml", "rich", "torchx", "submitit", "kubernetes", "tensorboard")

# What `launch --help` and its completion must not load: 0.35 s of CPU with them, 0.08 s without.
NOT_FOR_LAUNCH_HELP = (
    *HEAVY,
    "click.shell_completion",
    "importlib.metadata",
    "launchers.kubernetes",
    "launchers.local",
    "launchers.slurm",
    "dist_train.cli.launch.build_job",
    "dist_train.cli.launch.submit_job",
    "dist_train.jobs.spec",
)
_COMPLETE = """
import contextlib, os
os.environ.update(COMP_WORDS="dist-train launch --no", COMP_CWORD="2", _DIST_TRAIN_COMPLETE="bash_complete")
with contextlib.suppress(SystemExit):
    run([])
"""

_IMPORT_EACH = """
import importlib, json, sys
loading = []
for name in json.loads(sys.argv[1]):
    importlib.import_module(name)
    if "torch" in sys.modules:
        loading.append(name)
        break
print(json.dumps(loading))
"""
_LOADED = """
import json, sys
{code}
print(json.dumps(sorted(name for name in json.loads(sys.argv[1]) if name in sys.modules)), file=sys.stderr)
"""


def light_modules() -> list[str]:
    """Every module of the light packages."""
    return [module_of(path) for path in shipped() if package_of(path) in light_packages()]


def test_light_packages_do_not_name_torch() -> None:
    wrong = [
        str(found)
        for path in shipped()
        if package_of(path) in light_packages()
        for found in imports(path)
        if found.module.partition(".")[0] == "torch"
    ]
    assert not wrong, "\n".join(wrong)


def test_importing_every_light_module_loads_no_torch() -> None:
    done = fresh_interpreter(_IMPORT_EACH, json.dumps(light_modules()))
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout) == [], "loads torch"


def test_each_launcher_loads_without_torch() -> None:
    code = (
        "from dist_train import registry\nfor n in registry.names('launchers'): registry.load('launchers', n)"
    )
    done = fresh_interpreter(_LOADED.format(code=code), json.dumps(["torch"]))
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stderr) == []


def test_every_verb_has_its_module_and_loads_no_torch() -> None:
    code = "from dist_train.cli.main import VERBS\nimport importlib\n"
    code += "for verb in VERBS: importlib.import_module(f'dist_train.cli.verbs.{verb}').COMMAND"
    done = fresh_interpreter(_LOADED.format(code=code), json.dumps(["torch"]))
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stderr) == []


@pytest.mark.parametrize(
    "code",
    ["import dist_train; dir(dist_train)", "from dist_train.cli.main import run; run(['--help'])"],
    ids=["import dist_train", "dist-train --help"],
)
def test_no_large_library_is_loaded(code: str) -> None:
    done = fresh_interpreter(_LOADED.format(code=code), json.dumps(HEAVY))
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stderr) == []


@pytest.mark.parametrize(
    ("code", "needed"),
    [("run(['launch', '--help'])", set()), (_COMPLETE, {"click.shell_completion"})],
    ids=["launch --help", "completion of an option"],
)
def test_help_and_completion_of_launch_load_no_launcher(code: str, needed: set[str]) -> None:
    code = f"from dist_train.cli.main import run\n{code}"
    done = fresh_interpreter(_LOADED.format(code=code), json.dumps(NOT_FOR_LAUNCH_HELP))
    assert done.returncode == 0, done.stderr
    assert "--nodes" in done.stdout
    assert set(json.loads(done.stderr)) == needed


def test_importing_a_package_loads_no_torch() -> None:
    packages = sorted({package_of(path) for path in shipped() if path.name == "__init__.py"})
    names = [name if name in ("launchers", "dist_train") else f"dist_train.{name}" for name in packages]
    done = fresh_interpreter(_IMPORT_EACH, json.dumps(names))
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout) == [], "its __init__ must resolve names on use"
