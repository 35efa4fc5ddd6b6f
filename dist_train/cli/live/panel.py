"""A sight as the panel's lines: as many as the width needs, none wider."""

from __future__ import annotations

import io
import time
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from dist_train.cli.live.sight import Sight
from dist_train.cli.table import age
from dist_train.rundir import telling
from dist_train.rundir.amounts import clock

if TYPE_CHECKING:
    from rich.text import Text

_GAP = "  "
_LEAST_BAR = 8
_MOST_BAR = 60


class Panel:
    """Paints the newest sight.

    Args:
        encoding: of the terminal: a bar of plain characters where it has no others.
    """

    def __init__(self, encoding: str = "utf-8", colour: bool = True) -> None:
        self._encoding = encoding
        self._colour = colour

    def lines(self, sight: Sight, columns: int, now: float | None = None) -> list[str]:
        """The panel for a terminal of this width, with escape codes for colours alone.

        Args:
            now: by the monotonic clock; None is now.
        """
        from rich.text import Text

        since = (time.monotonic() if now is None else now) - sight.at_s
        width = max(20, columns - 1)
        texts = self._head(sight, since, width)
        texts += packed([[Text.assemble(*cell) for cell in group] for group in _groups(sight, since)], width)
        return self._rendered([text for text in texts if text], width)

    def _head(self, sight: Sight, since: float, width: int) -> list[Text]:
        """Name, place, bar and ETA: one line, or two where they do not fit."""
        from rich.text import Text

        left = Text(sight.name, style="bold")
        if sight.phase != "running":
            left.append(f"{_GAP}{sight.phase}", style="yellow")
        for part in telling.place(_placed(sight)):
            left.append(f"{_GAP}{part}")
        share, right = _share(sight), Text()
        if share is not None:
            right.append(f"{100 * share:.0f} %")
        if sight.eta_s is not None:
            right.append(f"{_GAP}ETA {clock(sight.eta_s - since)}")
        elapsed = clock(sight.at_s + since - sight.began_s)
        right.append(f"{_GAP if right else ''}elapsed {elapsed}", style="dim")
        room = width - left.cell_len - right.cell_len - len(_GAP)
        middle = Text() if share is None else self._bar(share, min(room - len(_GAP), _MOST_BAR))
        if room < 0:
            return [left, right]
        return [Text(_GAP).join([text for text in (left, middle, right) if text])]

    def _bar(self, share: float, cells: int) -> Text:
        from rich.text import Text

        if cells < _LEAST_BAR:
            return Text()
        done = round(share * cells)
        full, empty = ("━", "─") if self._encoding.lower().startswith("utf") else ("#", "-")
        return Text.assemble((full * done, "green"), (empty * (cells - done), "dim"))

    def _rendered(self, texts: Sequence[Text], width: int) -> list[str]:
        from rich.console import Console

        file = io.StringIO()
        console = Console(
            file=file,
            force_terminal=True,
            width=width,
            no_color=None if self._colour else True,
            color_system="auto" if self._colour else None,
            highlight=False,
        )
        for text in texts:
            text.truncate(width, overflow="crop")
            console.print(text, soft_wrap=True)
        return file.getvalue().split("\n")[:-1]


def packed(groups: Sequence[Sequence[Text]], width: int) -> list[Text]:
    """Cells in lines: a group that fits stays together, on the line before if there is room."""
    from rich.text import Text

    lines: list[Text] = []
    for group in filter(None, groups):
        line = Text(_GAP).join(group)
        if lines and lines[-1].cell_len + len(_GAP) + line.cell_len <= width:
            lines[-1] = Text(_GAP).join([lines[-1], line])
            continue
        lines.append(Text())
        for cell in group:
            if lines[-1] and lines[-1].cell_len + len(_GAP) + cell.cell_len > width:
                lines.append(Text())
            lines[-1] = Text(_GAP).join([lines[-1], cell]) if lines[-1] else cell
    return lines


Cell = Sequence[str | tuple[str, str]]


def _groups(sight: Sight, since: float) -> list[list[Cell]]:
    train = sight.train or {}
    figures: list[Cell] = [[(text, "bold")] for text in telling.figures(train)]
    if sight.evaluation is not None and (shown := telling.figures(sight.evaluation)):
        figures.append([("evaluation ", "dim"), ", ".join(shown)])
    time_spent = [*telling.columns(train), *telling.data_wait(train)]
    speed = [*telling.speed(train), *telling.memory(train)]
    plain: list[list[Cell]] = [[[text] for text in group] for group in (time_spent, speed)]
    return [figures, *plain, _standing(sight, train, since)]


def _standing(sight: Sight, train: Mapping[str, Any], since: float) -> list[Cell]:
    cells: list[Cell] = []
    if sight.checkpoint_step is not None:
        ago = age((sight.checkpoint_age_s or 0.0) + since)
        cells.append([f"checkpoint step {sight.checkpoint_step}, {ago} ago"])
    elif train:
        cells.append(["no checkpoint"])
    style = "yellow" if telling.is_held_up(train) else "none"
    cells += [[(text, style)] for text in telling.slowest(train)]
    if sight.restarts:
        cells.append([(f"attempt {sight.attempt}, restarts {sight.restarts}", "yellow")])
    return cells


def _placed(sight: Sight) -> dict[str, Any]:
    """The newest record with the newest step."""
    train = dict(sight.train or {})
    return train if sight.step is None else {**train, "step": sight.step}


def _share(sight: Sight) -> float | None:
    total = (sight.train or {}).get("total_steps")
    if sight.step is None or not isinstance(total, int) or total <= 0:
        return None
    return min(1.0, sight.step / total)
