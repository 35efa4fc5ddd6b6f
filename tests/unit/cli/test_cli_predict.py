"""`predict`, and `checkpoint import|export`, up to the process that loads torch (see tests/multiprocess)."""

from __future__ import annotations

import os
import signal
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from test_cli_checkpoint import write_checkpoint

from dist_train.cli.run import checkpoint_process
from dist_train.cli.verbs import checkpoint_convert
from dist_train.cli.verbs import predict as predict_verb
from dist_train.config import dump_config, load_config
from dist_train.jobs import gpus
from dist_train.jobs.gpus import Gpu

DIGITS = Path(__file__).parents[3] / "examples" / "digits.yaml"


@pytest.fixture
def started(monkeypatch: pytest.MonkeyPatch) -> list[tuple[list[str], dict[str, str]]]:
    """What `predict` would have started: arguments and environment."""
    found: list[tuple[list[str], dict[str, str]]] = []

    def note(argv: list[str], environ: dict[str, str], output: str | None) -> int:
        found.append((argv[argv.index("--config") :], environ))
        return 0

    monkeypatch.setattr(predict_verb, "_run", note)
    return found


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, ...]]:
    """What `checkpoint import|export` would have asked the process for."""
    found: list[tuple[str, ...]] = []

    def note(verb: str, path: Path, *words: str) -> list[dict[str, Any]]:
        found.append((verb, str(path), *words))
        return [
            {
                "source": str(path),
                "path": words[0],
                "tensors": 4,
                "bytes": 2048,
                "weights_hash": "ab" * 16,
                "origin": "torch.save, entry 'model'",
                "left": ["optimizer"],
                "dropped": "dropped leading 'module.' from 4 names",
            }
        ]

    monkeypatch.setattr(checkpoint_convert, "ask_checkpoints", note)
    return found


@pytest.fixture
def trained(make_run: Callable[..., Any]) -> Any:
    made = make_run("a-1").began()
    for step, score in ((10, 0.97), (20, 0.91)):
        write_checkpoint(made.run.checkpoints, step, score)
    made.run.config.write_text(dump_config(load_config(DIGITS).config))
    return made


def value(argv: list[str], name: str) -> str:
    return argv[argv.index(name) + 1]


def test_a_run_has_its_config_its_folder_and_its_newest_checkpoint(
    trained: Any, started: Any, dist_train: Any, here: Path
) -> None:
    assert dist_train("predict", "--output", "p.jsonl").code == 0
    ((argv, _),) = started
    assert value(argv, "--config") == str(trained.run.config)
    assert value(argv, "--folder") == str(trained.spec.target.folder)
    assert value(argv, "--weights") == str(trained.run.checkpoints)
    assert "--device" not in argv


@pytest.mark.parametrize(
    ("words", "step"),
    [(["a-1", "--step", 20], 20), (["a-1", "--best"], 10), (["runs/a-1/checkpoints/step-00000010"], 10)],
)
def test_which_checkpoint(
    trained: Any, started: Any, dist_train: Any, words: list[object], step: int
) -> None:
    assert dist_train("predict", *words).code == 0
    ((argv, _),) = started
    assert value(argv, "--weights") == str(trained.run.checkpoints / f"step-{step:08d}")
    assert value(argv, "--config") == str(trained.run.config)


def test_a_file_of_weights_with_a_config(here: Path, started: Any, dist_train: Any) -> None:
    (here / "w.pt").write_bytes(b"")
    words = ["--input", "x.npz:a", "--batch-size", 7, "--processes", 2, "--entry", "ema"]
    assert dist_train("predict", "w.pt", "--config", DIGITS, *words).code == 0
    ((argv, _),) = started
    assert value(argv, "--folder") == str(DIGITS.parent)
    assert [value(argv, name) for name in ("--input", "--batch-size", "--processes", "--entry")] == [
        "x.npz:a",
        "7",
        "2",
        "ema",
    ]


@pytest.mark.parametrize("name", [".metadata", "model.safetensors.index.json"])
def test_a_directory_of_another_tool_is_weights_as_a_file_is(
    here: Path, started: Any, asked: Any, dist_train: Any, name: str
) -> None:
    (here / "theirs").mkdir()
    (here / "theirs" / name).write_bytes(b"")
    assert dist_train("predict", "theirs", "--config", DIGITS).code == 0
    ((argv, _),) = started
    assert value(argv, "--weights") == str(here / "theirs")
    assert dist_train("checkpoint", "export", "theirs", "--out", "m.pt").code == 0
    assert asked == [("export", "theirs", "m.pt")]
    said = dist_train("checkpoint", "export", "theirs", "--out", "m.pt", "--step", 3)
    assert (said.code, "--step and --best choose among checkpoints" in said.err) == (2, True)


