"""Scripts for torch.distributed.launch: when each rank gets --local_rank, and the notices."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from dist_train.agent.command_line import read_settings
from dist_train.cli.launch.local_rank_flag import local_rank_flag
from dist_train.errors import UsageError
from dist_train.jobs.agent_command import agent_argv
from dist_train.jobs.spec import JobSpec, Target

UNDERSCORE = "parser.add_argument('--local_rank', type=int, default=0)"
DASH = "def options(p):\n    p.add_argument('-v'); p.add_argument('--local-rank', '--local_rank', type=int)"


def script(tmp_path: Path, text: str, *words: str) -> Target:
    path = tmp_path / "train.py"
    path.write_text(text)
    return Target("script", str(path), words, str(tmp_path))


@pytest.mark.parametrize(
    ("text", "flag"),
    [
        (UNDERSCORE, "--local_rank"),
        (DASH, "--local-rank"),
        ("parser.add_argument('--local_rank', action='store_true')", ""),  # takes no value
        ("parser.add_argument(name)", ""),
        ("rank = int(os.environ['LOCAL_RANK'])  # not --local_rank", ""),
        ("'''--local_rank'''\nprint('--local_rank')", ""),
        ("def broken(:", ""),
    ],
)
def test_the_flag_is_the_one_that_the_script_surely_takes(tmp_path: Path, text: str, flag: str) -> None:
    found, said = local_rank_flag(None, script(tmp_path, text))
    assert found == flag
    assert bool(said) == bool(flag), "never unsaid, and nothing said of others"
    if flag:
        assert f"train.py takes {flag}: each rank gets its own" in said[0]


def test_a_module_is_read_as_a_script_is_and_not_imported(tmp_path: Path) -> None:
    package = tmp_path / "trainer_of_old"
    package.mkdir()
    (package / "__init__.py").write_text("raise RuntimeError('imported')")
    (package / "__main__.py").write_text(UNDERSCORE)
    (package / "train.py").write_text(DASH)
    assert local_rank_flag(None, Target("module", "trainer_of_old", (), str(tmp_path)))[0] == "--local_rank"
    assert (
        local_rank_flag(None, Target("module", "trainer_of_old.train", (), str(tmp_path)))[0]
        == "--local-rank"
    )
    assert local_rank_flag(None, Target("module", "trainer_of_old.none", (), str(tmp_path))) == ("", ())


@pytest.mark.filterwarnings("error")
def test_the_script_s_own_warnings_are_left_to_its_ranks(tmp_path: Path) -> None:
    old = script(tmp_path, UNDERSCORE + "\nre.match('\\d', '1')")
    assert local_rank_flag(None, old)[0] == "--local_rank", "not read as a broken script, nothing on stderr"


def test_an_uncertain_case_has_a_notice_and_no_flag(tmp_path: Path) -> None:
    typed = script(tmp_path, UNDERSCORE, "--lr", "0.1", "--local_rank=0")
    assert local_rank_flag(None, typed) == (
        "",
        ("--local_rank=0 stands after train.py: every rank gets it as it is typed",),
    )
    flag, said = local_rank_flag(None, script(tmp_path, UNDERSCORE + "\nparser.add_subparsers()"))
    assert flag == ""
    assert "has sub-commands: not handed over (--legacy-local-rank underscore does)" in said[0]


def test_the_option_decides_without_looking(tmp_path: Path) -> None:
    plain, old = script(tmp_path, "import click"), script(tmp_path, UNDERSCORE)
    assert local_rank_flag("dash", plain) == ("--local-rank", ())
    assert local_rank_flag("underscore", plain) == ("--local_rank", ())
    assert local_rank_flag("none", old) == ("", ())
    assert local_rank_flag("auto", old)[0] == "--local_rank"
    with pytest.raises(UsageError, match="a config has no command line"):
        local_rank_flag("dash", Target("config", "train.yaml"))
    assert local_rank_flag(None, Target("config", "train.yaml")) == ("", ())


@pytest.mark.parametrize("flag", ["--local_rank", "--local-rank"])
def test_each_rank_gets_its_own_before_its_other_arguments(tmp_path: Path, flag: str) -> None:
    spec = JobSpec(
        "old", "old-1", tmp_path, script(tmp_path, UNDERSCORE, "--lr", "0.1"), local_rank_flag=flag
    )
    assert JobSpec.from_json(spec.to_json()) == spec
    argv = agent_argv(spec, "python")
    facts = {"RUN_ID": "old-1", "RUN_DIR": str(tmp_path), "NODE_RANK": "0", "NNODES": "1"}
    facts |= {"NPROC_PER_NODE": "4", "RDZV": "tcp://127.0.0.1:0"}
    environ = {f"DIST_TRAIN_{name}": value for name, value in facts.items()}
    settings = read_settings(argv[4:], environ)
    assert settings.target_of(3) == ["script", spec.target.value, f"{flag}=3", "--lr", "0.1"]
    without = read_settings(agent_argv(replace(spec, local_rank_flag=""), "python")[4:], environ)
    assert without.target_of(3) == without.rank_target == ["script", spec.target.value, "--lr", "0.1"]
