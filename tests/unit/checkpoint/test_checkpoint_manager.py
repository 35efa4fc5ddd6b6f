"""CheckpointManager as a training loop uses it."""

from __future__ import annotations

import logging
import random
from pathlib import Path

import numpy as np
import pytest
import torch
from checkpoint_cases import Loader, Tied, Training, manager, manifest_of, saved_run
from checkpoint_places import Place
from safetensors import safe_open
from torch import nn

from dist_train.checkpoint.manager import CheckpointManager
from dist_train.checkpoint.save_results import Committed
from dist_train.checkpoint.store.verify import list_checkpoints
from dist_train.errors import CheckpointError, ConfigError, NotFoundError


def test_a_resumed_run_has_the_bits_of_the_undisturbed_one(place: Place) -> None:
    undisturbed = Training()
    undisturbed.train(6)

    first = Training()
    first.train(3)
    committed = manager(place.location).save(3, first.state)
    assert committed.weights_hash == first.weights()
    assert committed.location == place.storage.locate("step-00000003")

    resumed = Training(seed=99)
    resumed.model.seen.fill_(7)
    restored = manager(place.location, attempt=1).load_latest(resumed.state)
    assert restored is not None
    assert (restored.step, restored.epoch, restored.samples_in_epoch) == (3, 0, 12)
    assert restored.rng_restored
    assert (restored.location, restored.weights_hash) == (committed.location, committed.weights_hash)
    assert restored.world_size == 1
    resumed.train(3)
    assert resumed.weights() == undisturbed.weights()
    assert resumed.loader.at == 24
    assert torch.equal(resumed.model.seen, undisturbed.model.seen)
    assert resumed.schedule.state_dict() == undisturbed.schedule.state_dict()
    assert random.random() == pytest.approx(_after(undisturbed), abs=0)


def _after(training: Training) -> float:
    # Both trainings share this process's generators: replay the undisturbed one to its end.
    again = Training()
    again.train(6)
    assert again.weights() == training.weights()
    return random.random()


def test_saving_changes_no_rng_state_and_the_same_state_has_the_same_hash(tmp_path: Path) -> None:
    hashes = set()
    for name, extra_saves in (("a", 0), ("b", 2)):
        training = Training()
        manage = manager(tmp_path / name)
        for step in range(1, 4):
            training.train()
            for number in range(extra_saves):
                manage.save(100 * step + number, training.state)
        hashes.add(manage.save(3, training.state).state_hash)
    assert len(hashes) == 1


def test_nothing_there_means_step_zero_and_reading_makes_nothing(place: Place) -> None:
    assert CheckpointManager(place.location).load_latest(Training().state) is None
    assert place.names() == set()
    with pytest.raises(NotFoundError, match=r"no checkpoint of step 3 .* there is none"):
        CheckpointManager(place.location).load(3, Training().state)


def test_data_files_open_with_safetensors_under_plain_names(tmp_path: Path) -> None:
    saved_run(tmp_path, 1)
    with safe_open(tmp_path / "step-00000001" / "model.safetensors", "pt") as file:
        names = set(file.keys())
        assert torch.equal(file.get_tensor("norm.num_batches_tracked"), torch.tensor(1))
    assert names == {name for name in Tied().state_dict() if name != "head.weight"}
    manifest = manifest_of(tmp_path, 1)
    assert manifest.aliases == {"model/head.weight": "model/emb.weight"}
    assert manifest.data["seed"] == 5
    assert "optim/emb.weight/exp_avg" in manifest.tensors
    assert "data0/rng/torch" in manifest.tensors


def test_keep_last_keep_best_and_the_newest(place: Place) -> None:
    training, manage = Training(), manager(place.location, keep_last=2, keep_best=1)
    for step, score in enumerate([3.0, 1.0, 2.0, float("nan"), 5.0, 4.0], start=1):
        training.train()
        manage.save(step, training.state, score=score)
    assert manage.steps() == [2, 5, 6]
    assert [line.score for line in list_checkpoints(place.location)] == [1.0, 5.0, 4.0]
    # A run that went back to an older step: what it has just written stays, what was newer is moved aside.
    manage.save(3, training.state)
    assert manage.steps() == [2, 3]


def test_two_are_kept_even_if_one_was_asked_for(place: Place) -> None:
    saved_run(place.location, 4, keep_last=1)
    assert manager(place.location).steps() == [3, 4]


def test_save_if_due(place: Place) -> None:
    training, manage = Training(), manager(place.location, every_steps=2)
    training.train()
    assert [manage.save_if_due(step, training.state) for step in range(5)] == [
        False,
        False,
        True,
        False,
        True,
    ]
    assert manage.steps() == [2, 4]
    with pytest.raises(ConfigError, match="every_steps was not given"):
        manager(place.location).save_if_due(1, training.state)


def test_on_commit_is_called_after_the_commit(place: Place) -> None:
    calls = []

    def note(committed: Committed) -> None:
        calls.append((committed.step, place.storage.exists(f"{committed.path.name}/manifest.json")))

    manager(place.location, on_commit=note).save(7, Training().state)
    assert calls == [(7, True)]


