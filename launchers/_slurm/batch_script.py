"""Render the batch script: the same text for `--dry-run`, for the launcher and for sbatch by hand.

submitit renders it (`SlurmExecutor`, without its pickle) from the parts in this module. One task per node
runs the agent. The script never traps TERM: scancel then ends this shell and nothing requeues, while a
preemption signals only the step, and the shell requeues the job after srun.
"""

from __future__ import annotations

import math
import shlex
import sys
from typing import Any

from dist_train import env
from dist_train.jobs import JobSpec
from dist_train.jobs.agent_command import agent_argv, agent_environ
from launchers._slurm.generic_resources import requested_resources
from launchers._slurm.job_signal import handler, in_background, signal_note
from launchers._slurm.node_checks import node_checks
from launchers._slurm.script_values import check_parameters, check_spec, goes_to_the_step_alone
from launchers._slurm.slurm_options import Options

NAME = "job.sbatch"
# Slurm signals a time limit up to a minute early or late (sbatch --signal), so the signal is requested a
# minute before the grace; of a short job at most half is used for it.
_SIGNAL_MARGIN_S = 60
_END = "END-OF-CONFIG"


def render(spec: JobSpec, options: Options) -> bytes:
    """The script's bytes, a pure function of the arguments; raise ConfigError for values it cannot hold."""
    from submitit import SlurmExecutor

    check_spec(spec)
    parameters = _parameters(spec, options)
    check_parameters({**parameters, **parameters["additional_parameters"]})
    step = _step(spec, options)
    if options.signal is not None and options.signal.to_script:
        step = in_background(step)

    class _AgentExecutor(SlurmExecutor):
        """submitit's executor; its step runs our agent instead of a pickled function."""

        @property
        def _submitit_command_str(self) -> str:
            return step

        @classmethod
        def affinity(cls) -> int:
            return 2  # as on a machine with srun: rendering must not need it

    folder = str(spec.run_dir / "logs").replace("%", "%%")
    executor = _AgentExecutor(folder=folder)
    executor.update_parameters(**parameters)
    text: str = executor._make_submission_file_text(executor._submitit_command_str, "")
    return (text + "\n").encode(errors="surrogateescape")  # names of files are bytes


def notes(spec: JobSpec, options: Options) -> tuple[str, ...]:
    """What is shown before the job runs."""
    if (signal := options.signal) is None:
        return ()
    return (signal_note(signal, f"USR2@{_signal_delay_s(spec)}", spec.grace_s),)


def _parameters(spec: JobSpec, options: Options) -> dict[str, Any]:
    """The parameters for submitit; None is not rendered."""
    resources = dict(spec.resources)
    cpus = _cpus_per_node(spec)
    resources_asked = requested_resources(spec, options)
    additional: dict[str, Any] = {k: v for k, v in options.sbatch_arguments.items() if k != "gres"}
    for name in ("reservation", "clusters"):
        if (value := getattr(options, name)) is not None:
            additional[name] = value
    if options.requeue != "site":
        additional["requeue" if options.requeue == "yes" else "no-requeue"] = True
    asked = ("partition", "account", "qos", "constraint", "exclude")
    return {
        **{name: getattr(options, name) for name in asked},
        **resources_asked,
        "job_name": spec.name,
        "nodes": spec.nodes,
        "ntasks_per_node": 1,
        "cpus_per_task": cpus,
        "mem": resources.get("mem"),
        "time": None if spec.time_limit_s is None else _time(spec.time_limit_s),
        "signal_delay_s": _signal_delay_s(spec),
        "stderr_to_stdout": True,
        "wckey": None,  # submitit's own would be refused where wckeys are enforced
        "srun_args": _srun_args(options, cpus),
        "setup": _setup(spec, options),
        "teardown": _TEARDOWN,
        "additional_parameters": additional,
    }


def _srun_args(options: Options, cpus: int | None) -> list[str]:
    """Our options of srun, then --srun-arg; its own `mpi` stands in place of ours."""
    given = {"mpi": "none", **options.srun_arguments}
    own = ["--kill-on-bad-exit=1", f"--mpi={given.pop('mpi')}"]
    cores = [] if cpus is None else [f"--cpus-per-task={cpus}"]
    return [
        *own,
        *cores,
        *(f"--{name}" if value is True else f"--{name}={value}" for name, value in given.items()),
    ]


def _cpus_per_node(spec: JobSpec) -> int | None:
    """Cores of the task on each node; None: the site's default (DefCpuPerGPU)."""
    per_rank = dict(spec.resources).get("cpus_per_gpu")
    if per_rank is not None:
        return int(per_rank) * spec.procs_per_node
    return spec.threads_per_rank * spec.procs_per_node if spec.device == "cpu" else None


def _time(seconds: int) -> str:
    minutes, rest = divmod(seconds, 60)
    return f"{minutes}:{rest:02d}" if rest else str(minutes)


