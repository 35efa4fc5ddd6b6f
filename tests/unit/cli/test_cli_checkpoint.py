"""`checkpoint list|verify|show` on checkpoints made byte by byte, without torch."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import IO, Any, Self

import pytest
from warm_commands.forked_command import ForkedChild

from dist_train.checkpoint import __main__ as reader
from dist_train.checkpoint.format.blocks import BLOCK_BYTES, hash_bytes
from dist_train.checkpoint.format.canonical_json import dump_canonical
from dist_train.checkpoint.format.manifest import FileEntry, Manifest
from dist_train.checkpoint.format.tensor_entries import Shard, TensorEntry
from dist_train.cli.run import checkpoint_process
from dist_train.config import dump_config, load_config

DIGITS = Path(__file__).parents[3] / "examples" / "digits.yaml"


class ForkedReader(ForkedChild):
    """`python -P -m dist_train.checkpoint` as a fork of this process, which has imported it.

    Its start took 0.26 s of CPU, of which the imports are all.
    """

    def __init__(self, command: Sequence[str], stdout: int, stderr: IO[str], text: bool) -> None:
        assert (*command[:4], stdout, text) == (
            *(sys.executable, "-P", "-m", "dist_train.checkpoint"),
            *(subprocess.PIPE, True),
        )
        ours, theirs = os.pipe()
        pid = os.fork()
        if pid == 0:
            os.dup2(theirs, 1)
            os.dup2(stderr.fileno(), 2)
            sys.stdout, sys.stderr = open(1, "w", closefd=False), open(2, "w", closefd=False)  # noqa: SIM115
            code = 1
            try:
                code = reader.main(command[4:])
                sys.stdout.flush()
                sys.stderr.flush()
            finally:
                os._exit(code)
        os.close(theirs)
        super().__init__(pid)
        self.stdout = open(ours)  # noqa: SIM115

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.stdout.close()
        self.wait()


@pytest.fixture
def new_interpreter() -> None:
    """The reader is started as users have it."""


@pytest.fixture(autouse=True)
def _forked_reader(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    if "new_interpreter" not in request.fixturenames:
        names = {name: getattr(subprocess, name) for name in ("PIPE", "TimeoutExpired")}
        monkeypatch.setattr(checkpoint_process, "subprocess", SimpleNamespace(Popen=ForkedReader, **names))


def write_checkpoint(
    folder: Path, step: int, score: float | None = None, non_finite: tuple[str, ...] = ()
) -> Path:
    """Two and a half blocks of data, state.json, the manifest last."""
    path = folder / f"step-{step:08d}"
    path.mkdir(parents=True)
    reserved: dict[str, Any] = {} if score is None else {"score": score}
    if non_finite:
        reserved["non_finite"] = list(non_finite)
    state = {"reserved": reserved} if reserved else {}
    contents = {
        "tensors.safetensors": bytes(range(256)) * (BLOCK_BYTES // 100),
        "state.json": dump_canonical(state),
    }
    for name, raw in contents.items():
        (path / name).write_bytes(raw)
    tensor = TensorEntry(
        dtype="float32", shape=[2, 3], shards=[Shard(file="tensors.safetensors", offset=[0, 0], shape=[2, 3])]
    )
    manifest = Manifest(
        run_id="a-1-id",
        attempt=0,
        step=step,
        epoch=step // 10,
        samples_in_epoch=64,
        samples_total=64 * step,
        world_size=4,
        mesh=(("replicate", 4),),
        data_size=4,
        strategy="ddp",
        created_at="2026-01-02T03:04:05Z",
        tensors={"model/fc.weight": tensor},
        aliases={},
        files=[
            FileEntry(name=name, bytes=len(raw), xxh3_128=hash_bytes(raw)) for name, raw in contents.items()
        ],
        data={"n": 1437, "seed": 0},
        config_xxh3="0" * 32,
        determinism={"torch": "2.13.0"},
        weights_hash="1" * 32,
        state_hash="2" * 32,
    )
    (path / "manifest.json").write_bytes(manifest.sealed().to_bytes())
    return path


def flip(path: Path, offset: int) -> None:
    raw = bytearray(path.read_bytes())
    raw[offset] ^= 1
    path.write_bytes(raw)


@pytest.fixture
def kept(make_run: Callable[..., Any]) -> Any:
    """A run of the digits config, with three checkpoints whose scores are accuracies."""
    made = make_run("a-1").began()
    for step, score in ((10, 0.91), (20, 0.97), (30, 0.95)):
        write_checkpoint(made.run.checkpoints, step, score)
    made.run.config.write_text(dump_config(load_config(DIGITS).config))
    return made


def test_list_marks_the_best(kept: Any, dist_train: Any, new_interpreter: None) -> None:
    said = dist_train("checkpoint", "list")
    assert said.code == 0
    rows = [line.split() for line in said.out.splitlines()]
    assert rows[0][:4] == ["STEP", "EPOCH", "SIZE", "AGE"]
    assert [row[0] for row in rows[1:]] == ["10", "20", "30"]
    assert [row[-1] for row in rows[1:]] == ["0.91", "best", "0.95"]


def test_list_as_json(kept: Any, dist_train: Any) -> None:
    found = json.loads(dist_train("checkpoint", "list", "a-1", "--json").out)
    assert found["schema_version"] == 1
    assert [one["best"] for one in found["checkpoints"]] == [False, True, False]
    assert found["checkpoints"][0] | {"step": 10, "score": 0.91, "world_size": 4} == found["checkpoints"][0]


def test_list_and_verify_mark_what_is_not_finite(kept: Any, dist_train: Any) -> None:
    keys = ("model/fc.weight", "model/fc.bias", "optim/fc.weight/exp_avg", "optim/fc.bias/exp_avg")
    write_checkpoint(kept.run.checkpoints, 40, 0.99, keys[:1])
    write_checkpoint(kept.run.checkpoints, 50, 0.1, keys)
    rows = dist_train("checkpoint", "list").out.splitlines()
    assert not any("not finite" in row for row in rows[:4])
    assert rows[4].endswith("  best; not finite: model/fc.weight")
    assert rows[5].endswith("  not finite: model/fc.weight, model/fc.bias and 2 more")
    found = json.loads(dist_train("checkpoint", "list", "--json").out)["checkpoints"]
    assert [one["non_finite"] for one in found] == [[], [], [], [*keys[:1]], [*keys]]

    said = dist_train("checkpoint", "verify")
    assert (said.code, said.out.count("whole")) == (0, 5)
    assert [line.partition("  not finite: ")[2] for line in said.out.splitlines()[2:]] == [
        "",
        "model/fc.weight",
        "model/fc.weight, model/fc.bias and 2 more",
    ]
    verified = json.loads(dist_train("checkpoint", "verify", "--json").out)
    assert verified["ok"] is True
    assert [one["non_finite"] for one in verified["checkpoints"]][3:] == [[*keys[:1]], [*keys]]
    shown = json.loads(dist_train("checkpoint", "show", "--json").out)
    assert shown["non_finite"] == [*keys]
    shard = {"file": "tensors.safetensors", "offset": [0, 0], "shape": [2, 3]}
    assert shown["manifest"]["tensors"] == {
        "model/fc.weight": {"dtype": "float32", "shape": [2, 3], "shards": [shard]}
    }


def test_nothing_is_said_of_the_values_of_a_damaged_checkpoint(kept: Any, dist_train: Any) -> None:
    damaged = write_checkpoint(kept.run.checkpoints, 40, 0.99, ("model/fc.weight",))
    flip(damaged / "tensors.safetensors", 17)
    (one,) = json.loads(dist_train("checkpoint", "verify", damaged, "--json").out)["checkpoints"]
    assert (bool(one["problems"]), one["non_finite"]) == (True, None)


def test_list_has_a_word_for_what_was_moved_aside(kept: Any, dist_train: Any) -> None:
    assert "quarantine" not in dist_train("checkpoint", "list").out
    aside = kept.run.checkpoints / "quarantine"
    for name in ("step-00000040-1", "step-00000030-1"):
        (aside / name).mkdir(parents=True)
    last = dist_train("checkpoint", "list").out.splitlines()[-1]
    assert last.startswith("quarantine/ holds 2 more that nothing resumes from")
    assert last.endswith("step-00000030-1, step-00000040-1")
    found = json.loads(dist_train("checkpoint", "list", "a-1", "--json").out)
    assert found["quarantine"] == ["step-00000030-1", "step-00000040-1"]


def test_whole_checkpoints_verify(kept: Any, dist_train: Any, new_interpreter: None) -> None:
    said = dist_train("checkpoint", "verify", "a-1")
    assert (said.code, said.err) == (0, "")
    assert said.out.count("whole") == 3
    assert json.loads(dist_train("checkpoint", "verify", "--json").out)["ok"] is True


def test_a_flipped_bit_is_named_with_file_and_block(kept: Any, dist_train: Any) -> None:
    damaged = kept.run.checkpoints / "step-00000020"
    flip(damaged / "tensors.safetensors", BLOCK_BYTES + 17)
    said = dist_train("checkpoint", "verify", "a-1")
    assert said.code == 78
    assert "step-00000020  DAMAGED  tensors.safetensors: block 1 " in said.out
    assert said.out.count("whole") == 2
    assert "1 of 3 checkpoints are damaged" in said.err
    single = dist_train("checkpoint", "verify", damaged, "--json")
    found = json.loads(single.out)
    assert (single.code, found["ok"], len(found["checkpoints"])) == (78, False, 1)
    assert dist_train("checkpoint", "verify", kept.run.checkpoints / "step-00000010").code == 0


@pytest.mark.parametrize(
    ("damage", "text"),
    [
        (lambda path: flip(path / "manifest.json", 40), "manifest.json"),
        (lambda path: (path / "manifest.json").unlink(), "there is no manifest.json"),
        (lambda path: (path / "state.json").unlink(), "state.json is missing"),
        (lambda path: (path / "stray").write_text(""), "stray is not listed"),
        (lambda path: (path / "state.json").write_bytes(b""), "state.json"),
    ],
)
def test_every_kind_of_damage_is_78(
    kept: Any, dist_train: Any, damage: Callable[[Path], None], text: str
) -> None:
    path = kept.run.checkpoints / "step-00000030"
    damage(path)
    said = dist_train("checkpoint", "verify", path)
    assert said.code == 78
    assert text in said.out
    assert "cannot be used" in dist_train("checkpoint", "list").out or text == "state.json"


def test_show_summarises_and_json_is_whole(kept: Any, dist_train: Any) -> None:
    said = dist_train("checkpoint", "show", "a-1")
    assert said.code == 0
    for text in (
        "30 (epoch 4, 64 samples into it, 1920 samples in all)",
        "4, strategy ddp",
        "n 1437, seed 0",
        "model/fc.weight  float32  2x3",
        "1" * 32,
    ):
        assert text in said.out
    found = json.loads(dist_train("checkpoint", "show", "--step", 20, "--json").out)
    assert (found["schema_version"], found["manifest"]["step"], found["score"]) == (1, 20, 0.97)


def test_show_refuses_a_damaged_manifest(kept: Any, dist_train: Any, new_interpreter: None) -> None:
    flip(kept.run.checkpoints / "step-00000030" / "manifest.json", 40)
    said = dist_train("checkpoint", "show")
    assert said.code == 78
    assert "manifest.json" in said.err


def test_what_is_not_there_is_66(make_run: Callable[..., Any], dist_train: Any) -> None:
    made = make_run("a-1")
    for words in (["list"], ["verify"], ["show"], ["verify", "a-1"], ["show", "a-1", "--step", "4"]):
        said = dist_train("checkpoint", *words)
        assert (said.code, said.out) == (66, "")
        assert "there is no checkpoint" in said.err
    write_checkpoint(made.run.checkpoints, 7)
    said = dist_train("checkpoint", "show", "--step", 8)
    assert said.code == 66
    assert "there are: 7" in said.err


def test_a_folder_of_checkpoints_needs_no_run(here: Path, dist_train: Any) -> None:
    write_checkpoint(here / "elsewhere", 3)
    assert dist_train("checkpoint", "verify", "elsewhere").code == 0
    assert dist_train("checkpoint", "list", "elsewhere").out.splitlines()[1].split()[0] == "3"
    assert dist_train("checkpoint", "show", "elsewhere/step-00000003").code == 0


def test_reading_checkpoints_loads_no_torch(kept: Any, new_interpreter: None) -> None:
    script = (
        "import sys; from dist_train.checkpoint.__main__ import main; "
        f"assert main(['verify', {str(kept.run.checkpoints)!r}]) == 0; assert 'torch' not in sys.modules"
    )
    done = subprocess.run([sys.executable, "-P", "-c", script], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