def test_where_it_is_on_a_file_system(tmp_path: Path) -> None:
    committed = manager(tmp_path).save(3, Training().state)
    assert committed.path == tmp_path / "step-00000003"
    assert committed.location == str(committed.path)


def test_verify_names_file_and_block(place: Place) -> None:
    saved_run(place.location, 1)
    manage = manager(place.location)
    assert manage.verify(1).ok
    place.flip("step-00000001/optim.safetensors", -1, 0)
    with pytest.raises(CheckpointError, match=r"optim\.safetensors: block 0 \(bytes 0 to \d+\)"):
        manage.verify(1)


def test_plain_values_and_tensors_in_the_state(tmp_path: Path) -> None:
    scale = torch.tensor([1.5, 2.5], dtype=torch.bfloat16)
    values = {"best": float("inf"), "seen": (1, "a"), "by": {1: [None, True]}}
    manager(tmp_path).save(1, {"scale": scale, "notes": values, "count": 3})
    state = {"scale": torch.zeros(2, dtype=torch.bfloat16), "notes": None, "count": 0}
    kept = state["scale"]
    manager(tmp_path, attempt=1).load_latest(state)
    assert state["scale"] is kept
    assert torch.equal(kept, scale)
    assert state["notes"] == values
    assert state["count"] == 3


def test_what_cannot_be_stored_is_named_with_its_type(tmp_path: Path) -> None:
    with pytest.raises(
        CheckpointError, match=r"'notes/path' is of type pathlib\.\w+.*\n.*nothing is pickled"
    ):
        manager(tmp_path).save(1, {"notes": {"path": Path("x")}})
    with pytest.raises(CheckpointError, match=r"'optim': parameter 0 of group 0.* belongs to no module"):
        manager(tmp_path).save(1, {"optimizer": torch.optim.SGD(nn.Linear(2, 2).parameters(), lr=1.0)})
    with pytest.raises(CheckpointError, match="cannot be a key of the state"):
        manager(tmp_path).save(1, {"rank0": 1})
    assert not list(tmp_path.glob("*step*"))


class Wider(nn.Module):
    def __init__(self, **shapes: int) -> None:
        super().__init__()
        for name, width in shapes.items():
            setattr(self, name, nn.Linear(2, width, bias=False))


def test_a_checkpoint_of_another_model_is_refused_by_name_with_the_nearest(tmp_path: Path) -> None:
    manager(tmp_path).save(1, {"model": Wider(weights_in=3, out=2)})
    reader = manager(tmp_path, attempt=1)
    with pytest.raises(
        CheckpointError, match=r"missing 'weight_in\.weight' \(nearest: 'weights_in\.weight'\)"
    ):
        reader.load_latest({"model": Wider(weight_in=3, out=2)})
    with pytest.raises(CheckpointError, match=r"float32 \(2, 2\) there and float32 \(4, 2\) in the model"):
        reader.load_latest({"model": Wider(weights_in=3, out=4)})
    with pytest.raises(CheckpointError, match=r"float32 .* there and float64"):
        reader.load_latest({"model": Wider(weights_in=3, out=2).double()})
    with pytest.raises(CheckpointError, match=r"has no entry 'modle' \(nearest: 'model'\)"):
        reader.load_latest({"modle": Wider(weights_in=3, out=2)})


def test_leaving_out_a_part_of_the_state_is_refused(tmp_path: Path) -> None:
    saved_run(tmp_path, 1)
    with pytest.raises(CheckpointError, match="also holds 'loader', 'optimizer', 'schedule'"):
        manager(tmp_path, attempt=1).load_latest({"model": Tied()})


def test_a_model_under_ddp_or_compile_has_the_plain_names(tmp_path: Path) -> None:
    training = Training()
    training.train()
    plain = manager(tmp_path / "plain").save(1, {"model": training.model})
    compiled = torch.compile(training.model, backend="eager")
    wrapped = manager(tmp_path / "wrapped").save(1, {"model": compiled})
    assert wrapped.state_hash == plain.state_hash
    inner = nn.Sequential(torch.compile(nn.Linear(2, 2), backend="eager"))
    manager(tmp_path / "inner").save(1, {"model": inner})
    fresh = nn.Sequential(nn.Linear(2, 2))
    manager(tmp_path / "inner", attempt=1).load_latest({"model": fresh})
    assert torch.equal(fresh[0].weight, inner[0].weight)


def test_extra_state_of_a_module(tmp_path: Path) -> None:
    class WithExtra(nn.Linear):
        scales = (1, 2.5)

        def get_extra_state(self) -> object:
            return {"scales": self.scales}

        def set_extra_state(self, state: dict[str, tuple[int, float]]) -> None:
            self.scales = state["scales"]

    model, fresh = WithExtra(2, 2), WithExtra(2, 2)
    model.scales = (7, 8.5)
    manager(tmp_path).save(1, {"model": model})
    manager(tmp_path, attempt=1).load_latest({"model": fresh})
    assert fresh.scales == (7, 8.5)


