"""The model compiled by torch.compile, or chosen modules of it, as the config's `trainer.compile` says.

It is compiled inside the strategy's wrapper, so that DDP's hooks, the exchange and all that the trainer does
around a forward pass stay outside of it. Names of weights stay as they are. One program is made for each size
of batch and for training and evaluation, at its first batch: a step's bits then follow from its own batch,
also after a restart, and not from what was compiled before it.
"""

from __future__ import annotations

import os
import shutil
from types import MethodType
from typing import Any, cast

import torch
import torch._dynamo
from torch import nn

from dist_train.config.schema import CompileConfig
from dist_train.errors import ConfigError
from dist_train.strategies.blocks.chosen_blocks import choose_blocks

# Sizes of batches x training and evaluation. torch's limit is 8, beyond which it silently runs uncompiled.
_PROGRAMS = 64
_COMPILERS = ("g++", "clang++", "c++")


def compiled(model: nn.Module, config: CompileConfig, device: torch.device) -> nn.Module:
    """What to call in place of the model; it compiles at its first batch.

    With `config.modules` it is the model itself, in which each of these modules has a compiled forward. Hooks
    of a module, as fully_shard's, stay outside of that. (`module.compile()` takes them in, and leaves classes
    of torch.nn as they are, without a word.)

    Raises:
        ConfigError: inductor on a CPU without a C++ compiler, or a name that fits no module.
    """
    if config.backend == "inductor" and device.type == "cpu":
        _need_cpp_compiler()
    blocks = [] if config.modules is None else choose_blocks(model, config.modules, "trainer.compile.modules")
    settings = cast("Any", torch._dynamo.config)
    # Blocks of one class share a limit, and each may have programs of its own.
    programs = _PROGRAMS * max(1, len(blocks))
    settings.recompile_limit = max(settings.recompile_limit, programs)
    settings.accumulated_recompile_limit = max(settings.accumulated_recompile_limit, programs)
    settings.fail_on_recompile_limit_hit = True
    if config.modules is None:
        return cast("nn.Module", _compiled(model, config))
    for block in blocks:
        function = getattr(block.module.forward, "__func__", None)
        if function is None:
            raise ConfigError(
                f"trainer.compile.modules: '{block.name}' has a `forward` that is no method",
                hint="leave it out, or give its class the forward",
            )
        # A method: of the copy where the model is copied.
        block.module.__dict__["forward"] = MethodType(_compiled(function, config), block.module)
    return model


def _compiled(what: Any, config: CompileConfig) -> Any:
    options: dict[str, Any] = {"mode": config.mode} if config.mode != "default" else {}
    return torch.compile(
        what, backend=config.backend, fullgraph=config.fullgraph, dynamic=config.dynamic, **options
    )


def _need_cpp_compiler() -> None:
    wanted = os.environ.get("CXX")
    names = (wanted,) if wanted else _COMPILERS
    if not any(shutil.which(name) for name in names):
        raise ConfigError(
            f"trainer.compile: no C++ compiler ({', '.join(names)}) is on this machine",
            cause="on a CPU the backend inductor compiles what it writes in C++",
            hint="apt-get install g++, or name one in CXX; trainer.compile.backend=aot_eager needs none",
        )
