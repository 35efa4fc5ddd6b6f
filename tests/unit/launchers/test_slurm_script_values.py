"""No value of a job becomes a command of its batch script: each arrives exact, or is refused by its form."""

from __future__ import annotations

import random
import re
import shlex
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError
from slurm_stand_ins import Commands, Job

from dist_train.errors import ConfigError
from dist_train.jobs import JobSpec, Target
from launchers._slurm.batch_script import render
from launchers._slurm.slurm_options import Options

# What each field is set to, from one text: every value that is rendered stands here.
SPEC: dict[str, Callable[[str], dict[str, Any]]] = {
    "name": lambda text: {"name": text},
    "mem": lambda text: {"resources": (("mem", text), ("cpus_per_gpu", "8"))},
    "cpus": lambda text: {"resources": (("mem", "8"), ("cpus_per_gpu", text))},
    "target": lambda text: {"target": Target("script", text, (text, "@python@", text), text)},
    "run_id": lambda text: {"run_id": text},
    "run_dir": lambda text: {"run_dir": Path("/tmp") / text},
    "init_method": lambda text: {"init_method": text},
    "show_ranks": lambda text: {"show_ranks": text},
    "interface": lambda text: {"interface": text},
    "local_rank_flag": lambda text: {"local_rank_flag": text},
    "config": lambda text: {"config_yaml": f"note: {text}\nEND-OF-CONFIG\n"},
    "env": lambda text: {"env": (("MOTTO", text), ("PATH", text), ("IFS", text), ("BASH_ENV", text))},
}
NAMES = ("partition", "account", "qos", "constraint", "exclude", "reservation", "clusters", "gpu_type")
OPTIONS: dict[str, Callable[[str], dict[str, Any]]] = {
    **{name: (lambda text, name=name: {name: text}) for name in NAMES},
    "srun_arg": lambda text: {"srun_arg": (f"container-mounts={text}", "exclusive")},
    "sbatch_arg": lambda text: {"sbatch_arg": (f"comment={text}",)},
    "exec_prefix": lambda text: {"exec_prefix": ("/usr/bin/env", f"WRAPPED={text}")},
}
ALPHABET = "ab=;&|<>()$`'\"\\ \t\n\r#%@*?[]{}!~-é\u2028\udcff"


AGENT = """#!{python} -IS
import os, sys
open("{folder}/argv", "wb").write(b"\\0".join(map(os.fsencode, sys.argv[1:])))
open("{folder}/environ", "wb").write(b"\\0".join(k + b"=" + v for k, v in os.environb.items()))
"""


def texts() -> list[str]:
    """Hostile ones by hand, and random ones."""
    rng = random.Random(27)
    by_hand = ["64G\ntouch {c}", "1G' ; touch {c} '", '"; touch {c}; "', "$(touch {c})", "`touch {c}`", "8G"]
    by_hand += [
        "\n#SBATCH --uid=0\ntouch {c}\n",
        "a\rb",
        "it's\\",
        "-x",
        "\nEND-OF-CONFIG\ntouch {c}\n",
        "\udcff",
    ]
    drawn = ["".join(rng.choices(ALPHABET, k=rng.randrange(1, 12))) for _ in range(12)]
    return [*by_hand, *drawn, *(f"{text}\ntouch {{c}}\n{text}" for text in drawn[:6])]


def accepted(spec: JobSpec, text: str) -> tuple[JobSpec, dict[str, Any], set[str]]:
    """The job with the text in every field that takes it, each tried alone."""
    options: dict[str, Any] = {}
    taken = set()
    for name, change in SPEC.items():
        changed = replace(spec, **change(text))
        if is_rendered(changed, {}):
            spec = changed
            taken.add(name)
    for name, change in OPTIONS.items():
        if is_rendered(spec, change(text)):
            options |= change(text)
            taken.add(name)
    return spec, options, taken


def is_rendered(spec: JobSpec, options: dict[str, Any]) -> bool:
    try:
        render(spec, Options(**options))
    except (ConfigError, ValidationError):
        return False
    return True


