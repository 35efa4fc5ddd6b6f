"""`dist-train completion`: the script by which a shell completes verbs, options and names of runs."""

from __future__ import annotations

import click

from dist_train.cli.options.param_types import OneOf
from dist_train.cli.options.verb import Verb, examples
from dist_train.cli.options.verb_options import SPELLINGS

SHELLS = ("bash", "zsh", "fish")
# click looks for requests of that script under the same name.
_VARIABLE = "_DIST_TRAIN_COMPLETE"


@click.command(
    cls=Verb,
    context_settings=SPELLINGS,
    epilog=examples(
        "echo 'eval \"$(dist-train completion bash)\"' >> ~/.bashrc  # new shells have it",
        "echo 'eval \"$(dist-train completion zsh)\"' >> ~/.zshrc  # below compinit",
        "dist-train completion fish | source  # in config.fish",
    ),
)
@click.argument("shell", type=OneOf(SHELLS))
def completion(shell: str) -> int:
    """Print the script that makes SHELL complete verbs, options, values, and the runs in ./runs."""
    from click.shell_completion import get_completion_class

    complete = get_completion_class(shell)
    assert complete is not None
    command = click.get_current_context().find_root().command
    click.echo(complete(command, {}, "dist-train", _VARIABLE).source())
    return 0


COMMAND = completion
