"""Options of a launcher as --help shows them, without and with its options model."""

from __future__ import annotations

import pytest
from pydantic import BaseModel, Field

from dist_train import registry
from dist_train.jobs.launcher import OptionRow, load_launcher, rows_of_model


@pytest.mark.parametrize("name", ["kubernetes", "local", "slurm"])
def test_a_table_has_the_options_of_the_model_in_its_order(name: str) -> None:
    table = registry.companion("launchers", name, "option_rows")
    assert table is not None
    assert list(table.OPTION_ROWS.items()) == list(rows_of_model(load_launcher(name).Options).items())


def test_a_model_without_a_table_gives_the_same_rows() -> None:
    class Options(BaseModel):
        queue: str | None = OptionRow("The queue.", metavar="QUEUE", flags=("-q", "--queue")).field()
        size: int = Field(default=1, description="The size.", json_schema_extra={"metavar": "N"})
        source: str = Field(default="", json_schema_extra={"flags": False})
        plain: str = ""

    assert rows_of_model(Options) == {
        "queue": OptionRow("The queue.", "QUEUE", ("-q", "--queue")),
        "size": OptionRow("The size.", "N"),
        "plain": OptionRow(""),
    }
    assert Options().queue is None