def test_two_models_and_their_optimizers(tmp_path: Path) -> None:
    def make() -> dict[str, object]:
        one, two = nn.Linear(2, 2), nn.Linear(2, 2)
        both = torch.optim.Adam([*one.parameters(), *two.parameters()])
        return {"g": one, "d": two, "opt": both}

    state = make()
    state["g"](torch.ones(1, 2)).sum().backward()
    state["d"](torch.ones(1, 2)).sum().backward()
    state["opt"].step()
    manager(tmp_path).save(1, state)
    assert "opt/d/weight/exp_avg" in manifest_of(tmp_path, 1).tensors
    fresh = make()
    manager(tmp_path, attempt=1).load_latest(fresh)
    before, after = state["opt"].state_dict()["state"], fresh["opt"].state_dict()["state"]
    for index in range(4):
        assert torch.equal(before[index]["exp_avg"], after[index]["exp_avg"])


@pytest.mark.parametrize(
    "make",
    [
        lambda o: torch.optim.lr_scheduler.OneCycleLR(o, 0.5, total_steps=9),
        lambda o: torch.optim.lr_scheduler.ReduceLROnPlateau(o),
        lambda o: torch.optim.lr_scheduler.CosineAnnealingWarmRestarts(o, 3),
        lambda o: torch.optim.lr_scheduler.LambdaLR(o, lambda step: 0.9**step),
        lambda o: torch.optim.lr_scheduler.LambdaLR(o, lambda step: np.exp(-step)),
        lambda o: torch.optim.lr_scheduler.CyclicLR(o, 0.1, 0.5),
        lambda o: torch.optim.lr_scheduler.SequentialLR(
            o,
            [torch.optim.lr_scheduler.ConstantLR(o), torch.optim.lr_scheduler.ExponentialLR(o, 0.9)],
            milestones=[2],
        ),
    ],
)
def test_torch_schedules_go_on_as_if_nothing_had_happened(tmp_path: Path, make) -> None:
    def training() -> dict[str, object]:
        torch.manual_seed(0)
        model = nn.Linear(2, 2)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
        return {"model": model, "optimizer": optimizer, "schedule": make(optimizer)}

    def step(state: dict[str, object]) -> None:
        state["optimizer"].step()
        plateau = isinstance(state["schedule"], torch.optim.lr_scheduler.ReduceLROnPlateau)
        state["schedule"].step(*([1.0] if plateau else []))

    old, new = training(), training()
    for _ in range(3):
        step(old)
    manager(tmp_path).save(3, old)
    manager(tmp_path, attempt=1).load_latest(new)
    for _ in range(3):
        step(old)
        step(new)
        assert old["optimizer"].param_groups[0]["lr"] == new["optimizer"].param_groups[0]["lr"]


def test_restored_tensors_share_no_memory(tmp_path: Path) -> None:
    class Average:
        shadow = torch.arange(3.0)

        def state_dict(self) -> dict[str, object]:
            return {"shadow": self.shadow, "again": [self.shadow]}

        def load_state_dict(self, state: dict[str, object]) -> None:
            self.shadow, self.again = state["shadow"], state["again"][0]

    manager(tmp_path).save(1, {"average": Average()})
    fresh = Average()
    manager(tmp_path, attempt=1).load_latest({"average": fresh})
    fresh.shadow.add_(1)
    assert torch.equal(fresh.again, torch.arange(3.0))


def test_missing_rng_state_is_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        "dist_train.checkpoint.state.per_rank_state.capture_rng", lambda: {"torch": torch.get_rng_state()}
    )
    manager(tmp_path).save(1, {"count": 1})
    with pytest.raises(CheckpointError, match="has no RNG state numpy, python of data coordinate 0"):
        manager(tmp_path, attempt=1).load_latest({"count": 0})


def test_another_environment_is_reported(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    manager(tmp_path, determinism={"threads_per_rank": 1, "torch": "2.13.0"}).save(1, {"count": 1})
    with caplog.at_level(logging.WARNING):
        manager(tmp_path, attempt=1, determinism={"threads_per_rank": 4, "torch": "2.13.0"}).load(
            1, {"count": 0}
        )
    assert "threads_per_rank is 4 here and was 1 at the save" in caplog.text
    assert "torch is" not in caplog.text


@pytest.mark.parametrize(("then", "now"), [(None, "inductor default"), ("eager default", None)])
def test_a_compiled_model_on_one_side_alone_is_said(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, then: str | None, now: str | None
) -> None:
    manager(tmp_path, determinism={"compile": then} if then else {}).save(1, {"count": 1})
    with caplog.at_level("WARNING"):
        manager(tmp_path, attempt=1, determinism={"compile": now} if now else {}).load(1, {"count": 0})
    assert f"compile is {now or 'not used'} here and was {then or 'not used'} at the save" in caplog.text


def test_a_loader_is_put_back_and_names_the_data(tmp_path: Path) -> None:
    loader = Loader()
    loader.at = 148
    manager(tmp_path).save(1, {"loader": loader})
    fresh = Loader()
    restored = manager(tmp_path, attempt=1).load_latest({"loader": fresh})
    assert restored is not None
    assert (restored.epoch, restored.samples_in_epoch, fresh.at) == (1, 48, 148)
