"""When ranks are spawned and not forked: what a fork of a process that has imported torch cannot be."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from dist_train import env
from dist_train.agent.command_line import read_settings
from dist_train.agent.settings import Settings
from dist_train.agent.warm_parent.process_environ import fitting
from dist_train.agent.warm_parent.spawn_reason import (
    is_expected,
    reason_after_import,
    reason_before_import,
)
from dist_train.prewarm.early_variables import early_variables, first_difference, named_in


def agent_settings(
    folder: Path, kind: str = "script", value: str = "train.py", device: str = "cpu"
) -> Settings:
    environ = {
        env.RUN_DIR: str(folder / "run"),
        env.RUN_ID: "r",
        env.NNODES: "1",
        env.NODE_RANK: "0",
        env.NPROC_PER_NODE: "2",
        env.RDZV: "tcp://127.0.0.1:29500",
        env.LAUNCHER: "local",
    }
    return read_settings(["--device", device, kind, value], environ)


def script(folder: Path, text: str = "import torch\n") -> Path:
    path = folder / "train.py"
    path.write_text(text)
    return path


def before(folder: Path, text: str = "import torch\n", device: str = "cpu", **environ: str) -> str | None:
    settings = agent_settings(folder, kind="script", value=str(script(folder, text)), device=device)
    return reason_before_import(settings, environ)


def test_a_plain_script_on_the_cpu_is_forked(tmp_path: Path) -> None:
    assert before(tmp_path) is None


@pytest.mark.parametrize(
    ("environ", "word"),
    [({env.START_METHOD: "spawn"}, "START_METHOD=spawn"), ({"LD_PRELOAD": "libjemalloc.so"}, "LD_PRELOAD")],
)
def test_variables_that_ask_for_spawned_ranks(tmp_path: Path, environ: dict[str, str], word: str) -> None:
    assert word in (before(tmp_path, **environ) or "")


def test_cuda_ranks_are_spawned_and_nothing_is_said_of_it(tmp_path: Path) -> None:
    assert "cuda" in (before(tmp_path, device="cuda") or "")
    assert is_expected(agent_settings(tmp_path, device="cuda"), {})
    assert not is_expected(agent_settings(tmp_path, device="cpu"), {"LD_PRELOAD": "x.so"})


@pytest.mark.parametrize(
    "text",
    [
        'import os\nos.environ["OMP_NUM_THREADS"] = "4"\nimport torch\n',
        "import os\nos.environ.setdefault('MKL_CBWR', 'COMPATIBLE')\nimport torch\n",
        "os.putenv('TORCH_LOGS', '+dynamo')\n",
        "os.environ.update(OMP_NUM_THREADS='2')\n",
        "for library in ('OMP', 'MKL'): os.environ[f'{library}_NUM_THREADS'] = '2'\n",
        "os.environ['CXX'] = 'clang++'\n",
    ],
)
def test_a_script_that_sets_what_the_import_of_torch_reads(tmp_path: Path, text: str) -> None:
    assert "which is read while torch is imported" in (before(tmp_path, text) or "")


def test_a_script_that_chooses_where_modules_come_from(tmp_path: Path) -> None:
    text = "import sys\nsys.path.insert(0, 'src')\nimport torch\n"
    assert "changes sys.path" in (before(tmp_path, text) or "")
    assert "changes sys.path" in (before(tmp_path, "sys.path[:0] = ['src']\n") or "")
    assert before(tmp_path, "sys.path.append('src'); print(sys.path[0]); sys.path == []\n") is None


def test_other_variables_of_a_script_do_not_count() -> None:
    assert named_in('os.environ["CUDA_VISIBLE_DEVICES"] = "0"; os.environ["MASTER_ADDR"]') is None


def test_a_file_beside_the_script_or_config_that_hides_a_module(tmp_path: Path) -> None:
    (tmp_path / "json.py").touch()
    asked = agent_settings(tmp_path, value=str(script(tmp_path)))
    assert f"json.py in {tmp_path} hides the module" in (reason_after_import(asked) or "")
    config = replace(asked, kind="config", folder=str(tmp_path))
    assert f"json.py in {tmp_path} has the name of a module that dist-train" in (
        reason_after_import(config) or ""
    )


def test_a_module_that_has_been_imported_already(tmp_path: Path) -> None:
    settings = agent_settings(tmp_path, kind="module", value="json.decoder")
    assert "json.decoder has been imported" in (reason_after_import(settings) or "")


def test_variables_that_a_fork_cannot_change() -> None:
    environ = {"OMP_NUM_THREADS": "2", "PYTHONPATH": "/a", "LC_ALL": "C", "RANK": "0", "NCCL_DEBUG": "INFO"}
    assert early_variables(environ).keys() == {"OMP_NUM_THREADS", "PYTHONPATH", "LC_ALL"}
    assert first_difference(environ, {**environ, "RANK": "1", "NCCL_DEBUG": "WARN"}) is None
    assert first_difference(environ, {**environ, "OMP_NUM_THREADS": "3"}) == "OMP_NUM_THREADS"
    assert first_difference(environ, {**environ, "MKL_NUM_THREADS": "3"}) == "MKL_NUM_THREADS"


def test_only_whole_variables_are_shown() -> None:
    assert fitting([b"A=1", b"LONG=" + b"x" * 20, b"B=2"], 12) == b"A=1\0B=2\0".ljust(12, b"\0")
