"""dt.Predictor with forked workers (started in milliseconds; spawned ones are in tests/multiprocess)."""

from __future__ import annotations

import multiprocessing
import os
import signal
import time
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest
import torch
from prediction_cases import Counted, Dies, DiesDelivering, Doubles, Raises, Slow, numbers
from torch import nn

import dist_train as dt
from dist_train.errors import ConfigError, UsageError
from dist_train.inference import BatchFailed
from dist_train.inference.prediction_errors import WorkerBroken


@pytest.fixture(autouse=True)
def _forked(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(dt.Predictor, "start_method", "fork")
    yield
    assert not workers(), "workers outlived their Predictor"


def workers() -> list[psutil.Process]:
    """Alive, the oldest first; this process may have other children (multiprocessing's resource tracker)."""
    pids = [child.pid for child in multiprocessing.active_children() if child.pid is not None]
    return [psutil.Process(pid) for pid in sorted(pids)]


def test_results_in_order_from_several_processes() -> None:
    with dt.Predictor(Doubles().train(), devices=["cpu", "cpu"]) as predictor:
        found = list(predictor.predict(Counted(20)))
    # In eval mode dropout does nothing.
    assert [result["out"].tolist() for result in found] == [[2.0 * n, 2.0 * n] for n in range(20)]
    assert len({result["pid"] for result in found} - {os.getpid()}) == 2


def test_a_slow_first_batch_holds_up_only_what_is_bounded() -> None:
    batches = Counted(40)
    with dt.Predictor(Slow(), processes=2) as predictor:
        results = predictor.predict(batches)
        assert numbers([next(results)]) == [0]
        assert batches.taken <= 1 + 4 * 2
        assert numbers(results) == list(range(1, 40))


@pytest.mark.parametrize("model", [Dies, DiesDelivering])
@pytest.mark.parametrize(("processes", "times"), [(1, 1), (2, 1), (3, 2)])
def test_nothing_is_lost_and_nothing_doubled_when_workers_die(
    tmp_path: Path, processes: int, times: int, caplog: pytest.LogCaptureFixture, model: type[Dies]
) -> None:
    with dt.Predictor(model(tmp_path, 5, times), processes=processes) as predictor:
        assert numbers(predictor.predict(Counted(12))) == list(range(12))
        assert numbers(predictor.predict(Counted(3))) == [0, 1, 2]
    assert len(list(tmp_path.iterdir())) == times
    assert caplog.text.count("was ended by signal 9 (SIGKILL)") == times


def test_a_worker_that_is_killed_from_outside(tmp_path: Path) -> None:
    with dt.Predictor(Slow(), processes=2) as predictor:
        results, found = predictor.predict(Counted(30)), []
        for result in results:
            found.append(int(result[0]))
            if found[-1] in (3, 11):
                workers()[0].kill()
        assert found == list(range(30))


def test_workers_that_are_killed_while_idle_and_halfway_through_a_message() -> None:
    large = [torch.full((1 << 20,), float(i)) for i in range(9)]
    with dt.Predictor(nn.Identity(), processes=2) as predictor:
        workers()[0].kill()
        assert numbers(predictor.predict(Counted(5))) == [0, 1, 2, 3, 4]
        results = predictor.predict(large)
        assert next(results)[0] == 0
        for _ in range(2):
            # Nobody reads meanwhile, and 4 MiB are more than a pipe holds.
            time.sleep(0.1)
            workers()[0].kill()
            next_one = next(results)
            assert len(next_one.unique()) == 1
        assert numbers(results) == list(range(3, 9))


def test_a_batch_that_ends_three_workers_is_named(tmp_path: Path) -> None:
    with dt.Predictor(Dies(tmp_path, 5, 99), processes=2) as predictor:
        results = predictor.predict(Counted(12))
        with pytest.raises(BatchFailed, match=r"batch 5 has ended 3 workers: .*SIGKILL") as failed:
            list(results)
        assert failed.value.index == 5
        assert "out-of-memory" in str(failed.value)
        assert len(list(tmp_path.iterdir())) == 3
        # The others are as good as before.
        assert numbers(predictor.predict(Counted(4))) == [0, 1, 2, 3]


def test_what_the_model_raises_comes_with_the_batch_and_the_worker_s_traceback() -> None:
    with dt.Predictor(Raises(7), processes=2) as predictor:
        with pytest.raises(
            BatchFailed, match=r"batch 7 on cpu: ValueError: this model does not like"
        ) as failed:
            numbers(predictor.predict(Counted(20)))
        assert failed.value.index == 7
        assert "prediction_cases.py" in str(failed.value)
        assert failed.value.exit_code == 1
        assert numbers(predictor.predict(Counted(5))) == [0, 1, 2, 3, 4]


def test_an_iteration_that_is_left_disturbs_no_later_one() -> None:
    with dt.Predictor(Slow(), processes=2) as predictor:
        old = predictor.predict(Counted(20))
        next(old)
        next(old)
        assert numbers(predictor.predict(Counted(6))) == [0, 1, 2, 3, 4, 5]
        with pytest.raises(UsageError, match="one iteration at a time"):
            next(old)


def test_what_the_caller_s_own_iterable_raises_is_the_caller_s() -> None:
    def breaks() -> Iterator[torch.Tensor]:
        yield torch.zeros(1)
        raise KeyError("mine")

    with dt.Predictor(Slow()) as predictor:
        with pytest.raises(KeyError, match="mine"):
            list(predictor.predict(breaks()))
        with pytest.raises(BatchFailed, match="batch 1 cannot be sent to a worker"):
            list(predictor.predict([torch.zeros(1), lambda: 0]))
        assert numbers(predictor.predict(Counted(2))) == [0, 1]


def test_nested_batches_and_large_ones_both_ways() -> None:
    batches = [{"image": torch.full((512, 1024), float(i)), "name": [f"n{i}", None]} for i in range(6)]
    with dt.Predictor(Doubles(), processes=2, forward=second_thought) as predictor:
        for i, result in enumerate(predictor.predict(batches)):
            assert result["name"] == [f"n{i}", None]
            assert torch.equal(result["twice"], batches[i]["image"] * 2)


def second_thought(model: nn.Module, batch: dict[str, torch.Tensor]) -> dict[str, object]:
    assert torch.is_inference_mode_enabled()
    return {"twice": model(batch["image"])["out"], "name": batch["name"]}


def test_closing_is_quick_also_at_work_and_no_process_stays() -> None:
    predictor = dt.Predictor(Slow(), processes=2)
    pids = [worker.pid for worker in workers()]
    results = predictor.predict(Counted(50))
    next(results)
    began = time.monotonic()
    predictor.close()
    predictor.close()
    assert time.monotonic() - began < 5
    assert not [pid for pid in pids if psutil.pid_exists(pid)]
    with pytest.raises(UsageError, match="is closed"):
        predictor.predict(Counted(1))
    with pytest.raises(UsageError, match="has ended"):
        list(results)


def test_a_predictor_that_nobody_closes_ends_with_its_last_reference() -> None:
    predictor = dt.Predictor(Slow(), processes=2)
    assert numbers(predictor.predict(Counted(2))) == [0, 1]
    del predictor  # the fixture looks


class Unopened(nn.Module):
    """Fails where it is unpickled."""

    def __setstate__(self, state: object) -> None:
        raise RuntimeError("no driver here")


def test_a_worker_that_cannot_begin_says_why() -> None:
    with pytest.raises(WorkerBroken, match=r"on cpu could not start: RuntimeError: no driver here") as broken:
        dt.Predictor(Unopened(), processes=2)
    assert broken.value.exit_code == 69


class ExitsAtOnce(nn.Module):
    """Ends the process where it is unpickled."""

    def __setstate__(self, state: object) -> None:
        os._exit(5)


def test_a_worker_that_dies_before_it_begins_is_not_started_for_ever() -> None:
    with pytest.raises(WorkerBroken, match="ended with code 5 before it was ready"):
        dt.Predictor(ExitsAtOnce(), processes=2)


class KilledWhenOpened(nn.Module):
    """Its process is killed where it is unpickled, `times` times in all."""

    def __init__(self, folder: Path, times: int) -> None:
        super().__init__()
        self.folder, self.times = folder, times

    def __setstate__(self, state: dict[str, object]) -> None:
        self.__dict__.update(state)
        marks = len(list(self.folder.iterdir()))
        if marks < self.times:
            (self.folder / str(marks)).touch()
            os.kill(os.getpid(), signal.SIGKILL)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x


def test_a_worker_that_is_killed_before_it_begins_is_started_again_but_not_for_ever(tmp_path: Path) -> None:
    with dt.Predictor(KilledWhenOpened(tmp_path, 2)) as predictor:
        assert numbers(predictor.predict(Counted(3))) == [0, 1, 2]
        # Its replacement too, in the middle of an iteration.
        results = predictor.predict(Counted(20))
        assert next(results)[0] == 0
        (tmp_path / "1").unlink()
        workers()[0].kill()
        assert numbers(results) == list(range(1, 20))
    with pytest.raises(WorkerBroken, match=r"SIGKILL.* before it was ready"):
        dt.Predictor(KilledWhenOpened(tmp_path, 99))


def test_what_ctrl_c_may_have_cut_is_not_used_again() -> None:
    def interrupted() -> Iterator[torch.Tensor]:
        yield torch.zeros(1)
        raise KeyboardInterrupt

    with dt.Predictor(Slow(), processes=2) as predictor:
        with pytest.raises(KeyboardInterrupt):
            list(predictor.predict(interrupted()))
        assert not workers()
        with pytest.raises(UsageError, match="is closed"):
            predictor.predict(Counted(1))


def test_wrapped_models_go_as_their_own_and_tied_weights_stay_tied() -> None:
    class_ = nn.DataParallel(Doubles())
    with dt.Predictor(class_) as predictor:
        assert next(predictor.predict(Counted(1)))["out"].tolist() == [0.0, 0.0]


@pytest.mark.parametrize(
    ("words", "text"),
    [
        ({"devices": ["cpu"], "processes": 2}, "both give the number of workers"),
        ({"processes": 0}, "at least one is needed"),
        ({"devices": "cpu"}, r"is no list of devices\n.*\[\"cpu\"\]"),
        ({"devices": []}, "is no list of devices"),
        ({"devices": ["cuda: 0"]}, "cuda: 0"),
        ({"devices": [99]}, "99"),
        ({"forward": lambda model, batch: model(batch)}, "cannot be sent to a worker"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_what_is_refused_before_any_process_starts(words: dict[str, object], text: str) -> None:
    with pytest.raises(ConfigError, match=text):
        dt.Predictor(Slow(), **words)  # type: ignore[arg-type]
