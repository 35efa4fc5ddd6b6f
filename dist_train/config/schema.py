"""The schema of a run: every key that a config may hold, its type, its bounds and its meaning."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any, Literal

from pydantic import Field, ValidationInfo, create_model, field_validator, model_validator

from dist_train.config.component import Component, Section, SinkConfig, StrategyConfig
from dist_train.config.launch_section import LaunchConfig


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
    drop_last: bool = Field(
        default=False, description="Leave out an epoch's last training step if it is smaller than batch_size."
    )
    collate_fn: Component | None = Field(
        default=None, description="Makes a batch of a list of samples, for both data sets. Default: torch's."
    )


# Modules that are treated one by one: names, or the choice of strategies/blocks/chosen_blocks.py.
Blocks = Literal["auto"] | Annotated[list[str], Field(min_length=1)]


class ActivationCheckpointingConfig(Section):
    """Modules that keep their inputs only, and run again in the backward pass; `{}` takes the default."""

    modules: Blocks = Field(
        default="auto",
        description="Classes or patterns of names (`layers.*`); auto: the members of each ModuleList.",
    )


class CompileConfig(Section):
    """The model's forward and backward pass, compiled by torch.compile; `compile: {}` takes the defaults."""

    backend: Literal["inductor", "aot_eager", "eager"] = Field(
        default="inductor", description="inductor: kernels of its own; the others find what does not compile."
    )
    mode: Literal["default", "reduce-overhead", "max-autotune"] = Field(
        default="default",
        validate_default=True,
        description="Of inductor; on a GPU reduce-overhead captures the passes in CUDA graphs.",
    )
    fullgraph: bool = Field(
        default=False, description="Refuse a model that compiles only in parts, in place of running them."
    )
    dynamic: bool = Field(
        default=False,
        description="One program for batches of all sizes; false: one for each, so that the bits of a step "
        "do not depend on the sizes that came before it.",
    )
    modules: Blocks | None = Field(
        default=None,
        description="Compile these modules, each by itself: classes or patterns of names; auto: the members "
        "of each ModuleList. null: the whole model as one.",
    )

    @field_validator("mode")
    @classmethod
    def _mode_of_inductor(cls, value: str, info: ValidationInfo) -> str:
        backend = info.data.get("backend", "inductor")
        if value != "default" and backend != "inductor":
            raise ValueError(f"{value} is a mode of the backend inductor, not of {backend}")
        return value


class LossScaleConfig(Section):
    """The scale of the loss in fp16: it falls where gradients overflow, and grows again."""

    initial: float = Field(default=65536.0, ge=1, description="The first scale; a power of two.")
    growth_factor: float = Field(default=2.0, gt=1, description="By which it grows.")
    backoff_factor: float = Field(default=0.5, gt=0, lt=1, description="By which it falls, to 1 at least.")
    growth_interval: int = Field(default=2000, ge=1, description="Steps without an overflow before it grows.")


class TrainerConfig(Section):
    """How long, how precisely, and how often to look. Exactly one of `epochs` and `steps`."""

    epochs: int | None = Field(default=None, ge=1, description="Passes over the training data.")
    steps: int | None = Field(
        default=None, ge=1, validate_default=True, description="Optimizer steps, instead of `epochs`."
    )
    precision: Literal["fp32", "bf16", "fp16"] = Field(
        default="fp32",
        description="bf16, fp16: autocast of the forward pass; weights stay fp32. fp16 scales the loss.",
    )
    loss_scale: LossScaleConfig | None = Field(
        default=None, description="How precision fp16 scales the loss; null: as torch's GradScaler."
    )
    matmul_precision: Literal["highest", "high", "medium"] = Field(
        default="highest",
        description="Products of float32 matrices on a GPU; high: TF32 (10 bits of mantissa), medium: bf16.",
    )
    conv_tf32: bool = Field(
        default=True, description="Convolutions of float32 on a GPU in TF32, as is torch's default."
    )
    channels_last: bool = Field(
        default=False,
        description="Weights and inputs of four dimensions in NHWC order: faster convolutions on GPUs.",
    )
    compile: CompileConfig | None = Field(
        default=None, description="Compile the model with torch.compile; null: run it as it is."
    )
    activation_checkpointing: ActivationCheckpointingConfig | None = Field(
        default=None,
        description="Compute activations of chosen modules again in the backward pass: less memory, more "
        "time, the same bits. null: keep them.",
    )
    accumulate: int = Field(
        default=1, ge=1, description="Micro-batches per optimizer step on each rank; batch_size stays."
    )
    clip_norm: float | None = Field(
        default=None, gt=0, description="Largest gradient norm; null: no clipping."
    )
    on_nonfinite: Literal["stop", "skip", "rollback"] = Field(
        default="stop",
        description="A loss or gradient that is nan or infinite: end with exit code 73; leave the update of "
        "its step out; or go back to the last checkpoint and leave its step out.",
    )
    evaluate_every_epochs: int | None = Field(
        default=1, ge=1, description="Epochs between evaluations; null: none until the end."
    )
    log_every_steps: int = Field(default=10, ge=1, description="Optimizer steps between two log lines.")
    callbacks: list[Component] = Field(
        default_factory=list,
        description="Your own code at fixed points of the training, called in this order.",
    )

    @field_validator("loss_scale")
    @classmethod
    def _scale_of_fp16(cls, value: LossScaleConfig | None, info: ValidationInfo) -> LossScaleConfig | None:
        precision = info.data.get("precision", "fp16")
        if value is not None and precision != "fp16":
            raise ValueError(f"the loss is scaled in fp16 only, and trainer.precision is {precision}")
        return value

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


