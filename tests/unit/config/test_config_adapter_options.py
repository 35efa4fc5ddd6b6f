"""What is said of an adapter's option that its own check refuses."""

from __future__ import annotations

import pytest
from pydantic import BaseModel, field_validator

from dist_train.config.adapter_options import check_options
from dist_train.errors import ConfigError


class _Sink:
    class Options(BaseModel):
        every: int = 1

        @field_validator("every")
        @classmethod
        def _is_odd(cls, value: int) -> int:
            if value % 2 == 0:
                raise ValueError("expected an odd number, as in ISO 1")
            return value


def test_the_words_are_those_of_the_adapter() -> None:
    with pytest.raises(
        ConfigError, match=r"option every=2 of the sink a: expected an odd number, as in ISO 1$"
    ):
        check_options("the sink a", _Sink, {"every": 2})
    with pytest.raises(ConfigError, match="of the sink a: input should be a valid integer"):
        check_options("the sink a", _Sink, {"every": "x"})