def _signal_delay_s(spec: JobSpec) -> int:
    wanted = math.ceil(spec.grace_s) + _SIGNAL_MARGIN_S
    return wanted if spec.time_limit_s is None else max(1, min(wanted, spec.time_limit_s // 2))


def _setup(spec: JobSpec, options: Options) -> list[str]:
    environ = agent_environ(spec, "slurm", None, "")
    del environ[env.RUN_DIR], environ[env.RDZV]
    quoted = [
        f"export {name}={shlex.quote(value)}"
        for name, value in environ.items()
        if not goes_to_the_step_alone(name)
    ]
    return [
        "# By hand: edit the lines above, these, and the srun line (nodes, GPUs, cores, logs: in both).",
        f"export {env.RUN_DIR}={shlex.quote(str(spec.run_dir))}",
        f"python={shlex.quote(options.python or sys.executable)}",
        *quoted,
        f'export {env.RDZV}="file://${env.RUN_DIR}/control/rdzv-$SLURM_JOB_ID.${{SLURM_RESTART_COUNT:-0}}"',
        *_ONE_RUN,
        *_hand_on(options),
        *options.setup,
        *_RUN_DIRECTORY,
        *(_config(spec.config_yaml) if spec.config_yaml is not None else []),
        *_SIGNAL_SHIELD,
        *node_checks(spec),
    ]


def _hand_on(options: Options) -> list[str]:
    """A handler for a signal to the script, before the lines of --setup: one of theirs replaces it."""
    signal = options.signal
    return handler(signal) if signal is not None and signal.to_script else []


def _config(text: str) -> list[str]:
    """The resolved config is part of the script, which needs no file that `dist-train launch` wrote."""
    end = _END
    while end in text:
        end += "-"
    return [
        f"config() {{ cat <<'{end}'",
        text.rstrip("\n"),
        end,
        "}",
        f'( umask 077; [ -e "${env.RUN_DIR}/config.yaml" ] || config > "${env.RUN_DIR}/config.yaml" )',
        f'[ "$(config)" = "$(cat "${env.RUN_DIR}/config.yaml")" ] || {{',
        f'  echo "[dist-train] ${env.RUN_DIR}/config.yaml is not the config of this script: '
        'another config is another run" >&2',
        "  exit 78",
        "}",
    ]


_RUN_DIRECTORY = [
    "# What `dist-train launch` makes, for a script that was submitted by hand.",
    f'( umask 077; mkdir -p "${env.RUN_DIR}"/{{attempts,checkpoints,control,logs}}',
    f'  [ -s "${env.RUN_DIR}/control/key" ] || head -c 32 /dev/urandom > "${env.RUN_DIR}/control/key" )',
]
_SIGNAL_SHIELD = [
    "# A signal to the step goes to every process of it: it must wait until the agent is up to take it,",
    "# and harm nothing else. (coreutils before 8.31 cannot block: ignored, an early one is lost.)",
    "shield=(env --block-signal=USR2 --block-signal=TERM)",
    '"${shield[@]}" true 2>/dev/null || shield=(bash -c \'trap "" USR2 TERM; exec "$@"\' shield)',
]
_ONE_RUN = [
    '[ -z "${SLURM_ARRAY_TASK_ID-}" ] || {',
    '  echo "[dist-train] one job is one run: the elements of a job array would share a run directory" >&2',
    "  exit 78",
    "}",
]


_TEARDOWN = [
    "# srun gives the highest code of its tasks; node 0's verdict says what happened.",
    "rc=$? verdict= why= end=69",
    f'control="${env.RUN_DIR}/control"',
    'read -r verdict why 2>/dev/null < "$control/verdict-$SLURM_JOB_ID.${SLURM_RESTART_COUNT:-0}"',
    "# Killed while the nodes gathered: node 0 had no time for a verdict, or only saw the step's stop.",
    'if { [ -z "$verdict" ] && [ "$rc" -ge 128 ]; } || { [ "$verdict" = 75 ] && [ "$rc" = 137 ]; }; then',
    "  end=$rc  # as lost as a node",
    "  verdict=79",
    "fi",
    "# A node that was found wrong before it could join says so itself, while node 0 only saw the stop.",
    '[ "$verdict" = 75 ] && [ "$rc" = 78 ] && verdict=78',
    "rc=${verdict:-$rc}",
    'if [ "$rc" = 79 ]; then  # as often as restarts are allowed, also before any agent could count them',
    '  echo >> "$control/lost-$SLURM_JOB_ID"',
    f'  [ "$(wc -l < "$control/lost-$SLURM_JOB_ID")" -le "${env.MAX_RESTARTS}" ] || {{',
    f'    echo "[dist-train] not requeued: all ${env.MAX_RESTARTS} restarts are used up" >&2',
    "    rc=$end",
    "  }",
    "fi",
    'if [ "$rc" = 75 ] || [ "$rc" = 79 ]; then',
    "  # Slurm may have lost this node and started the job elsewhere: only the newest start requeues.",
    '  start=$(scontrol show job "$SLURM_JOB_ID" | sed -n "s/.* Restarts=\\([0-9]*\\).*/\\1/p")',
    '  if [ "${start:-0}" -gt "${SLURM_RESTART_COUNT:-0}" ]; then',
    '    echo "[dist-train] this start gives way: Slurm has started the job again" >&2',
    "  else",
    '    scontrol requeue "$SLURM_JOB_ID" ||',
    f'      echo "[dist-train] not requeued; go on with: dist-train resume ${env.RUN_DIR}" >&2',
    "  fi",
    "fi",
    'exit "$rc"',
]


def _step(spec: JobSpec, options: Options) -> str:
    """The command of the step: the agent with blocked signals, after the prefix of a container runtime."""
    own = [f"{name}={value}" for name, value in spec.env if goes_to_the_step_alone(name)]
    before = [*(["env", *own] if own else []), *options.exec_prefix]
    python, *arguments = agent_argv(spec, '"$python" -u')
    quoted = " ".join([*map(shlex.quote, before), python, *map(shlex.quote, arguments)])
    # srun from 22.05 on does not inherit the job's cores.
    cores = "" if _cpus_per_node(spec) is not None else '--cpus-per-task="$SLURM_CPUS_ON_NODE" '
    return f'{cores}"${{shield[@]}}" {quoted}'
