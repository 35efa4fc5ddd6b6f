"""The model compiled by torch.compile, as the config's `trainer.compile` says.

It is compiled inside the strategy's wrapper, so that DDP's hooks, the exchange and all that the trainer does
around a forward pass stay outside of it. Names of weights stay as they are. One program is made for each size
of batch and for training and evaluation, at its first batch: a step's bits then follow from its own batch,
also after a restart, and not from what was compiled before it.
"""

from __future__ import annotations

import os
import shutil
from typing import Any, cast

import torch
import torch._dynamo
from torch import nn

from dist_train.config.schema import CompileConfig
from dist_train.errors import ConfigError

# Sizes of batches x training and evaluation. torch's limit is 8, beyond which it silently runs uncompiled.
_PROGRAMS = 64
_COMPILERS = ("g++", "clang++", "c++")


def compiled(model: nn.Module, config: CompileConfig, device: torch.device) -> nn.Module:
    """What to call in place of the model; it compiles at its first batch.

    Raises:
        ConfigError: inductor on a CPU without a C++ compiler.
    """
    if config.backend == "inductor" and device.type == "cpu":
        _need_cpp_compiler()
    settings = cast("Any", torch._dynamo.config)
    settings.recompile_limit = max(settings.recompile_limit, _PROGRAMS)
    settings.fail_on_recompile_limit_hit = True
    options: dict[str, Any] = {"mode": config.mode} if config.mode != "default" else {}
    made = torch.compile(
        model, backend=config.backend, fullgraph=config.fullgraph, dynamic=config.dynamic, **options
    )
    return cast("nn.Module", made)


def _need_cpp_compiler() -> None:
    wanted = os.environ.get("CXX")
    names = (wanted,) if wanted else _COMPILERS
    if not any(shutil.which(name) for name in names):
        raise ConfigError(
            f"trainer.compile: no C++ compiler ({', '.join(names)}) is on this machine",
            cause="on a CPU the backend inductor compiles what it writes in C++",
            hint="apt-get install g++, or name one in CXX; trainer.compile.backend=aot_eager needs none",
        )
