"""How one layer is cut over the ranks of a tensor group."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Literal

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field

from dist_train.strategies.base import StrategyOptions

StyleName = Literal["colwise", "rowwise", "fused_colwise", "colwise_gathered", "embedding"]

# Of transformers' plans (`_tp_plan`): names for the same.
_OTHER_NAMES = {"colwise_rep": "colwise_gathered", "colwise_gather_output": "colwise_gathered"}


class LayerStyle(BaseModel):
    """How one layer is cut.

    `colwise`: a Linear's outputs are cut, so that the layer after it gets this rank's features alone.
    `fused_colwise`: the same for several layers in one weight (query, key and value): each is cut by itself.
    `rowwise`: a Linear's inputs are cut, as a colwise layer before it leaves them; its outputs are added up.
    `colwise_gathered`: colwise, and every rank gets all outputs. `embedding`: the rows of an Embedding are
    cut; every rank gets the whole vectors.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    style: StyleName
    parts: int = Field(1, ge=1, description="layers in one weight, of equally many outputs: fused_colwise")
    block: int = Field(1, ge=1, description="outputs that stay on one rank together: size of a head")


def as_style(value: Any) -> Any:
    """What pydantic takes for a style that was written as `colwise` or `fused_colwise:3`."""
    if not isinstance(value, str):
        return value
    name, _, parts = value.partition(":")
    name = _OTHER_NAMES.get(name, name)
    return {"style": name, **({"parts": parts} if parts else {})}


WrittenStyle = Annotated[LayerStyle, BeforeValidator(as_style)]
Plan = Mapping[str, LayerStyle]


class PlanOptions(StrategyOptions):
    """Which layers are cut, and how."""

    plan: dict[str, WrittenStyle] | None = Field(
        None,
        description="patterns of module names (blocks.*.up) -> colwise, rowwise, fused_colwise:3, "
        "colwise_gathered or embedding; None: the model's own plan",
    )
