"""Each trap of the tutorials: one assertion that our form satisfies and the tutorial's form violates."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from example_runs import load_example
from torch.utils.data import TensorDataset

from dist_train.errors import ConfigError
from dist_train.models.convnet import ConvNet
from dist_train.testing import run_ranks


def trapped(check: Callable[[], object], pattern: str) -> None:
    """Check that the tutorial's form violates the same assertion, because of the trap.

    Args:
        pattern: in the message of the violated assertion.
    """
    with pytest.raises(AssertionError, match=pattern):
        check()


def test_a_wanted_gpu_is_a_gpu_or_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)  # a broken driver
    file = load_example("from_tutorials/pick_a_gpu.py")

    def check(form: Callable[[str], torch.device]) -> None:
        try:
            device = form("cuda")
        except ConfigError:
            return
        assert device.type == "cuda"

    check(file.ours)
    trapped(lambda: check(file.tutorial), "'cpu' == 'cuda'")
    with pytest.raises(RuntimeError, match="Invalid device string"):
        torch.device("cuda: 0")
    assert file.ours("auto").type == "cpu"
    with pytest.raises(ConfigError, match="did you mean 'cuda:0'"):
        file.named("cuda: 0")


@pytest.mark.parametrize(("n", "processes"), [(7, 2), (8, 2), (5, 3)])
def test_every_epoch_has_its_own_order(n: int, processes: int) -> None:
    file = load_example("from_tutorials/samplers.py")

    def check(orders: list[list[list[int]]]) -> None:
        assert len({str(order) for order in orders}) > 1, "one order"

    check(file.ours(n, processes, epochs=5))
    trapped(lambda: check(file.tutorial(n, processes, epochs=5)), "one order")


@pytest.mark.proves(
    "Each trap of the tutorials has a test that the tutorial's own form fails",
    limits="CPU",
)
@pytest.mark.parametrize(("n", "processes"), [(7, 2), (5, 3), (1, 2)])
def test_each_sample_counts_once(n: int, processes: int) -> None:
    file = load_example("from_tutorials/samplers.py")

    def check(orders: list[list[list[int]]]) -> None:
        for epoch in orders:
            seen = [sample for samples in epoch for sample in samples]
            assert [sample for sample in range(n) if seen.count(sample) != 1] == []

    check(file.ours(n, processes, epochs=2, shuffle=False))
    trapped(lambda: check(file.tutorial(n, processes, epochs=2, shuffle=False)), r"\[0\] == \[\]")


def test_activations_between_the_halves_of_a_model_are_moved() -> None:
    file = load_example("from_tutorials/split_a_model.py")

    def check(form: Callable[[str, str], torch.Tensor]) -> None:
        for halves in (("cpu", "meta"), ("cpu", "cpu")):
            try:
                loss = form(*halves)
            except RuntimeError as error:
                raise AssertionError(str(error)) from None
            assert (loss.device.type, loss.requires_grad) == (halves[1], True)

    check(file.ours)
    trapped(lambda: check(file.tutorial), "on the expected device|on the same device")


def test_only_the_prefix_is_removed(tmp_path: Path) -> None:
    file = load_example("from_tutorials/save_and_load.py")
    trained = file.Net()
    file.saved_by_others(trained, tmp_path / "weights")

    def check(form: Callable[..., None]) -> None:
        loaded = file.Net()
        form(tmp_path / "weights", loaded)
        wanted = trained.state_dict()
        lost = [name for name, tensor in loaded.state_dict().items() if not torch.equal(tensor, wanted[name])]
        assert lost == []

    check(file.ours)
    trapped(lambda: check(file.tutorial), r"\['my_module.*'\] == \[\]")


def test_a_script_that_pins_runs_without_a_gpu_too() -> None:
    file = load_example("from_tutorials/pinned_memory.py")
    data = TensorDataset(torch.arange(5.0))

    def check(form: Callable[..., list[torch.Tensor]]) -> None:
        try:
            batches = form(data, torch.device("cpu"))
        except RuntimeError as error:
            raise AssertionError(str(error)) from None
        assert torch.equal(torch.cat(batches), torch.arange(5.0))

    check(file.ours)
    if not torch.cuda.is_available():
        # Of a CPU build, and of a CUDA build on a machine without a driver.
        trapped(lambda: check(file.tutorial), "accelerator|no NVIDIA driver")


def test_the_whole_batch_moves() -> None:
    file = load_example("from_tutorials/moving_tensors.py")

    def check(form: Callable[..., dict[str, object]]) -> None:
        batch = {"x": torch.zeros(2), "nested": [torch.zeros(1), {"y": torch.zeros(3)}], "name": "a"}
        moved = form(batch, "meta")
        assert file.devices(moved) == {"meta"}
        assert moved["name"] == "a"

    check(file.ours)
    trapped(lambda: check(file.tutorial), r"\{'cpu'\} == \{'meta'\}")


def test_a_process_gets_its_local_rank(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("RANK", "LOCAL_RANK"):
        monkeypatch.setenv(name, "1")
    for name in ("WORLD_SIZE", "LOCAL_WORLD_SIZE"):
        monkeypatch.setenv(name, "2")
    file = load_example("from_tutorials/old_launch.py")

    def check(form: Callable[[list[str]], int], words: list[str]) -> None:
        assert form(words) == 1

    check(file.ours, [])
    check(file.tutorial, ["--local_rank=1"])  # what dist-train passes
    trapped(lambda: check(file.tutorial, []), "assert 0 == 1")  # what torchrun does


def failure_of(form: Callable[..., None], *words: object) -> str:
    """The error of a form that should not succeed, in a process of its own; "no error" where it does.

    A store that failed stays in the error's traceback, with threads: whoever forks later inherits it
    without them, and its destructor waits for them for ever.
    """

    def rank_main() -> str:
        os.environ.pop("TORCHELASTIC_USE_AGENT_STORE")  # as without a launcher: it serves its own store
        try:
            form(*words)
        except Exception as error:
            return str(error)
        return "no error"

    (message,) = run_ranks(rank_main, 1)
    return str(message)


@pytest.mark.proof  # both forms wait
def test_missing_ranks_are_named() -> None:
    file = load_example("from_tutorials/tcp_init.py")

    def check(form: Callable[[int, float], None]) -> None:
        assert "rank 1" in failure_of(form, file.free_port(), 1)

    check(file.ours)
    trapped(lambda: check(file.tutorial), "1/2 clients joined")


@pytest.mark.proof  # both forms wait some seconds
def test_a_stale_file_is_named_with_a_hint(tmp_path: Path) -> None:
    file = load_example("from_tutorials/shared_file_init.py")

    file.crashed_run(tmp_path / "left")
    left = (tmp_path / "left").read_bytes()

    def check(form: Callable[[Path, float], None]) -> None:
        meeting = tmp_path / form.__name__
        meeting.write_bytes(left)
        assert f"rm {meeting}" in failure_of(form, meeting, 1)

    check(file.ours)
    # By dead addresses; where another process has taken one of their ports meanwhile, it even works.
    trapped(lambda: check(file.tutorial), "connectFullMesh failed|no error")
    assert "connectFullMesh" not in failure_of(file.tutorial, tmp_path / "fresh", 1), (
        "only the other is missing"
    )


@pytest.mark.proof  # two workers import torch
def test_inference_is_in_order_without_dropout_and_without_graphs() -> None:
    file = load_example("from_tutorials/inference_on_a_card.py")
    model, batches = ConvNet(dropout=0.5), list(torch.rand(6, 4, 1, 8, 8))

    def no_graph(results: list[torch.Tensor]) -> None:
        assert [result.requires_grad for result in results] == [False] * 6

    def as_one_by_one(results: list[torch.Tensor]) -> None:
        pairs = zip(results, file.expected(model, batches), strict=True)
        assert [torch.allclose(result, wanted, atol=1e-5) for result, wanted in pairs] == [True] * 6

    ours, tutorial = (form(model.train(), batches, ["cpu", "cpu"]) for form in (file.ours, file.tutorial))
    for check in (no_graph, as_one_by_one):
        check(ours)
    trapped(lambda: no_graph(tutorial), r"\[True, True, .* == \[False, ")
    trapped(lambda: as_one_by_one(tutorial), r"\[False, .* == \[True, ")
