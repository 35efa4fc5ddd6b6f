"""A snapshot of a run as the lines of the panel, none wider than the terminal."""

from __future__ import annotations

import io
import time
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from dist_train.cli.live.run_snapshot import RunSnapshot
from dist_train.cli.output.table import age
from dist_train.rundir import metric_text
from dist_train.rundir.display_number import display_number
from dist_train.rundir.format_amounts import clock

if TYPE_CHECKING:
    from rich.text import Text

_GAP = "  "
_LEAST_BAR = 8
_MOST_BAR = 60


class Panel:
    """Formats snapshots.

    Args:
        encoding: of the terminal; the bar is ASCII unless it is UTF-8.
    """

    def __init__(self, encoding: str = "utf-8", colour: bool = True) -> None:
        self._encoding = encoding
        self._colour = colour

    def lines(self, snapshot: RunSnapshot, columns: int, now: float | None = None) -> list[str]:
        """The panel for a terminal of this width, with escape codes for colours alone.

        Args:
            now: by the monotonic clock; None is now.
        """
        from rich.text import Text

        since = (time.monotonic() if now is None else now) - snapshot.at_s
        width = max(20, columns - 1)
        texts = self._head(snapshot, since, width)
        texts += packed(
            [[Text.assemble(*cell) for cell in group] for group in _groups(snapshot, since)], width
        )
        return self._rendered([text for text in texts if text], width)

    def _head(self, snapshot: RunSnapshot, since: float, width: int) -> list[Text]:
        """Name, position, bar and ETA: one line, or two if they do not fit."""
        from rich.text import Text

        left = Text(snapshot.name, style="bold")
        if snapshot.phase != "running":
            left.append(f"{_GAP}{snapshot.phase}", style="yellow")
        for part in metric_text.place(_placed(snapshot)):
            left.append(f"{_GAP}{part}")
        fraction, right = _fraction_done(snapshot), Text()
        if fraction is not None:
            right.append(f"{100 * fraction:.0f} %")
        if snapshot.eta_s is not None:
            right.append(f"{_GAP}ETA {clock(snapshot.eta_s - since)}")
        elapsed = clock(snapshot.at_s + since - snapshot.began_s)
        right.append(f"{_GAP if right else ''}elapsed {elapsed}", style="dim")
        space = width - left.cell_len - right.cell_len - len(_GAP)
        middle = Text() if fraction is None else self._bar(fraction, min(space - len(_GAP), _MOST_BAR))
        if space < 0:
            return [left, right]
        return [Text(_GAP).join([text for text in (left, middle, right) if text])]

    def _bar(self, fraction: float, cells: int) -> Text:
        from rich.text import Text

        if cells < _LEAST_BAR:
            return Text()
        done = round(fraction * cells)
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
    """Cells as lines: a group that fits stays together, on the previous line if there is space."""
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


def _groups(snapshot: RunSnapshot, since: float) -> list[list[Cell]]:
    train = snapshot.train or {}
    figures: list[Cell] = [[(text, "bold")] for text in metric_text.figures(train)]
    if snapshot.evaluation is not None and (shown := metric_text.figures(snapshot.evaluation)):
        figures.append([("evaluation ", "dim"), ", ".join(shown)])
    time_spent = [*metric_text.columns(train), *metric_text.data_wait(train)]
    speed = [*metric_text.speed(train), *metric_text.memory(train)]
    plain: list[list[Cell]] = [[[text] for text in group] for group in (time_spent, speed)]
    return [figures, *plain, _state_cells(snapshot, train, since)]


def _state_cells(snapshot: RunSnapshot, train: Mapping[str, Any], since: float) -> list[Cell]:
    cells: list[Cell] = []
    if snapshot.checkpoint_step is not None:
        ago = age((snapshot.checkpoint_age_s or 0.0) + since)
        cells.append([f"checkpoint step {snapshot.checkpoint_step}, {ago} ago"])
    elif train:
        cells.append(["no checkpoint"])
    style = "yellow" if metric_text.is_held_up(train) else "none"
    cells += [[(text, style)] for text in metric_text.slowest(train)]
    if snapshot.restarts:
        cells.append(
            [(f"attempt {display_number(snapshot.attempt)}, restarts {snapshot.restarts}", "yellow")]
        )
    return cells


def _placed(snapshot: RunSnapshot) -> dict[str, Any]:
    """The newest record with the newest step."""
    train = dict(snapshot.train or {})
    return train if snapshot.step is None else {**train, "step": snapshot.step}


def _fraction_done(snapshot: RunSnapshot) -> float | None:
    total = (snapshot.train or {}).get("total_steps")
    if snapshot.step is None or not isinstance(total, int) or total <= 0:
        return None
    return min(1.0, snapshot.step / total)
