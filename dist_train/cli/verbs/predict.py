"""`dist-train predict`: run a trained model over data, on several devices at once."""

from __future__ import annotations

import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import click

from dist_train.cli.options.param_types import Count
from dist_train.cli.options.shell_complete import runs
from dist_train.cli.options.verb import Verb, examples
from dist_train.cli.options.verb_options import SPELLINGS, once
from dist_train.cli.run.choose_checkpoint import choose_checkpoint, is_weights
from dist_train.cli.run.find_run import find_run, read_job
from dist_train.errors import ConfigError, ExitCode, NotFoundError, UsageError
from dist_train.rundir import RunDir
from dist_train.rundir.durable_files import remove_tree, unfinished_file

_LEAVE_S = 10.0


@dataclass(frozen=True)
class Source:
    """Where the model comes from: its weights, its config, and the folder that the config imports from."""

    weights: Path
    config: Path
    folder: Path


@click.command(
    cls=Verb,
    context_settings=SPELLINGS,
    epilog=examples(
        "dist-train predict digits-1 --output predictions.jsonl  # its evaluation data",
        "dist-train predict digits-1 --best --processes 2 --output logits.npy",
        "dist-train predict model.safetensors --config examples/digits.yaml --output logits.safetensors",
        "dist-train predict digits-1 --gpus 0,3 --input images.npy --output logits.npy",
    ),
)
@click.argument("source", default="@last", metavar="[RUN|CHECKPOINT|WEIGHTS]", shell_complete=runs)
@once("--config", metavar="CONFIG", help="The model's config, where SOURCE is not part of a run.")
@once("--step", type=Count(0), help="Of a run: this step.  [default: the newest whole one]")
@click.option("--best", is_flag=True, help="Of a run: the best by its checkpoint.keep_best.")
@once("--entry", metavar="KEY", help="The part of WEIGHTS that holds the weights, where several do.")
@once("--input", "inputs", metavar="WHAT", help="evaluation, train, FILE, FILE:KEY or a folder.")
@once(
    "--output", metavar="FILE", help="New *.jsonl, *.npy or *.safetensors.  [default: JSON lines on stdout]"
)
@once("--batch-size", type=Count(1), help="Samples per batch.  [default: the config's]")
@once("--gpus", metavar="0,3|auto", help="One process on each; auto: the least used.  [default: all visible]")
@once("--processes", type=Count(1), help="So many on the CPU instead.")
def predict(
    source: str,
    config: str | None,
    step: int | None,
    best: bool,
    entry: str | None,
    inputs: str | None,
    output: str | None,
    batch_size: int | None,
    gpus: str | None,
    processes: int | None,
) -> int:
    """Run SOURCE's model over data: results in order, one process per device.

    The inputs of a data set of (input, target) are its first parts; files hold arrays of shape [samples, …]
    (.npy, .npz, .safetensors). A worker that dies is replaced and nothing is lost; the output is there whole,
    or not at all. JSON lines hold index, output and, where the data has one, target.
    """
    found = _source(source, config, step, best)
    devices, visible = _devices(gpus, processes)
    argv = [sys.executable, "-P", "-m", "dist_train.inference", "--parent", str(os.getpid())]
    argv += ["--config", str(found.config), "--folder", str(found.folder), "--weights", str(found.weights)]
    optional = {
        "--entry": entry,
        "--input": inputs,
        "--output": output,
        "--batch-size": batch_size,
        "--processes": processes,
    }
    argv += [word for name, value in optional.items() if value is not None for word in (name, str(value))]
    argv += [word for device in devices for word in ("--device", device)]
    return _run(argv, {**os.environ, **visible}, output)


def _source(word: str, config: str | None, step: int | None, best: bool) -> Source:
    path = Path(word)
    if is_weights(path):
        if step is not None or best:
            raise UsageError(f"{word} is one set of weights: --step and --best choose among checkpoints")
        if config is None:
            raise UsageError(
                f"{word} holds weights, and no model to put them into",
                hint=f"dist-train predict {word} --config CONFIG.yaml",
            )
        return _configured(path.absolute(), config)
    chosen = choose_checkpoint(word, step, best)
    if isinstance(chosen, str):
        raise UsageError(
            f"{word} is at {chosen}, and predict reads files of this machine",
            hint=f"dist-train checkpoint export {word} --out model.safetensors\n"
            "         dist-train predict model.safetensors --config CONFIG.yaml",
        )
    if config is not None:
        return _configured(chosen, config)
    run = _run_of(chosen)
    if run is None:
        raise UsageError(
            f"{word} lies in no run, so nothing says which model it is of",
            hint=f"dist-train predict {word} --config CONFIG.yaml",
        )
    if not run.config.exists():
        raise NotFoundError(
            f"{run.path} has no config.yaml",
            cause="it runs a script or a module, whose model only that script can make",
            hint="in Python: dt.checkpoint.load_model(path, model); dt.Predictor(model)",
        )
    return Source(chosen, run.config, _folder_of(run))


def _configured(weights: Path, config: str) -> Source:
    path = Path(config)
    if path.is_file():
        return Source(weights, path.absolute(), path.absolute().parent)
    run = find_run(config)
    if not run.config.is_file():
        raise NotFoundError(f"{config} is a run without a config.yaml", hint="--config CONFIG.yaml")
    return Source(weights, run.config, _folder_of(run))


def _folder_of(run: RunDir) -> Path:
    """The folder of the modules that the run's config imports."""
    return Path(read_job(run).get("spec", {}).get("target", {}).get("folder") or run.path)


def _run_of(checkpoint: Path) -> RunDir | None:
    for folder in (checkpoint.parent, checkpoint.parent.parent):
        run = RunDir(folder)
        if run.is_run:
            return run
    return None


def _devices(gpus: str | None, processes: int | None) -> tuple[list[str], dict[str, str]]:
    """The devices as the process numbers them, and the environment that makes it so."""
    if gpus is None:
        return [], {}
    if processes is not None:
        raise UsageError(f"--gpus {gpus} contradicts --processes {processes}, which is for the CPU")
    from dist_train.jobs.gpu_environment import environ_of
    from dist_train.jobs.gpu_selection import choice_in_words, choose_gpus
    from dist_train.jobs.gpus import visible_gpus

    visible = visible_gpus()
    try:
        chosen = choose_gpus(gpus, visible, 1 if gpus == "auto" else None)
    except ConfigError as error:
        hint = "`dist-train devices` lists them; --processes N computes on the CPU"
        raise ConfigError(error.what, cause=error.cause, hint=hint) from None
    click.echo(f"[dist-train] {choice_in_words(gpus, chosen, visible)}", err=True)
    environ = environ_of([gpu.uuid for gpu in chosen], chosen[0].vendor)
    return [f"cuda:{number}" for number in range(len(chosen))], environ


def _run(argv: list[str], environ: dict[str, str], output: str | None) -> int:
    process = subprocess.Popen(argv, env=environ)
    try:
        return _code(process.wait())
    except KeyboardInterrupt:
        # The process got SIGINT from the terminal too: it ends its workers and removes the incomplete file.
        try:
            code = process.wait(_LEAVE_S)
        except (subprocess.TimeoutExpired, KeyboardInterrupt):
            process.kill()
            code = process.wait()
            if output is not None:
                remove_tree(unfinished_file(Path(output), process.pid))
        if code != 0:
            click.echo("[dist-train] stopped: no output file was made", err=True)
        return int(ExitCode.INTERRUPTED)


def _code(status: int) -> int:
    return 128 - status if status < 0 else status


COMMAND = predict
