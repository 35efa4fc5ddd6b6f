"""Bad configs as tables: the text, the overrides, the exit code, and parts of the message."""

from __future__ import annotations

from pathlib import Path

import pytest

from dist_train.config import load_config, load_text
from dist_train.errors import ConfigError, DistTrainError, NotFoundError, UsageError

GOOD = """\
model: my_model:Net
data:
  train: my_data:Train
  batch_size: 8
loss: mse
optimizer: sgd
trainer:
  epochs: 2
"""
# (added to GOOD, parts of the message)
ADDED = [
    ("trainr: {}\n", ["x.yaml:9", "unknown key `trainr`", "did you mean `trainer`?"]),
    ("epochs: 3\n", ["unknown key `epochs`", "did you mean `trainer.epochs`?"]),
    ("logging:\n  lvl: info\n", ["x.yaml:10", "unknown key `logging.lvl`", "`logging.level`"]),
    ("logging:\n  zzz: 1\n", ["unknown key `logging.zzz`", "choose one of: level, sinks"]),
    ("seed: 1\nseed: 2\n", ["x.yaml:10", "`seed` is given twice", "line 9", "keep one"]),
    ("seed: -1\n", ["x.yaml:9", "`seed`", "at least 0", "got -1"]),
    ("seed: ten\n", ["x.yaml:9", "`seed`", "a whole number", 'got "ten"']),
    ('seed: "10"\n', ["`seed`", "a whole number", "drop the quotes"]),
    ("seed: 1e3\n", ["`seed`", "a whole number", "got 1000.0", "write 1000"]),
    ("seed: true\n", ["`seed`", "a whole number", "got true"]),
    ("seed: 010\n", ["x.yaml:9", "010 as an octal number", "leading zero"]),
    ("name: 7\n", ["`name`", "text", "got 7", "quote it"]),
    ("name: no\n", ["`name`", "text", "got false", "quote it"]),
    ("launch:\n  time: 4:00:00\n", ["x.yaml:10", "`launch.time`", "as 14400", 'quote it: "4:00:00"']),
    ("launch:\n  nodes: 0\n", ["x.yaml:10", "`launch.nodes`", "at least 1", "got 0"]),
    ("launch:\n  env:\n    OMP: 1\n", ["x.yaml:11", "`launch.env.OMP`", "text", "quote it"]),
    ("launch:\n  env:\n    HF_TOKEN: abc\n", ["HF_TOKEN", "--secret HF_TOKEN"]),
    ("launch:\n  env:\n    A-B: x\n", ["'A-B'", "environment variable"]),
    ("launch:\n  init_method: tcp://host\n", ["`launch.init_method`", "tcp://HOST:PORT", "tcp://host"]),
    ("launch:\n  restart_on: crsh\n", ["`launch.restart_on`", "'crash' or 'any'", "did you mean `crash`?"]),
    ("launch:\n", ["x.yaml:9", "`launch`", "got null", "remove its key"]),
    ("strategy: 3\n", ["`strategy`", "a mapping of name, options", "got 3"]),
    (
        "schedule: {target: cosine, final: 0.1}\n",
        ["`schedule.final`", "below `args`", "`schedule.args.final`"],
    ),
    ("schedule: {args: {}}\n", ["`schedule.target` is missing", "package.module:Name"]),
    ('schedule: "a b:C"\n', ["`schedule.target`", '"package.module:Name"', '"a b:C"']),
    ("schedule: 3\n", ["`schedule`", '"package.module:Name" or a mapping', "got 3"]),
    ("metrics: accuracy\n", ["`metrics`", "a list", 'got "accuracy"']),
    ("metrics:\n  - accuracy\n  - 3\n", ["x.yaml:11", "`metrics.1`", "got 3"]),
    ("task: my_task:Task\n", ["x.yaml:5", "`loss`", "only one of `loss` and `task`"]),
    ("checkpoint:\n  keep_last: 1\n", ["`checkpoint.keep_last`", "at least 2", "got 1"]),
    ("checkpoint:\n  every_steps: 7\n  every_epochs: 1\n", ["every_steps", "every_epochs", "7 and 1"]),
    ("checkpoint:\n  every_epochs: null\n", ["`checkpoint.every_epochs`", "neither"]),
    ("checkpoint:\n  keep_best:\n    metric: accuracy\n", ["x.yaml:10", "accuracy", "mode: max"]),
    ("deterministic: world_size_invariant\n", ["x.yaml:9", "not built yet", "same_world_size"]),
    ("resilience:\n  grace_s: .inf\n", ["`resilience.grace_s`", "a finite number"]),
    ("seed: !!python/name:os.system x\n", ["x.yaml:9", "`seed`", "no meaning in a config"]),
    ("seed: !!int abc\n", ["`seed`", "'abc' cannot be read as int"]),
    ('name: "\\ud83d"\n', ["x.yaml:9", "`name`", "half a character"]),
    ("on: 1\n", ["x.yaml:9", "the key on is not text", 'quote it: "on"']),
    ("launch:\n  slurm: &a\n    b: *a\n", ["x.yaml", "contains itself"]),
]
# (whole text, parts of the message)
WHOLE = [
    ("", ["x.yaml is empty", "examples/digits.yaml"]),
    ("# nothing\n", ["x.yaml is empty"]),
    ("- a\n- b\n", ["a config is a mapping", '["a", "b"]']),
    ("just words\n", ["a config is a mapping", '"just words"']),
    ("model: [a, b\nseed: 1\n", ["x.yaml:2:5", "seed: 1", "^"]),
    ("model: a: b\n", ["x.yaml:1:9", "model: a: b", "quote a value"]),
    ("data:\n\tbatch_size: 3\n", ["x.yaml:2:1", "no tabs"]),
    ("a: 1\n---\nb: 2\n", ["x.yaml:2:1", "one document"]),
    ("a: \x00\n", ["x.yaml:1", "U+0000"]),
    ("a: *nobody\n", ["x.yaml:1:4", "undefined alias"]),
    ("[" * 3000, ["x.yaml", "nested too deeply"]),
    (GOOD.replace("  epochs: 2", "  accumulate: 1"), ["`trainer.steps`", "exactly one", "neither"]),
    (GOOD + "  steps: 5\n", ["x.yaml:9", "exactly one", "both are given (2 and 5)"]),
    (GOOD.replace("loss: mse\n", ""), ["`loss`", "`task`"]),
    (GOOD.replace("  batch_size: 8\n", ""), ["x.yaml:2", "`data.batch_size` is missing", "WHOLE job"]),
    (GOOD.replace("batch_size: 8", "batch_size: 0"), ["x.yaml:4", "`data.batch_size`", "at least 1"]),
]
# (overrides, exit code, parts of the message)
OVERRIDES = [
    (
        ["trainer.epoch=3"],
        78,
        ["override trainer.epoch=3", "unknown key `trainer.epoch`", "`trainer.epochs`"],
    ),
    (["optim.lr=3"], 78, ["unknown key `optim`", "did you mean `optimizer`?"]),
    (["optimizer.lr=3"], 78, ["unknown key `optimizer.lr`", "`optimizer.args.lr`"]),
    (["trainer.epochs=many"], 78, ["override trainer.epochs=many", "a whole number", '"many"']),
    (["seed.x=1", "seed=3"], 78, ["`seed.x` cannot be set", "`seed` is 3"]),
    (["metrics.2.args.k=1", "metrics=[accuracy]"], 78, ["`metrics.2.args.k`", "a list of 1"]),
    (["launch.time=4:00:00"], 78, ["14400", """'launch.time="4:00:00"'"""]),
    (["seed=07"], 78, ["`seed`", "octal", "drop the leading zero"]),
    (["seed=1", "seed=2"], 2, ["`seed` is given twice", "1 and 2"]),
    (["model=a:B", "model.target=c:D"], 2, ["`model.target` is given twice", '"a:B"', '"c:D"']),
    (["seed=1", "seed=true"], 2, ["`seed` is given twice", "1 and true"]),
    (["seed"], 2, ["'seed' is not an override", "key.inner=value"]),
    (["=3"], 2, ["is not an override"]),
    (["a..b=3"], 2, ["is not an override"]),
    (["seed="], 2, ["'seed='", "has no value", "seed=null"]),
    (["name=[1, 2"], 2, ["override name=[1, 2", """'name="[1, 2"'"""]),
]