class ParameterGroup(Section):
    """Parameters with options of their own; at least one of `parameters` and `modules`."""

    parameters: list[str] = Field(
        default_factory=list, description="Patterns of their names, as of files: `*.bias`, `head.*`."
    )
    modules: list[str] = Field(
        default_factory=list, description="Patterns of the classes that hold them: `*Norm*`, `Embedding`."
    )
    args: dict[str, Any] = Field(
        validate_default=True,
        default_factory=dict,
        description="The optimizer's options for them: `{weight_decay: 0.0}`.",
    )

    @field_validator("args")
    @classmethod
    def _says_something(cls, value: dict[str, Any], info: ValidationInfo) -> dict[str, Any]:
        if not value:
            raise ValueError("say which options of the optimizer differ: `args: {weight_decay: 0.0}`")
        if not info.data.get("parameters", True) and not info.data.get("modules", True):
            raise ValueError("say which parameters: `parameters` or `modules`")
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


if TYPE_CHECKING:
    _AsyncSection = Section
else:
    # A keyword of Python: no class statement can have a field of this name.
    _AsyncSection = create_model(
        "_AsyncSection",
        __base__=Section,
        **{
            "async": (
                bool | None,
                Field(
                    default=None,
                    description="Write checkpoints while the training goes on, from copies in host memory; "
                    "null: on a GPU.",
                ),
            )
        },
    )


class CheckpointConfig(_AsyncSection):
    """When to save, and what to keep. At most one of `every_steps` and `every_epochs`."""

    directory: str | None = Field(
        default=None,
        min_length=1,
        description="Where checkpoints are kept: a URL (s3://BUCKET/PREFIX, gs://, az://), in which {run} "
        "stands for the run's name; null: in the run directory.",
    )
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

    def is_asynchronous(self, device_type: str) -> bool:
        """Whether saves are written while the training goes on, on such a device.

        Where it is not said: on a GPU, which trains on while the host hashes and writes. On a CPU the
        training has the cores that the hashes need, and the memory that the copies need.
        """
        said: bool | None = getattr(self, "async")
        return device_type == "cuda" if said is None else said

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
    """What is logged, and where. metrics.jsonl and the console always are."""

    level: Literal["debug", "info", "warning", "error"] = Field(
        default="info", description="Least important message on the console."
    )
    sinks: list[SinkConfig] = Field(
        default_factory=list,
        description="Metric sinks beside the console and metrics.jsonl; name these for their options.",
    )

    @field_validator("sinks")
    @classmethod
    def _each_sink_once(cls, value: list[SinkConfig]) -> list[SinkConfig]:
        options: dict[str, dict[str, Any]] = {}
        for sink in value:
            if options.setdefault(sink.name, sink.options) != sink.options:
                raise ValueError(f"{sink.name} is named twice, with other options")
        return value


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
    parameter_groups: list[ParameterGroup] = Field(
        default_factory=list,
        description="Parameters with options of their own (no decay of norms and biases); the first match "
        "applies, all others have the optimizer's args.",
    )
    schedule: Component | None = Field(
        default=None, description="The learning rate's schedule; null: constant."
    )
    trainer: TrainerConfig = Field(description="Length, precision, rhythm.")
    strategy: StrategyConfig = Field(
        default_factory=StrategyConfig, description="Where parameters and gradients live."
    )
    checkpoint: CheckpointConfig = Field(default_factory=CheckpointConfig, description="When to save.")
    resilience: ResilienceConfig = Field(default_factory=ResilienceConfig, description="How long to wait.")
    logging: LoggingConfig = Field(default_factory=LoggingConfig, description="What is logged.")
    launch: LaunchConfig = Field(default_factory=LaunchConfig, description="Where it runs.")

    @field_validator("strategy")
    @classmethod
    def _compiles(cls, value: StrategyConfig, info: ValidationInfo) -> StrategyConfig:
        trainer = info.data.get("trainer")
        if value.name == "dp" and trainer is not None and trainer.compile is not None:
            raise ValueError(
                "dp copies the model at every step and cannot compile it: use ddp, or leave out "
                "trainer.compile"
            )
        if value.name == "split" and trainer is not None and trainer.compile is not None:
            raise ValueError(
                "split moves tensors between devices within the model, which nobody has compiled: leave out "
                "trainer.compile"
            )
        if value.name == "pipeline" and trainer is not None and trainer.precision == "fp16":
            raise ValueError(
                "pipeline has no loss on the stages before the last, by which a loss scale would be decided: "
                "use trainer.precision=bf16"
            )
        return value

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
