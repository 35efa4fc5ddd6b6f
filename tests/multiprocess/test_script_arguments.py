"""A script gets the arguments and the variables that were typed, whatever they look like."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from conftest import Launch

pytestmark = pytest.mark.multiprocess
WORDS = ["--", "a b", "--", "@PORT@", "@JOB@", "@PARENT@", "--parent-pid", "@PARENT@", "", "--device"]


@pytest.mark.parametrize("kind", ["script", "module"])
def test_arguments_and_variables_come_through_exact(launch: Launch, tmp_path: Path, kind: str) -> None:
    (tmp_path / "words.py").write_text(
        "import json, os, sys\njson.dump([sys.argv[1:], os.environ['PORTS']], open('seen.json', 'w'))\n"
    )
    target = ["words.py"] if kind == "script" else ["-m", "words"]
    ports = "@PORT@,@JOB@,@PARENT@"
    finished = launch("r", "--env", f"PORTS={ports}", *target, *WORDS, timeout_s=60)
    assert finished.cli.code == 0, finished.cli
    assert json.loads((tmp_path / "seen.json").read_text()) == [WORDS, ports]
