"""A model with tied, frozen and one-row parameters, two parameter groups, and hashes of its whole state."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as torch_dist
import xxhash
from checkpoint_crash import Killed
from torch import nn
from torch.nn import functional

import dist_train as dt
from dist_train.checkpoint import CheckpointManager
from dist_train.checkpoint.format.boxes import whole as everything
from dist_train.checkpoint.run_context import current_control
from dist_train.checkpoint.state.part_boxes import boxes_of
from dist_train.distributed.parameter_shards import is_sharded


@dataclass(frozen=True)
class Layout:
    """How a model is spread, and over how many ranks."""

    strategy: str
    ranks: int
    options: Mapping[str, Any] = field(default_factory=dict)

    @property
    def name(self) -> str:
        """For the test's id and its folder."""
        return f"{self.strategy}{self.ranks}"

    @property
    def parts(self) -> int:
        """In how many a matrix is cut."""
        if self.strategy == "pipeline":
            return int(self.options.get("shard", 1))
        return {"single": 1, "ddp": 1, "hsdp": self.ranks // 2}.get(self.strategy, self.ranks)


LAYOUTS = (
    Layout("single", 1),
    Layout("ddp", 2),
    Layout("fsdp", 2),
    Layout("fsdp", 3),
    Layout("fsdp", 4, {"units": ["Block", "head"]}),
    Layout("hsdp", 4),
    Layout("tensor_parallel", 2),
    Layout("fsdp_tensor_parallel", 4),
    Layout("pipeline", 2),
    Layout("pipeline", 4, {"stage": 2, "shard": 2}),
)


class Block(nn.Module):
    """A residual layer."""

    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(6)
        self.up = nn.Linear(6, 10)
        self.down = nn.Linear(10, 6)
        self.up.bias.requires_grad_(False)
        # Three layers in one weight.
        self.gated = nn.Linear(6, 12)
        self.closed = nn.Linear(4, 6)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = x + self.down(functional.dropout(torch.tanh(self.up(self.norm(x))), 0.2))
        gate, value, more = self.gated(x).chunk(3, dim=-1)
        out: torch.Tensor = x + self.closed(torch.tanh(gate) * value + more)
        return out


class Model(nn.Module):
    """Predicts the token that it is given."""

    def __init__(self, tied: bool = True) -> None:
        super().__init__()
        self.embedding = nn.Embedding(5, 6)
        self.blocks = nn.ModuleList([Block(), Block()])
        self.head = nn.Linear(6, 5, bias=False)
        self.again = nn.Linear(6, 5, bias=False)
        if tied:
            self.again.weight = self.embedding.weight
        # Of fewer rows than ranks: the others' parts are empty.
        self.scale = nn.Parameter(torch.ones(1))
        self.register_buffer("seen", torch.zeros(2))

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        x = self.embed(tokens)
        for block in self.blocks:
            x = block(x)
        return self.score(x)

    def embed(self, tokens: torch.Tensor) -> torch.Tensor:
        self.seen += 1
        return self.embedding(tokens)

    def score(self, x: torch.Tensor) -> torch.Tensor:
        return (self.head(x) + self.again(x)) * self.scale

    def tensor_parallel_plan(self) -> dict[str, str]:
        """What tensor parallelism cuts."""
        rowwise = {"blocks.*.down": "rowwise", "blocks.*.closed": "rowwise"}
        return {"blocks.*.up": "colwise", "blocks.*.gated": "fused_colwise:3", **rowwise}

    def pipeline_layers(self) -> list[Any]:
        return [(self.embed, ["embedding", "seen"]), *self.blocks, (self.score, ["head", "again", "scale"])]


def make(layout: Layout, seed: int) -> tuple[nn.Module, torch.optim.Optimizer]:
    """The prepared model and its optimizer."""
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        plain = Model()
    model = dt.prepare(plain, layout.strategy, **layout.options)
    no_decay = [p for name, p in model.named_parameters() if name.endswith("bias")]
    others = [p for name, p in model.named_parameters() if not name.endswith("bias")]
    groups = [{"params": others, "weight_decay": 0.1}, {"params": no_decay, "weight_decay": 0.0}]
    return model, torch.optim.AdamW(groups, lr=0.01)


def train(run: Any, model: nn.Module, optimizer: torch.optim.Optimizer, first: int, last: int) -> None:
    """The steps from `first` to `last` over one global batch of each step."""
    for step in range(first, last):
        tokens = torch.randint(0, 5, (12, 4), generator=torch.Generator().manual_seed(step))
        tokens = tokens[run.place.data_rank :: run.place.data_size]
        optimizer.zero_grad()
        batches = tokens.split(3)
        dt.forward_backward(model, batches, loss_sum, [batch.numel() for batch in batches])
        optimizer.step()


def loss_sum(model: nn.Module, tokens: torch.Tensor) -> torch.Tensor:
    return functional.cross_entropy(model(tokens).flatten(0, 1), tokens.flatten(), reduction="sum")


def whole(tensor: torch.Tensor) -> torch.Tensor:
    """All of a tensor (collective where it is sharded)."""
    if not is_sharded(tensor):
        return tensor.detach().contiguous()
    if "tensor" not in (tensor.device_mesh.mesh_dim_names or ()):
        return tensor.full_tensor().detach().contiguous()
    # full_tensor() gives the rows of fused layers in another order if they are cut twice.
    own = [(box, tensor.to_local().detach()[place]) for box, place in boxes_of("", tensor)]
    everywhere: list[Any] = [None] * torch_dist.get_world_size()
    torch_dist.all_gather_object(everywhere, own)
    full = torch.full(tensor.shape, float("nan"), dtype=tensor.dtype)
    for box, values in (part for parts in everywhere for part in parts):
        full[box.slices_in(everything(tensor.shape))] = values
    return full


def digest(tensor: torch.Tensor) -> str:
    return xxhash.xxh3_128_hexdigest(tensor.reshape(-1).view(torch.uint8).numpy())


def whole_state(model: nn.Module, optimizer: torch.optim.Optimizer) -> dict[str, str]:
    """A digest of each whole tensor of the model and the optimizer, by name (collective)."""
    plain = dt.unwrap(model)
    names = {id(parameter): name for name, parameter in plain.named_parameters()}
    state_dict = {name: tensor for name, tensor in plain.state_dict().items() if not tensor.is_meta}
    found = {name: digest(whole(tensor)) for name, tensor in state_dict.items()}
    for parameter, state in optimizer.state.items():
        for key, value in state.items():
            found[f"{names[id(parameter)]}/{key}"] = digest(whole(value))
    if len(state_dict) == len(plain.state_dict()):
        return found
    everywhere: dict[str, str] = {}  # each stage of a pipeline has its own
    for row in current_control().all_gather(found):
        assert all(everywhere.setdefault(name, value) == value for name, value in row.items())
    return everywhere


def save(layout: Layout, folder: Path, steps: int = 2) -> tuple[dict[str, str], dict[str, str]]:
    """Train and save; return the digests of the whole state, and the hashes of the checkpoint."""
    with dt.init(device="cpu", seed=1, timeout_s=30) as run:
        model, optimizer = make(layout, run.rank)
        train(run, model, optimizer, 0, steps)
        manager = CheckpointManager(folder, keep_last=99, strategy=layout.strategy)
        done = manager.save(steps, {"model": model, "optimizer": optimizer})
        hashes = {"weights": done.weights_hash, "state": done.state_hash}
        return whole_state(model, optimizer), hashes


def load(layout: Layout, folders: list[Path]) -> list[tuple[dict[str, str], str]]:
    """Load each folder's checkpoint into a model of other weights; return its whole state, and its hash."""
    found = []
    with dt.init(device="cpu", seed=2, timeout_s=30):
        for folder in folders:
            model, optimizer = make(layout, 7)
            state = {"model": model, "optimizer": optimizer}
            restored = CheckpointManager(folder).load_latest(state)
            assert restored is not None
            again = CheckpointManager(folder / f"again-{layout.name}").save(restored.step, state)
            found.append((whole_state(model, optimizer), again.weights_hash))
    return found


def save_twice(
    layout: Layout, directory: Path, who: int = -1, at: int = 0
) -> tuple[int, list[dict[str, str]]]:
    """Save step 1 and step 2; rank `who` is killed at its change `at` of the second.

    Returns how many changes this rank made then, and the digests of both states.
    """
    with dt.init(device="cpu", seed=1, timeout_s=30) as run:
        model, optimizer = make(layout, 0)
        manager = CheckpointManager(directory, run_id="run")
        state = {"model": model, "optimizer": optimizer}
        train(run, model, optimizer, 0, 1)
        manager.save(1, state)
        states = [whole_state(model, optimizer)]
        train(run, model, optimizer, 1, 2)
        states.append(whole_state(model, optimizer))
        files = Killed(directory, at if run.rank == who else 0)
        with pytest.MonkeyPatch.context() as patch:
            files.install(patch)
            manager.save(2, state)
        return files.count, states
