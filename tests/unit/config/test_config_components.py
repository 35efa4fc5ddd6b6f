"""Components: resolved by import with a clear error, and checked without importing anything."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Iterator
from functools import partial
from importlib.metadata import EntryPoint
from pathlib import Path

import pytest

from dist_train import registry
from dist_train.config import SHORTCUTS, check_arguments, check_target, resolve
from dist_train.config.shortcuts import short_names
from dist_train.errors import ConfigError

FILES = {
    "toys/__init__.py": """
from toys.nets import Net as Exported
from .nets import *
from .nets import make as Made
""",
    "toys/nets.py": """
import os, json as j
from typing import Any
raise RuntimeError("imported")
class Net:
    def __init__(self, width, *, depth=1): pass
    @classmethod
    def small(cls): pass
class Loose:
    def __init__(self, **kwargs): pass
class Child(Net): pass
class Meta(metaclass=type):
    def __init__(self): pass
def make(a, b=2, /, c=3, *rest, d): pass
@staticmethod
def wrapped(a): pass
first, (second, *third) = 1, (2, 3)
typed: int = 3
unset: int
if os.name == "posix":
    def twice(a): pass
else:
    def twice(b): pass
try:
    import numpy
except ImportError as failed:
    fallback = None
with open("x") as handle:
    inside = 1
for number in range(3):
    last = number
