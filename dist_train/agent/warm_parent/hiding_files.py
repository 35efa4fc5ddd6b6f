"""Files beside a script that have the name of an imported module: `import` gives them, as under python.

Under `python train.py` the script's folder comes first on sys.path, so that its random.py hides Python's own
random from everybody. A rank has imported many modules before the script begins, and a fork torch too.
"""

from __future__ import annotations

import os
import re
import sys
from importlib.machinery import BuiltinImporter, FrozenImporter, all_suffixes
from pathlib import Path

_STDLIB = Path(os.__file__).parent
# "module 'random' has no attribute …", "cannot import name … from 'random' (…)"
_MODULE_IN_ERROR = re.compile(r"\b(?:module|from) '(\w+)'")
# The rank's own program, and the packages of which it is a part.
_OURS = ("__main__", "__init__", "dist_train", "launchers")


def hiding_files(folder: Path) -> dict[str, str]:
    """Return the files and packages there that `import` would have found instead of an imported module.

    Returns:
        name of the module -> name of the file or package.
    """
    try:
        found = sorted(entry.name for entry in os.scandir(folder))
    except OSError:
        return {}
    at_start = _imported_at_start()
    return {
        module: name
        for name in found
        if (module := name.split(".")[0]) in sys.modules
        and module not in at_start
        and _is_importable(folder, name)
        and not _is_from(folder, module)
    }


def forget_hidden_modules(folder: Path) -> dict[str, str]:
    """Let the next `import` find the files there that hide imported modules, as hiding_files() returns them.

    What has been imported keeps the modules that it has: a rank's own program is not changed by it.
    """
    hiding = hiding_files(folder)
    if hiding:
        # The rank needs it once the script has failed; from now on an import may find the script's files.
        import dist_train.agent.failures.error_hints  # noqa: F401
    for name in [name for name in sys.modules if name.split(".")[0] in hiding]:
        del sys.modules[name]
    return hiding


def hint_for_hidden_module(error: BaseException) -> str | None:
    """Return a hint where an import or attribute failed since such a file hides a module of Python's."""
    if not isinstance(error, (ImportError, AttributeError)):
        return None
    for name in _MODULE_IN_ERROR.findall(str(error)):
        file = getattr(sys.modules.get(name), "__file__", None)
        if name in sys.stdlib_module_names and file and not Path(file).is_relative_to(_STDLIB):
            return f"{file} is imported in place of Python's own module {name}: rename it"
    return None


def _imported_at_start() -> frozenset[str]:
    """What the interpreter imports before it looks at any script's folder: such files hide nothing.

    Of a program that is run by `python -m`, as agents and ranks are, runpy is the first import.
    """
    if getattr(sys.modules["__main__"], "__spec__", None) is None:
        return frozenset()
    names = list(sys.modules)
    return frozenset(names[: names.index("runpy")] if "runpy" in names else ())


def _is_importable(folder: Path, name: str) -> bool:
    """Whether an import of the name before the first dot finds this file or package, and finds it first.

    A folder without __init__ comes last of all, after the standard library and site-packages.
    """
    module = name.split(".")[0]
    if module in _OURS or BuiltinImporter.find_spec(module) or FrozenImporter.find_spec(module):
        return False
    if name == module:
        return any((folder / name / f"__init__{suffix}").is_file() for suffix in all_suffixes())
    return name.removeprefix(module) in all_suffixes() and (folder / name).is_file()


def _is_from(folder: Path, module: str) -> bool:
    """Whether the module is the one of this folder."""
    file = getattr(sys.modules[module], "__file__", None)
    if file is None:
        return False
    # A link beside the script is found there, and may lead elsewhere.
    parents = (Path(file).parent, Path(file).resolve().parent)
    return any(
        parent in (place, place / module) for parent in parents for place in (folder, folder.resolve())
    )