def refusal(text: str, overrides: list[str] | None = None) -> DistTrainError:
    with pytest.raises(DistTrainError) as caught:
        load_text(text, "x.yaml", overrides or [])
    return caught.value


@pytest.mark.parametrize(("added", "parts"), ADDED, ids=[added for added, _ in ADDED])
def test_a_bad_line_is_reported_with_its_line_number_and_a_hint(added: str, parts: list[str]) -> None:
    load_text(GOOD, "x.yaml")
    error = refusal(GOOD + added)
    assert isinstance(error, ConfigError)
    assert [part for part in parts if part not in str(error)] == []
    assert "problems" not in str(error)  # one mistake, one problem


@pytest.mark.parametrize(("text", "parts"), WHOLE, ids=[repr(text[:30]) for text, _ in WHOLE])
def test_a_bad_file_is_named(text: str, parts: list[str]) -> None:
    error = refusal(text)
    assert error.exit_code == 78
    assert [part for part in parts if part not in str(error)] == []


@pytest.mark.parametrize(
    ("overrides", "code", "parts"), OVERRIDES, ids=[" ".join(o) for o, _, _ in OVERRIDES]
)
def test_a_bad_override_is_named(overrides: list[str], code: int, parts: list[str]) -> None:
    error = refusal(GOOD, overrides)
    assert error.exit_code == code
    assert isinstance(error, UsageError if code == 2 else ConfigError)
    assert [part for part in parts if part not in str(error)] == []