def _private(): hidden = 1
""",
    "toys/relative.py": "from .nets import Net\nfrom . import nets as n\nfrom toys.reexport import Other\n",
    "toys/reexport.py": "from .nets import make as Other\n",
    "toys/lazy.py": "def __getattr__(name): ...\n",
    "toys/dynamic.py": "globals()['x'] = 1\n",
    "toys/broken.py": "def f(:\n",
    "bare/inner.py": "class Net: pass\n",
    "good.py": "class Net:\n    def make(self): return 1\n",
    "needs.py": "import good\nimport flsh_attn\n",
    "raises.py": "def inner():\n    raise ValueError('no such gpu')\ninner()\n",
    "leaves.py": "import sys\nsys.exit(3)\n",
}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for name, text in FILES.items():
        path = tmp_path / name
        path.parent.mkdir(exist_ok=True)
        path.write_text(text)
    return tmp_path


@pytest.fixture
def importable(folder: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    monkeypatch.syspath_prepend(str(folder))
    importlib.invalidate_caches()
    yield folder
    # Only these: reimporting a module of ours would create a second copy.
    for name in {relative.split("/")[0].removesuffix(".py") for relative in FILES}:
        for loaded in [key for key in sys.modules if key.split(".")[0] == name]:
            del sys.modules[loaded]


def refusal(target: str, folder: Path, **arguments: object) -> str:
    check = partial(check_arguments, target, arguments) if arguments else partial(check_target, target)
    with pytest.raises(ConfigError) as caught:
        check([folder])
    assert caught.value.exit_code == 78
    return str(caught.value)


def test_resolve_imports_what_a_target_names(importable: Path) -> None:
    import good

    assert resolve("good:Net") is good.Net
    assert resolve("good:Net.make") is good.Net.make
    assert resolve("short", shortcuts={"short": "good:Net"}) is good.Net


@pytest.mark.parametrize(
    ("target", "expected"),
    [
        ("good:Nat", ["good has no 'Nat'", "did you mean `Net`?"]),
        ("god:Net", ["no module is called 'god'", "did you mean 'good'?"]),
        ("good.py:Net", ["name the module, not the file: good"]),
        (
            "needs:Net",
            ["importing needs failed", "No module named 'flsh_attn'", "needs.py:2: import flsh_attn"],
        ),
        ("raises:Net", ["ValueError: no such gpu", "raises.py:3: inner()", "raises.py:2: raise ValueError"]),
        ("leaves:Net", ["SystemExit: 3", "leaves.py:2"]),
        ("toys.broken:f", ["RuntimeError: imported", "nets.py:4"]),
        ("accurcy", ["'accurcy' is no short name", "did you mean `accuracy`?", "package.module:Name"]),
        ("good.Net", ["has no colon", 'did you mean "good:Net"?']),
    ],
)
def test_resolve_says_what_failed(importable: Path, target: str, expected: list[str]) -> None:
    with pytest.raises(ConfigError) as caught:
        resolve(target, shortcuts={"accuracy": "good:Net", "mse": "good:Net"})
    assert caught.value.exit_code == 78
    assert [word for word in expected if word not in str(caught.value)] == []


@pytest.mark.parametrize(
    "name",
    [
        *("os", "j", "Any", "numpy"),
        *("Net", "Net.small", "Loose", "make", "wrapped", "twice", "_private"),
        *("first", "second", "third", "typed", "fallback", "handle", "inside", "number", "last"),
    ],
)
def test_a_name_bound_at_top_level_is_found(folder: Path, name: str) -> None:
    check_target(f"toys.nets:{name}", [folder])
    assert "toys" not in sys.modules


@pytest.mark.parametrize("name", ["hidden", "unset", "small", "width", "Nett", "json"])
def test_a_name_that_is_not_bound_is_refused(folder: Path, name: str) -> None:
    assert f"nets.py binds no '{name}'" in refusal(f"toys.nets:{name}", folder)


@pytest.mark.parametrize(
    "target",
    [
        "toys:Exported",
        "toys:anything",
        "toys:nets",
        "toys.lazy:x",
        "toys.dynamic:x",
        "bare:inner",
        "math:sqrt",
    ],
)
def test_what_cannot_be_decided_is_accepted(folder: Path, target: str) -> None:
    check_target(target, [folder])


@pytest.mark.parametrize(
    ("target", "expected"),
    [
        ("toys.nets:Nett", "did you mean `Net`?"),
        ("toys.nest:Net", "did you mean 'toys.nets'?"),
        ("toyz:Net", "did you mean 'toys'?"),
        ("toys.nets.deeper:Net", "no module is called 'toys.nets.deeper'"),
        ("toys.broken:f", "broken.py:1: invalid syntax"),
        ("bare:Net", "bare is a folder without __init__.py"),
        ("bare:Net", "name a module in it: bare.inner"),
        ("nets.py:Net", "no module is called 'nets.py'"),
    ],
)
def test_a_static_refusal_names_the_nearest(folder: Path, target: str, expected: str) -> None:
    assert expected in refusal(target, folder)


def test_the_configs_folder_comes_first_and_a_new_file_is_seen(folder: Path) -> None:
    (folder / "json.py").write_text("class Mine: pass\n")
    check_target("json:Mine", [folder])
    assert "binds no 'Mine'" in refusal("json:Mine", folder / "bare")


@pytest.mark.parametrize(
    ("target", "args"),
    [
        ("toys.nets:Net", {"width": 1, "depth": 2}),
        ("toys.nets:Loose", {"anything": 1}),
        ("toys.nets:Child", {"anything": 1}),
        ("toys.nets:Meta", {"anything": 1}),
        ("toys.nets:make", {"c": 1, "d": 2}),
        ("toys.nets:wrapped", {"anything": 1}),
        ("toys.nets:twice", {"anything": 1}),
        ("toys.nets:Net.small", {"anything": 1}),
        ("toys.nets:typed", {"anything": 1}),
        ("toys.relative:Net", {"width": 1}),
        ("math:sqrt", {"anything": 1}),
    ],
)
def test_arguments_that_match_or_cannot_be_decided_are_accepted(
    folder: Path, target: str, args: dict[str, object]
) -> None:
    check_arguments(target, args, [folder])


@pytest.mark.parametrize(
    ("target", "args", "expected"),
    [
        ("toys.nets:Net", {"widht": 1}, "did you mean `width`?"),
        ("toys.nets:Net", {"self": 1}, "takes no argument 'self'"),
        ("toys.nets:make", {"a": 1}, "takes no argument 'a'"),
        ("toys.relative:Net", {"dpth": 1}, "did you mean `depth`?"),
        ("toys.relative:Other", {"b": 1}, "choose one of: c, d"),
        ("toys:Exported", {"dpth": 1}, "did you mean `depth`?"),
        ("toys:Made", {"b": 1}, "choose one of: c, d"),
    ],
)
def test_an_unknown_argument_is_refused(
    folder: Path, target: str, args: dict[str, object], expected: str
) -> None:
    assert expected in refusal(target, folder, **args)
    assert "toys" not in sys.modules


def test_every_shortcut_names_something_that_exists() -> None:
    for kind, table in SHORTCUTS.items():
        for name in table:
            check_target(name, shortcuts=SHORTCUTS[kind])


def test_arguments_of_torchs_own_optimizers_are_known() -> None:
    check_arguments("adamw", {"lr": 0.1, "weight_decay": 0.0}, shortcuts=SHORTCUTS["optimizer"])
    with pytest.raises(ConfigError, match="did you mean `weight_decay`"):
        check_arguments("adamw", {"weight_decya": 0.1}, shortcuts=SHORTCUTS["optimizer"])


def test_short_names_of_callbacks_are_those_of_the_registry_and_of_other_distributions(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    ours = short_names("callbacks")
    assert ours["ema"] == "dist_train.trainer.callbacks.ema:EMA"
    for name in ours:
        check_target(name, shortcuts=ours)
    theirs = EntryPoint("journal", "journal.callbacks:Journal", "dist_train.callbacks")
    monkeypatch.setattr(registry, "entry_points", lambda group: [theirs])
    registry._owners.cache_clear()
    try:
        assert short_names("callbacks") == {**ours, "journal": "journal.callbacks:Journal"}
    finally:
        registry._owners.cache_clear()