def test_gpus_are_given_by_uuid_and_numbered_from_0(
    trained: Any, started: Any, dist_train: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    machine = [
        Gpu(i, f"GPU-{letter}", "H100", used, 80)
        for i, (letter, used) in enumerate(zip("abcd", (9, 5, 9, 9), strict=True))
    ]
    monkeypatch.setattr(gpus, "physical_gpus", lambda: machine)
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    said = dist_train("predict", "a-1", "--gpus", "0,3")
    assert (said.code, "GPU 0 (GPU-a), GPU 3 (GPU-d)" in said.err) == (0, True)
    assert dist_train("predict", "a-1", "--gpus", "auto").code == 0
    (argv, environ), (auto, chosen) = started
    assert environ["CUDA_VISIBLE_DEVICES"] == "GPU-a,GPU-d"
    assert [word for word in argv if word.startswith("cuda")] == ["cuda:0", "cuda:1"]
    assert (chosen["CUDA_VISIBLE_DEVICES"], value(auto, "--device")) == ("GPU-b", "cuda:0")


@pytest.mark.parametrize(
    ("words", "code", "text"),
    [
        (["nothing"], 66, "no run is called 'nothing'"),
        (["a-1", "--step", 5], 66, "there are: 10, 20"),
        (["a-1", "--step", 5, "--best"], 2, "may be two checkpoints"),
        (["w.pt"], 2, "--config CONFIG.yaml"),
        (["w.pt", "--config", DIGITS, "--best"], 2, "choose among checkpoints"),
        (["w.pt", "--config", "none.yaml"], 66, "none.yaml"),
        (["elsewhere"], 2, "lies in no run"),
        (["script-1"], 66, "runs a script or a module"),
        (["a-1", "--gpus", "0"], 78, "--processes N computes on the CPU"),
        (["a-1", "--gpus", "0", "--processes", 2], 2, "contradicts --processes 2"),
        (["a-1", "--batch-size", 0], 2, "--batch-size"),
        (["a-1", "--outptu", "x"], 2, "--output"),
    ],
    ids=lambda value: " ".join(map(str, value))[:40] if isinstance(value, list) else None,
)
def test_what_predict_refuses(
    here: Path,
    trained: Any,
    make_run: Callable[..., Any],
    started: Any,
    dist_train: Any,
    monkeypatch: pytest.MonkeyPatch,
    words: list[object],
    code: int,
    text: str,
) -> None:
    monkeypatch.setattr(gpus, "physical_gpus", list)
    (here / "w.pt").write_bytes(b"")
    write_checkpoint(here / "elsewhere", 3)
    write_checkpoint(make_run("script-1").began().run.checkpoints, 1)
    said = dist_train("predict", *words)
    assert (said.code, said.out, started) == (code, "", [])
    assert text in said.err


def test_an_import_reports_what_it_did(here: Path, asked: Any, dist_train: Any) -> None:
    (here / "old.pth.tar").write_bytes(b"")
    said = dist_train("checkpoint", "import", "old.pth.tar")
    assert said.code == 0
    assert asked == [("import", "old.pth.tar", "old.safetensors")]
    for text in ("entry 'model'", "dropped leading 'module.'", "not used: optimizer", "read back and equal"):
        assert text in said.out
    assert "load_model('old.safetensors', model)" in said.out
    words = ["--out", "weights/", "--entry", "ema", "--keep-names", "--json"]
    assert '"schema_version": 1' in dist_train("checkpoint", "import", "old.pth.tar", *words).out
    assert asked[1][2:] == ("weights/old.safetensors", "--entry", "ema", "--keep-names")


def test_where_an_import_of_a_directory_goes(here: Path, asked: Any, dist_train: Any) -> None:
    (here / "dcp").mkdir()
    (here / "dcp" / ".metadata").write_bytes(b"")
    for source in ("dcp", "dcp/.metadata"):
        assert dist_train("checkpoint", "import", source).code == 0
    assert asked == [("import", "dcp", "dcp.safetensors"), ("import", "dcp/.metadata", "dcp.safetensors")]


def test_an_export_of_a_run_a_step_the_best_a_file(
    here: Path, trained: Any, asked: Any, dist_train: Any
) -> None:
    (here / "w.safetensors").write_bytes(b"")
    for words in (["a-1"], ["a-1", "--step", 20], ["a-1", "--best"], ["w.safetensors"]):
        said = dist_train("checkpoint", "export", *words, "--out", "m.pt")
        assert "torch.load('m.pt', weights_only=True)" in said.out
    said = dist_train("checkpoint", "export", "a-1", "--out", "m.safetensors")
    # load_file would lack one of two tied names.
    assert "safetensors.torch.load_model(model, 'm.safetensors')" in said.out
    asked.pop()
    said = dist_train("checkpoint", "export", "a-1", "--out", "model/", "--max-shard-size", "5GB")
    assert "huggingface_hub.load_torch_model(model, 'model')" in said.out
    assert asked.pop()[2:] == ("model", "--max-shard-bytes", "5000000000")
    kept = trained.run.checkpoints
    chosen = [kept, kept / "step-00000020", kept / "step-00000010", Path("w.safetensors")]
    assert asked == [("export", str(path), "m.pt") for path in chosen]


@pytest.mark.parametrize(
    ("words", "code", "text"),
    [
        (["import", "none.pt"], 66, "no file or checkpoint none.pt"),
        (["import", "w.pt", "--out", "w.bin"], 2, "one *.safetensors file"),
        (["export", "a-1"], 2, "--out"),
        (["export", "a-1", "--out", "model"], 2, "does not say which format"),
        (["export", "a-1", "--out", "model"], 2, "add --max-shard-size 5GB"),
        (["export", "a-1", "--out", "m.safetensors", "--max-shard-size", "5GB"], 2, "hint:  --out m\n"),
        (["export", "a-1", "--out", "m", "--max-shard-size", "5"], 2, "'5': expected a number with KB"),
        (["export", "w.pt", "--out", "m.pt", "--best"], 2, "choose among checkpoints"),
        (["export", "a-2", "--out", "m.pt"], 66, "did you mean 'a-1'"),
    ],
    ids=lambda value: " ".join(map(str, value))[:40] if isinstance(value, list) else None,
)
def test_what_import_and_export_refuse(
    here: Path, trained: Any, asked: Any, dist_train: Any, words: list[object], code: int, text: str
) -> None:
    (here / "w.pt").write_bytes(b"")
    said = dist_train("checkpoint", *words)
    assert (said.code, said.out, asked) == (code, "", [])
    assert text in said.err


def test_weights_with_the_config_of_a_run_find_that_run_s_own_modules(
    here: Path, trained: Any, started: Any, dist_train: Any
) -> None:
    (here / "w.pt").write_bytes(b"")
    assert dist_train("predict", "w.pt", "--config", "a-1").code == 0
    ((argv, _),) = started
    assert value(argv, "--config") == str(trained.run.config)
    assert value(argv, "--folder") == str(trained.spec.target.folder)


def test_a_conversion_killed_by_the_system_is_no_internal_error(
    here: Path, dist_train: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    (here / "w.pt").write_bytes(b"")
    # In place of a process that is too large for this machine.
    monkeypatch.setattr(checkpoint_process.sys, "executable", str(here / "killed"))
    (here / "killed").write_text("#!/bin/sh\nkill -9 $$\n")
    (here / "killed").chmod(0o700)
    said = dist_train("checkpoint", "import", "w.pt")
    assert (said.code, "ended by signal 9" in said.err) == (69, True)


STUBBORN = """
import os, signal, time
signal.signal(signal.SIGINT, signal.SIG_IGN)
open(f".out.npy.{os.getpid()}.tmp", "x").close()
time.sleep(60)
"""


def test_a_prediction_that_does_not_end_by_ctrl_c_leaves_no_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(predict_verb, "_LEAVE_S", 0.1)

    def interrupt() -> None:
        while not list(tmp_path.glob(".out.npy.*")):
            time.sleep(0.01)  # nothing tells that a file is there but a look; pytest's time-out bounds it
        os.kill(os.getpid(), signal.SIGINT)

    threading.Thread(target=interrupt, daemon=True).start()
    assert predict_verb._run([sys.executable, "-c", STUBBORN], dict(os.environ), "out.npy") == 130
    assert not list(tmp_path.iterdir())
