"""In a fresh interpreter: the package loads nothing heavy, and no use of it loads torch."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import dist_train.config

DIGITS = Path(__file__).parents[3] / "examples" / "digits.yaml"


def loaded_after(code: str) -> set[str]:
    """Top-level packages of a fresh interpreter after `code`."""
    script = f"{code}\nimport sys\nprint(*sorted({{name.partition('.')[0] for name in sys.modules}}))"
    done = subprocess.run(
        [sys.executable, "-P", "-c", script], capture_output=True, text=True, timeout=60, check=True
    )
    return set(done.stdout.split())


def test_importing_the_package_is_cheap() -> None:
    assert not {"torch", "pydantic", "yaml", "numpy", "xxhash"} & loaded_after("import dist_train.config")


def test_resolving_a_component_needs_no_schema() -> None:
    loaded = loaded_after("from dist_train.config import resolve; resolve('math:sqrt')")
    assert not {"torch", "pydantic", "yaml"} & loaded


def test_no_use_of_it_loads_torch() -> None:
    code = f"""
from pathlib import Path
import dist_train.config as c
from dist_train import registry
registry.names = lambda kind: ["ddp", "local"]
resolved = c.load_config(Path({str(DIGITS)!r}), ["seed=3"])
c.check_config(resolved.config, Path({str(DIGITS.parent)!r}), resolved.origins)
c.show(resolved), c.dump_config(resolved.config), c.config_xxh3(resolved.config), c.json_schema()
"""
    loaded = loaded_after(code)
    assert "pydantic" in loaded
    assert not {"torch", "dist_train.trainer"} & loaded


def test_every_public_name_resolves() -> None:
    for name in dist_train.config.__all__:
        assert getattr(dist_train.config, name) is not None
    assert set(dist_train.config.__all__) <= set(dir(dist_train.config))
