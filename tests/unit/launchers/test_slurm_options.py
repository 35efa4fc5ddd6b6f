"""Options of the Slurm launcher: what is refused before anything is rendered, and why."""

from __future__ import annotations

import pytest
from pydantic import ValidationError

from launchers._slurm.slurm_options import Options


def refusal(**given: object) -> str:
    with pytest.raises(ValidationError) as caught:
        Options(**given)  # type: ignore[arg-type]
    return str(caught.value)


def test_nothing_is_requested_unless_it_is_given() -> None:
    options = Options()
    assert (options.gpu_request, options.requeue) == ("gpus-per-node", "yes")
    asked = options.model_dump(exclude={"gpu_request", "requeue"})
    assert not any(asked.values())


@pytest.mark.parametrize(
    ("word", "name", "value"),
    [
        ("nodelist=n[1-2]", "nodelist", "n[1-2]"),
        ("--mail-type=END", "mail-type", "END"),
        ("comment=a=b c", "comment", "a=b c"),
        ("exclusive", "exclusive", True),
        ("begin=", "begin", ""),
    ],
)
def test_any_other_option_of_sbatch(word: str, name: str, value: str | bool) -> None:
    assert Options(sbatch_arg=(word,)).sbatch_arguments == {name: value}


@pytest.mark.parametrize(
    ("word", "instead"),
    [
        ("nodes=3", "nodes is set by --nodes"),
        ("--time=10", "time is set by --time"),
        ("gres=gpu:4", "--gpu-request gres"),
        ("gres=nvme:1,gpu:a100:2", "--gpu-request gres"),
        ("gres=gres/gpu=2", "--gpu-request gres"),
        ("no-requeue", "no-requeue is set by --requeue no"),
        ("output=x", "--run-dir"),
        ("export=ALL", "--env and --secret"),
        ("array=0-3", "one job is one run"),
        ("wrap=date", "wrap is set by nothing"),
    ],
)
def test_what_dist_train_renders_itself_names_the_option_that_sets_it(word: str, instead: str) -> None:
    assert instead in refusal(sbatch_arg=(word,))


@pytest.mark.parametrize("word", ["-w n1", "-p", "Nodelist=n1", "", "=x", "a b=c", "comment=a\nrm -rf ~"])
def test_what_is_no_long_option_of_sbatch(word: str) -> None:
    assert "is not of the form option=value" in refusal(sbatch_arg=(word,))


def test_the_same_option_twice() -> None:
    words = ("nodelist=n1", "nodelist=n2")
    assert "nodelist is given twice: nodelist=n1 and nodelist=n2" in refusal(sbatch_arg=words)
    assert Options(sbatch_arg=("nodelist=n1", "nodelist=n1")).sbatch_arguments == {"nodelist": "n1"}


@pytest.mark.parametrize(
    "name",
    ["partition", "account", "qos", "constraint", "exclude", "reservation", "clusters", "gpu_type"],
)
@pytest.mark.parametrize("value", ["a b", "a\n#SBATCH --uid=0", "$(date)", "'", "`x`", "a#b"])
def test_no_name_of_slurm_holds_such_characters(name: str, value: str) -> None:
    assert "no name in Slurm has" in refusal(**{name: value})


@pytest.mark.parametrize("value", ["[rack1|rack2]*2", "a100&ib", "gpu(x2)", "n[1-3,7]", "long,short"])
def test_the_grammar_of_constraints_and_lists_is_slurms(value: str) -> None:
    assert Options(constraint=value).constraint == value


@pytest.mark.parametrize("name", ["partition", "python"])
def test_an_empty_value_is_no_value(name: str) -> None:
    assert "at least 1 character" in refusal(**{name: ""})


@pytest.mark.parametrize("name", ["gpu_request", "requeue"])
def test_a_choice_is_one_of_its_words(name: str) -> None:
    assert "Input should be" in refusal(**{name: "maybe"})


def test_an_unknown_option_is_refused() -> None:
    assert "Extra inputs are not permitted" in refusal(partitoin="gpu")


def test_the_prefix_is_words_as_a_shell_splits_them() -> None:
    by_line = Options(exec_prefix="apptainer exec --bind '/my data' image.sif")  # type: ignore[arg-type]
    in_config = Options(exec_prefix=("apptainer", "exec", "--bind", "/my data", "image.sif"))
    assert by_line == in_config
    assert "No closing quotation" in refusal(exec_prefix="apptainer 'image")


@pytest.mark.parametrize(
    "line", ["trap cleanup TERM", "trap 'rm x' EXIT SIGTERM", "  trap '' USR1 TERM INT # all"]
)
def test_a_setup_line_that_traps_term_is_refused(line: str) -> None:
    assert "a cancelled job would be requeued" in refusal(setup=("module load cuda", line))


@pytest.mark.parametrize("line", ["exec bash", " exit 0", "exit"])
def test_a_setup_line_that_ends_the_script_is_refused(line: str) -> None:
    assert "would end the script before the step" in refusal(setup=(line,))


@pytest.mark.parametrize(
    "line", ["module load cuda/12", "trap 'rm -r x' EXIT", "export TERM=dumb", "exits=1"]
)
def test_other_setup_lines_are_kept(line: str) -> None:
    assert Options(setup=(line,)).setup == (line,)


def test_what_a_job_record_keeps_gives_the_same_options_to_a_resume() -> None:
    options = Options(
        partition="gpu", sbatch_arg=("exclusive",), exec_prefix=("srun-wrap",), setup=("a", "b")
    )
    assert Options(**options.model_dump(mode="json")) == options
