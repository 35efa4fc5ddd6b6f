"""`dist-train checkpoint import|export|copy`: weights in from other tools and out; checkpoints elsewhere."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import Any

import click

from dist_train.cli.options.param_types import Count, FileSize
from dist_train.cli.options.shell_complete import runs
from dist_train.cli.options.verb import Verb, examples
from dist_train.cli.options.verb_options import SPELLINGS, json_option, once
from dist_train.cli.output.json_output import print_json
from dist_train.cli.output.table import size
from dist_train.cli.run.checkpoint_place import Place
from dist_train.cli.run.checkpoint_process import ask_checkpoints
from dist_train.cli.run.choose_checkpoint import (
    checkpoint_of_step,
    checkpoints_of,
    choose_checkpoint,
    is_weights,
)
from dist_train.config.bucket_url import scheme_of
from dist_train.errors import ExitCode, NotFoundError, UsageError

SAFETENSORS = ".safetensors"
_TORCH = (".pt", ".pth", ".bin", ".ckpt")
_entry = once("--entry", metavar="KEY", help="The part of FILE that holds the weights, where several do.")


@click.command(
    "import",
    cls=Verb,
    context_settings=SPELLINGS,
    epilog=examples(
        "dist-train checkpoint import model.pt --out weights/  # into a folder",
        "dist-train checkpoint import dcp/ --out model.safetensors  # of torch.distributed.checkpoint",
        "dist-train checkpoint import model.pt --out plain.safetensors --keep-names",
    ),
)
@click.argument("file", metavar="FILE")
@once("--out", metavar="PATH", help="New file, or a folder for it.  [default: beside FILE, as *.safetensors]")
@_entry
@click.option("--keep-names", is_flag=True, help="Leave `module.` and the like in front of the names.")
@json_option
def import_(file: str, out: str | None, entry: str | None, keep_names: bool, as_json: bool) -> int:
    """Turn the weights of any FILE into one safetensors file that load_model opens.

    FILE is what torch.save wrote (.pt, .pth, .bin, .ckpt), a safetensors file, several with an index (or
    their directory), a directory of torch.distributed.checkpoint, or a checkpoint. A file that needs pickle
    is refused. What stands in front of ALL names (`module.`, `_orig_mod.`) is dropped, and said.
    """
    source = Path(file)
    if not source.exists():
        raise NotFoundError(f"no file or checkpoint {file}")
    target = _import_target(source, out)
    words = [*([] if entry is None else ["--entry", entry]), *(["--keep-names"] if keep_names else [])]
    (done,) = ask_checkpoints("import", source, str(target), *words)
    return _report(done, as_json, f"dt.checkpoint.load_model({str(target)!r}, model)")


@click.command(
    cls=Verb,
    context_settings=SPELLINGS,
    epilog=examples(
        "dist-train checkpoint export digits-1 --out model.safetensors",
        "dist-train checkpoint export digits-1 --best --out model.pt  # plain torch",
        "dist-train checkpoint export digits-1 --max-shard-size 5GB --out model/  # files and their index",
    ),
)
@click.argument("source", default="@last", metavar="[RUN|CHECKPOINT|FILE]", shell_complete=runs)
@once(
    "--out",
    metavar="PATH",
    required=True,
    help="*.safetensors, or *.pt for plain torch; with --max-shard-size a new directory.",
)
@once(
    "--max-shard-size",
    type=FileSize(),
    help="Write several safetensors files of at most this size (5GB, 2GiB), and their index.",
)
@once("--step", type=Count(0), help="Of a run: this step.  [default: the newest whole one]")
@click.option("--best", is_flag=True, help="Of a run: the best by its checkpoint.keep_best.")
@_entry
@json_option
def export(
    source: str,
    out: str,
    max_shard_size: int | None,
    step: int | None,
    best: bool,
    entry: str | None,
    as_json: bool,
) -> int:
    """Write a model's weights as one file, or several, read them back and compare them by hash.

    As safetensors, a model of any size needs the memory of one tensor; as *.pt that of the whole model.
    """
    target = _export_target(out, max_shard_size)
    if is_weights(Path(source)):
        if step is not None or best:
            raise UsageError(f"{source} is one set of weights: --step and --best choose among checkpoints")
        chosen: Place = Path(source)
    else:
        chosen = choose_checkpoint(source, step, best)
    words = [] if entry is None else ["--entry", entry]
    words += [] if max_shard_size is None else ["--max-shard-bytes", str(max_shard_size)]
    (done,) = ask_checkpoints("export", chosen, str(target), *words)
    shown = repr(str(target))
    if max_shard_size is not None:
        return _report(done, as_json, f"huggingface_hub.load_torch_model(model, {shown})")
    plain = f"model.load_state_dict(torch.load({shown}, weights_only=True))"
    # Not load_file: of tied weights the file holds one, and only load_model gives it both names.
    theirs = f"safetensors.torch.load_model(model, {shown})"
    return _report(done, as_json, plain if target.suffix in _TORCH else theirs)


@click.command(
    "copy",
    cls=Verb,
    context_settings=SPELLINGS,
    epilog=examples(
        "dist-train checkpoint copy digits-1 s3://bucket/archive/digits-1  # all that are kept",
        "dist-train checkpoint copy s3://bucket/archive/digits-1 here/ --step 500",
    ),
)
@click.argument("source", metavar="RUN|CHECKPOINT", shell_complete=runs)
@click.argument("target", metavar="FOLDER|URL")
@once("--step", type=Count(0), help="Of a run: this step.  [default: all]")
@json_option
def copy(source: str, target: str, step: int | None, as_json: bool) -> int:
    """Copy checkpoints: each byte is compared as it is read, and the copy is read back.

    Either may be a URL. What is at the target already is compared, and not written again.
    """
    chosen = checkpoints_of(source)
    if step is not None:
        chosen = checkpoint_of_step(chosen, step)
    where = target if scheme_of(target) is not None else str(Path(target).absolute())
    found = []
    for one in ask_checkpoints("copy", chosen, where):
        found.append(one)
        if not as_json:
            done = "was there, and is equal" if one["was_there"] else "copied, read back and equal"
            click.echo(f"step {one['step']}  {size(one['bytes'])}  {done}: {one['path']}")
    if as_json:
        print_json({"target": where, "checkpoints": found})
    return int(ExitCode.OK)


def _export_target(out: str, max_shard_size: int | None) -> Path:
    target = Path(out)
    is_file = target.suffix in (SAFETENSORS, *_TORCH)
    if max_shard_size is not None and is_file:
        raise UsageError(
            f"--out {out}: with --max-shard-size it is a directory, not a *{target.suffix} file",
            hint=f"--out {shlex.quote(str(target.with_suffix('')))}",
        )
    if max_shard_size is None and not is_file:
        raise UsageError(
            f"--out {out}: its name does not say which format",
            hint=f"end it in {SAFETENSORS} or .pt; for a directory of several files add --max-shard-size 5GB",
        )
    return target


def _import_target(source: Path, out: str | None) -> Path:
    # Of a DCP directory, the file `.metadata` stands for the whole.
    source = source.parent if source.name == ".metadata" else source
    name = (source.name.partition(".")[0] if source.is_file() else source.absolute().name) + SAFETENSORS
    target = source.parent / name if out is None else Path(out)
    if out is not None and (out.endswith("/") or target.is_dir()):
        target = target / name
    if target.suffix != SAFETENSORS:
        raise UsageError(
            f"--out {out}: an import is one *{SAFETENSORS} file",
            hint=f"dist-train checkpoint export {shlex.quote(str(source))} --out {out} writes other formats",
        )
    return target


def _report(done: dict[str, Any], as_json: bool, use: str) -> int:
    if as_json:
        print_json(done)
        return int(ExitCode.OK)
    notes = [
        done["origin"],
        done.get("dropped"),
        f"not used: {', '.join(done['left'])}" if done["left"] else None,
    ]
    click.echo(f"read   {done['source']} ({'; '.join(note for note in notes if note)})")
    click.echo(
        f"wrote  {done['path']}: {done['tensors']} tensors, {size(done['bytes'])}, read back and equal"
    )
    click.echo(f"       weights_hash {done['weights_hash']}")
    click.echo(f"use    {use}")
    return int(ExitCode.OK)
