"""Files beside a script that have the name of a module which a rank has imported before it."""

from __future__ import annotations

import random
import sys
from importlib.machinery import all_suffixes
from pathlib import Path
from types import ModuleType

import pytest

from dist_train.agent.warm_parent.hiding_files import (
    forget_hidden_modules,
    hiding_files,
    hint_for_hidden_module,
)


@pytest.mark.parametrize("name", ["typing_extensions.py", "sympy"])
def test_a_file_beside_the_script_that_would_be_imported_instead(
    tmp_path: Path, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    module = ModuleType(name.removesuffix(".py"))
    module.__file__ = f"/elsewhere/{name}"
    monkeypatch.setitem(sys.modules, module.__name__, module)
    if name.endswith(".py"):
        (tmp_path / name).touch()
    else:
        (tmp_path / name).mkdir()
        assert hiding_files(tmp_path) == {}  # a folder without __init__.py comes last
        (tmp_path / name / "__init__.py").touch()
    assert hiding_files(tmp_path) == {module.__name__: name}
    module.__file__ = str(tmp_path / name)
    assert hiding_files(tmp_path) == {}


def test_files_that_hide_no_module_do_not_count(tmp_path: Path) -> None:
    for name in ("json.txt", "json", "sys.py", "os.py", "__main__.py", "dist_train.py", "my_data.py"):
        (tmp_path / name).touch()
    assert hiding_files(tmp_path) == {}


def test_a_file_hides_an_installed_module_whose_environment_is_in_its_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    module = ModuleType("installed_one")
    module.__file__ = str(tmp_path / ".venv" / "lib" / "installed_one.py")
    monkeypatch.setitem(sys.modules, "installed_one", module)
    (tmp_path / "installed_one.py").touch()
    assert hiding_files(tmp_path) == {"installed_one": "installed_one.py"}


OTHER_ABI = "hidden_one.cpython-39-x86_64-linux-gnu.so"


@pytest.mark.parametrize("name", ["hidden_one.bak.py", "hidden_one.old.so", OTHER_ABI, "hidden_one.txt"])
def test_a_file_that_no_import_finds_hides_nothing(
    tmp_path: Path, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "hidden_one", ModuleType("hidden_one"))
    (tmp_path / name).touch()
    assert hiding_files(tmp_path) == {}


def test_a_folder_and_a_dangling_link_with_the_name_of_a_file_hide_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "hidden_one", ModuleType("hidden_one"))
    (tmp_path / "hidden_one.py").mkdir()
    (tmp_path / "hidden_one.so").symlink_to(tmp_path / "missing")
    (tmp_path / "hidden_one").mkdir()
    (tmp_path / "hidden_one" / "__init__.py").mkdir()
    assert hiding_files(tmp_path) == {}


@pytest.mark.parametrize("suffix", all_suffixes())
@pytest.mark.parametrize("package", [False, True])
def test_whatever_an_import_finds_hides_a_module(
    tmp_path: Path, suffix: str, package: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "hidden_one", ModuleType("hidden_one"))
    file = tmp_path / "hidden_one" / f"__init__{suffix}" if package else tmp_path / f"hidden_one{suffix}"
    file.parent.mkdir(exist_ok=True)
    file.touch()
    assert hiding_files(tmp_path) == {"hidden_one": "hidden_one" if package else file.name}


def test_the_next_import_finds_the_file_and_earlier_ones_keep_the_module(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("hidden_one", "hidden_one.part"):
        monkeypatch.setitem(sys.modules, name, ModuleType(name))
    (tmp_path / "hidden_one.py").write_text("WHOSE = 'script'\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    assert forget_hidden_modules(tmp_path) == {"hidden_one": "hidden_one.py"}
    assert not {"hidden_one", "hidden_one.part"} & sys.modules.keys()
    assert random is sys.modules["random"]


def test_a_hint_names_the_file_that_hides_a_module_of_python(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    error = AttributeError("module 'random' has no attribute 'shuffle_all'")
    assert hint_for_hidden_module(error) is None  # the module is Python's own
    module = ModuleType("random")
    module.__file__ = str(tmp_path / "random.py")
    monkeypatch.setitem(sys.modules, "random", module)
    assert f"{module.__file__} is imported in place of" in (hint_for_hidden_module(error) or "")
    assert hint_for_hidden_module(ImportError("cannot import name 'a' from 'random' (x)")) is not None
    assert hint_for_hidden_module(ValueError(str(error))) is None
    assert hint_for_hidden_module(AttributeError("'Row' object has no attribute 'random'")) is None


def test_a_link_beside_the_script_is_the_module_that_it_was_imported_as(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "elsewhere" / "linked_one.py").touch()
    (tmp_path / "linked_one.py").symlink_to(tmp_path / "elsewhere" / "linked_one.py")
    module = ModuleType("linked_one")
    module.__file__ = str(tmp_path / "linked_one.py")
    monkeypatch.setitem(sys.modules, "linked_one", module)
    assert hiding_files(tmp_path) == {}