def test_all_problems_are_reported_at_once() -> None:
    text = GOOD.replace("loss: mse\n", "").replace("epochs: 2", "epoch: 2")
    text += "seed: ten\nseed: 3\ndeterministic: world_size_invariant\nlaunch:\n  time: 1:30:00\n"
    message = str(refusal(text, ["data.batch_size=0"]))
    assert "x.yaml: 8 problems" in message
    for part in (
        "`seed` is given twice",
        "`launch.time`",
        "`data.batch_size`: expected at least 1, got 0",
        "`trainer.epoch`",
        "exactly one of trainer.epochs and trainer.steps",
        "say `loss`",
        "`seed`: expected a whole number",
        "not built yet",
    ):
        assert part in message


def test_a_flag_is_named_when_its_value_is_wrong() -> None:
    with pytest.raises(ConfigError, match=r"flag --nodes 0: `launch.nodes`: expected at least 1, got 0"):
        load_text(GOOD, "x.yaml", flags={"launch.nodes": (0, "--nodes 0")})


def test_a_missing_file_names_the_nearest_one(tmp_path: Path) -> None:
    (tmp_path / "digits.yaml").write_text(GOOD)
    with pytest.raises(
        NotFoundError, match=r"no such file: .*digts.yaml(.|\n)*did you mean .*digits.yaml"
    ) as caught:
        load_config(tmp_path / "digts.yaml")
    assert caught.value.exit_code == 66
    with pytest.raises(NotFoundError, match=r"in that folder: digits.yaml"):
        load_config(tmp_path / "zzzzzzzz")
    with pytest.raises(NotFoundError, match="there is no folder"):
        load_config(tmp_path / "nowhere" / "a.yaml")
    with pytest.raises(NotFoundError, match="there is no folder"):
        load_config(tmp_path / "digits.yaml" / "a.yaml")


def test_a_folder_or_binary_file_is_no_config(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="is a folder"):
        load_config(tmp_path)
    (tmp_path / "b.yaml").write_bytes(b"seed: \xff\xfe")
    with pytest.raises(ConfigError, match=r"not UTF-8 text \(byte 6\)"):
        load_config(tmp_path / "b.yaml")


def test_anchors_that_multiply_are_refused() -> None:
    bomb = "a0: &a0 [x,x,x,x,x,x,x,x,x,x]\n"
    bomb += "".join(f"a{i}: &a{i} [{','.join([f'*a{i - 1}'] * 10)}]\n" for i in range(1, 9))
    with pytest.raises(ConfigError, match="more than 100000 values"):
        load_text(bomb, "x.yaml")
