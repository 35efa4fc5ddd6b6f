"""What a person waits for: rooms of the command line never load torch, and --help loads next to nothing."""

from __future__ import annotations

import json

import pytest
from source_tree import fresh_interpreter, imports, light_rooms, module_of, room_of, shipped

# For --help and for `import dist_train`: none of these.
HEAVY = ("torch", "numpy", "pydantic", "yaml", "rich", "torchx", "submitit", "kubernetes", "tensorboard")

_IMPORT_EACH = """
import importlib, json, sys
guilty = []
for name in json.loads(sys.argv[1]):
    importlib.import_module(name)
    if "torch" in sys.modules:
        guilty.append(name)
        break
print(json.dumps(guilty))
"""
_LOADED = """
import json, sys
{code}
print(json.dumps(sorted(name for name in json.loads(sys.argv[1]) if name in sys.modules)), file=sys.stderr)
"""


def light_modules() -> list[str]:
    """Every module of the light rooms."""
    return [module_of(path) for path in shipped() if room_of(path) in light_rooms()]


def test_light_rooms_do_not_name_torch() -> None:
    wrong = [
        str(found)
        for path in shipped()
        if room_of(path) in light_rooms()
        for found in imports(path)
        if found.module.partition(".")[0] == "torch"
    ]
    assert not wrong, "\n".join(wrong)


def test_importing_every_light_module_loads_no_torch() -> None:
    done = fresh_interpreter(_IMPORT_EACH, json.dumps(light_modules()))
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout) == [], "loads torch"


def test_each_adapter_of_the_light_rooms_loads_without_torch() -> None:
    code = (
        "from dist_train import registry\nfor n in registry.names('launchers'): registry.load('launchers', n)"
    )
    done = fresh_interpreter(_LOADED.format(code=code), json.dumps(["torch"]))
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stderr) == []


def test_every_verb_has_its_module_and_loads_no_torch() -> None:
    code = "from dist_train.cli.main import VERBS\nimport importlib\n"
    code += "for verb, (module, _) in VERBS.items(): importlib.import_module(module).COMMAND"
    done = fresh_interpreter(_LOADED.format(code=code), json.dumps(["torch"]))
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stderr) == []


@pytest.mark.parametrize(
    "code",
    ["import dist_train; dir(dist_train)", "from dist_train.cli.main import run; run(['--help'])"],
    ids=["import dist_train", "dist-train --help"],
)
def test_next_to_nothing_is_loaded(code: str) -> None:
    done = fresh_interpreter(_LOADED.format(code=code), json.dumps(HEAVY))
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stderr) == []


def test_importing_a_room_loads_no_torch() -> None:
    rooms = sorted({room_of(path) for path in shipped() if path.name == "__init__.py"})
    names = [name if name in ("launchers", "dist_train") else f"dist_train.{name}" for name in rooms]
    done = fresh_interpreter(_IMPORT_EACH, json.dumps(names))
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout) == [], "its __init__ must resolve names on use"
