"""The schema of a run: every key that a config may hold, its type, its bounds and its meaning."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import Field, ValidationInfo, field_validator, model_validator

from dist_train.config.component import Component, Section, StrategyConfig
from dist_train.config.launch import LaunchConfig


class DataConfig(Section):
    """What is learned from."""

    train: Component = Field(description="The training data set (a map-style Dataset).")
    evaluation: Component | None = Field(default=None, description="The data set of the evaluation.")
    batch_size: int = Field(
        ge=1, description="Samples per optimizer step of the WHOLE job, so more nodes change only the time."
    )
    workers: int = Field(
        default=0, ge=0, description="Loader processes per rank; 0 loads in the rank itself."
    )


class TrainerConfig(Section):
    """How long, how precisely, and how often to look. Exactly one of `epochs` and `steps`."""

    epochs: int | None = Field(default=None, ge=1, description="Passes over the training data.")
    steps: int | None = Field(
        default=None, ge=1, validate_default=True, description="Optimizer steps, instead of `epochs`."
    )
    precision: Literal["fp32", "bf16"] = Field(
        default="fp32", description="bf16: autocast of the forward pass; weights stay fp32."
    )
    accumulate: int = Field(
        default=1, ge=1, description="Micro-batches per optimizer step on each rank; batch_size stays."
    )
    clip_norm: float | None = Field(
        default=None, gt=0, description="Largest gradient norm; null: no clipping."
    )
    evaluate_every_epochs: int | None = Field(
        default=1, ge=1, description="Epochs between evaluations; null: none until the end."
    )
    log_every_steps: int = Field(default=10, ge=1, description="Optimizer steps between two log lines.")

    @field_validator("steps")
    @classmethod
    def _exactly_one_length(cls, value: int | None, info: ValidationInfo) -> int | None:
        if "epochs" not in info.data:  # it is wrong itself and reported as such
            return value
        epochs = info.data["epochs"]
        if (epochs is None) == (value is None):
            both = "neither is given" if value is None else f"both are given ({epochs} and {value})"
            raise ValueError(f"say exactly one of trainer.epochs and trainer.steps: {both}")
        return value


class KeepBest(Section):
    """Which checkpoints to keep for their evaluation's sake."""

    metric: str = Field(default="loss", min_length=1, description="loss, or the name of one of `metrics`.")
    mode: Literal["min", "max"] = Field(default="min", description="Is less better, or more?")
    n: int = Field(default=1, ge=1, description="How many of the best to keep.")

    @model_validator(mode="before")
    @classmethod
    def _say_the_mode(cls, value: Any) -> Any:
        # Only of a loss is it plain; for an accuracy the default would keep the worst, silently.
        if isinstance(value, dict) and value.get("metric", "loss") != "loss" and "mode" not in value:
            raise ValueError(
                f"say whether more of {value['metric']!r} is better: add `mode: max` or `mode: min`"
            )
        return value


class CheckpointConfig(Section):
    """When to save, and what to keep. At most one of `every_steps` and `every_epochs`."""

    every_steps: int | None = Field(default=None, ge=1, description="Optimizer steps between two saves.")
    every_epochs: int | None = Field(
        default=1, ge=1, description="Epochs between two saves (the default, unless every_steps is given)."
    )
    keep_last: int = Field(
        default=3,
        ge=2,
        description="Newest ones to keep: at least 2, since one found damaged needs the one before.",
    )
    keep_best: KeepBest | None = Field(
        default=None, description="The best ones to keep beside the last ones."
    )

    @model_validator(mode="before")
    @classmethod
    def _steps_replace_the_default(cls, value: Any) -> Any:
        if isinstance(value, dict) and value.get("every_steps") is not None:
            return {"every_epochs": None, **value}
        return value

    @field_validator("every_epochs")
    @classmethod
    def _exactly_one_rhythm(cls, value: int | None, info: ValidationInfo) -> int | None:
        if "every_steps" not in info.data:
            return value
        steps = info.data["every_steps"]
        if (steps is None) == (value is None):
            both = "neither is" if value is None else f"both are ({steps} and {value})"
            raise ValueError(f"say one of checkpoint.every_steps and checkpoint.every_epochs: {both} given")
        return value


class ResilienceConfig(Section):
    """How long to wait for others before somebody is declared lost."""

    collective_timeout_s: float = Field(
        default=600.0, gt=0, description="Seconds that a collective may take."
    )
    init_timeout_s: float = Field(default=600.0, gt=0, description="Seconds for all ranks to come together.")
    grace_s: float = Field(default=30.0, gt=0, description="Seconds from a stop signal to the kill.")


class LoggingConfig(Section):
    """What is told, and to whom. metrics.jsonl is always written."""

    level: Literal["debug", "info", "warning", "error"] = Field(
        default="info", description="Least important message on the console."
    )
    sinks: list[str] = Field(
        default_factory=list, description="Names of metric sinks beside the console and metrics.jsonl."
    )


class RunConfig(Section):
    """A training run: what is trained, on what, for how long, and where."""

    name: str | None = Field(
        default=None, min_length=1, description="Name of the run. Default: the file's stem and a free number."
    )
    seed: int = Field(default=0, ge=0, lt=2**63, description="Everything random follows from it.")
    deterministic: Literal["none", "same_world_size", "world_size_invariant"] = Field(
        default="none",
        description="same_world_size: a restart gives the same bits on CUDA too (on CPU it always does).",
    )
    threads_per_rank: int | None = Field(
        default=None, ge=1, description="CPU threads of each rank (part of the bits). Default on CPU: 1."
    )
    model: Component = Field(description="The model (an nn.Module).")
    task: Component | None = Field(
        default=None, description="Your own Task: units and loss of a batch. Instead of `loss` and `metrics`."
    )
    data: DataConfig = Field(description="The data sets and the batch size.")
    loss: Component | None = Field(
        default=None, validate_default=True, description="Loss of (output, target), averaged over samples."
    )
    metrics: list[Component] = Field(default_factory=list, description="Measured in the evaluation.")
    optimizer: Component = Field(description="The optimizer, called with the parameters and its args.")
    schedule: Component | None = Field(
        default=None, description="The learning rate's schedule; null: constant."
    )
    trainer: TrainerConfig = Field(description="Length, precision, rhythm.")
    strategy: StrategyConfig = Field(
        default_factory=StrategyConfig, description="Where parameters and gradients live."
    )
    checkpoint: CheckpointConfig = Field(default_factory=CheckpointConfig, description="When to save.")
    resilience: ResilienceConfig = Field(default_factory=ResilienceConfig, description="How long to wait.")
    logging: LoggingConfig = Field(default_factory=LoggingConfig, description="What is told.")
    launch: LaunchConfig = Field(default_factory=LaunchConfig, description="Where it runs.")

    @field_validator("loss")
    @classmethod
    def _loss_or_task(cls, value: Component | None, info: ValidationInfo) -> Component | None:
        if "task" not in info.data:
            return value
        if value is None and info.data["task"] is None:
            raise ValueError("say `loss` (for data of inputs and targets) or `task` (your own)")
        if value is not None and info.data["task"] is not None:
            raise ValueError("`task` brings its own loss: say only one of `loss` and `task`")
        return value

    @field_validator("metrics")
    @classmethod
    def _metrics_without_task(cls, value: list[Component], info: ValidationInfo) -> list[Component]:
        if value and info.data.get("task") is not None:
            raise ValueError("`task` brings its own metrics: remove `metrics`")
        return value