def directives(script: bytes) -> list[str]:
    """Names of the options that sbatch reads: up to the first command."""
    found = []
    for line in script.decode(errors="surrogateescape").split("\n"):
        if line.startswith("#SBATCH "):
            found.append(shlex.split(line)[1].partition("=")[0])
        elif line and not line.startswith("#"):
            break
    return found


@pytest.mark.parametrize("number", range(len(texts())))
def test_every_value_arrives_exact_or_is_refused(
    commands: Commands, job: Job, tmp_path: Path, number: int
) -> None:
    canary = tmp_path / "canary"
    text = texts()[number].replace("{c}", str(canary))
    plain, plain_options, _ = accepted(job(run_dir=tmp_path / "run"), "8")
    spec, options, taken = accepted(plain, text)
    script = render(spec, Options(**{**plain_options, **options}))
    assert directives(script) == directives(render(plain, Options(**plain_options)))

    commands.put_all("exit 0")
    folder = commands.folder
    kept = f'printf "%s\\0" "$@" > {folder}/srun_argv'
    commands.put("srun", f'{kept}; while [ "$1" != env ]; do shift; done; "$@"')
    agent = folder / "agent"  # in Python: a shell would expand BASH_ENV
    agent.write_text(AGENT.format(python=sys.executable, folder=folder))
    agent.chmod(0o755)
    (tmp_path / "job.sbatch").write_bytes(
        render(replace(spec, run_dir=tmp_path / "run"), Options(**{**options, "python": str(agent)}))
    )
    done = subprocess.run(
        ["/bin/bash", str(tmp_path / "job.sbatch")],
        cwd=tmp_path,
        env={"PATH": f"{folder}:/usr/bin:/bin", "SLURM_JOB_ID": "7"},
        capture_output=True,
        timeout=30,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert not canary.exists()
    argv = (folder / "argv").read_bytes().split(b"\0")
    value = text.encode(errors="surrogateescape")
    environ = dict(item.split(b"=", 1) for item in (folder / "environ").read_bytes().split(b"\0"))
    assert {"target", "env", "init_method"} <= taken, "these are quoted, whatever they hold"
    assert argv[-4:] == [value, value, b"@python@", value]
    assert argv[argv.index(b"--init-method") + 1] == value
    assert environ[b"MOTTO"] == value
    assert environ[b"IFS"] == environ[b"BASH_ENV"] == value
    assert ("srun_arg" in taken) != bool(re.search(r"[\x00-\x1f\x7f\u2028]", text)), "quoted, or refused"
    if "srun_arg" in taken:
        given = (folder / "srun_argv").read_bytes().split(b"\0")
        assert given[given.index(b"--exclusive") - 1] == b"--container-mounts=" + value
    if "exec_prefix" in taken:
        assert environ[b"WRAPPED"] == value


@pytest.mark.parametrize("text", ["64G\ntouch x", "64 G", "lots", "-1", "1.5G", "64Gi", "", "64G#"])
def test_memory_that_slurm_has_no_form_for(job: Job, text: str) -> None:
    with pytest.raises(ConfigError, match="--mem") as caught:
        render(job(resources=(("mem", text),)), Options())
    assert "--mem 64G" in str(caught.value)


@pytest.mark.parametrize("name", ["SLURM_JOB_ID", "SLURM_RESTART_COUNT", "SBATCH_PARTITION", "SRUN_DEBUG"])
def test_variables_that_slurm_sets_are_refused_with_another_way(job: Job, name: str) -> None:
    with pytest.raises(ConfigError, match=f"--env {name}: Slurm sets") as caught:
        render(job(env=((name, ""),)), Options())
    assert f"--setup 'export {name}=VALUE'" in str(caught.value)


@pytest.mark.parametrize("text", ["module load x\nexit 0", "a\ntrap '' TERM"])
def test_each_line_of_setup_is_looked_at(text: str) -> None:
    with pytest.raises(ValidationError, match=r"would end the script|traps TERM"):
        Options(setup=(text,))
