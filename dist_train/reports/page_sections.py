"""The sections of the page, each from the run's records; none for what the run does not have."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

from dist_train.reports.attempts import Attempt
from dist_train.reports.axis import byte_count, figure, percent, percent_tick, seconds
from dist_train.reports.config_values import DEFAULT, ConfigValue
from dist_train.reports.curve import Curve
from dist_train.reports.line_chart import Chart, Mark, render_chart
from dist_train.reports.markup import Child, Markup, details, table, tag
from dist_train.reports.metric_curves import figures_of
from dist_train.reports.run_records import RunRecords
from dist_train.reports.time_charts import attempt_bar, rank_table, slowest_text, time_table
from dist_train.rundir.display_number import display_number
from dist_train.rundir.failure import Failure
from dist_train.rundir.format_amounts import clock, size
from dist_train.rundir.name_ranks import name_ranks
from dist_train.rundir.outcome_text import root_cause_name
from dist_train.rundir.times.time_text import goodput_text

# A script that logs a name per layer has more; the table of last figures has all of them.
MOST_CHARTS = 24
MOST_ATTEMPTS = 100
_TILES = 4


def tiles(records: RunRecords) -> Markup:
    """The figures that are looked for first."""
    metrics, found = records.metrics, list[tuple[str, str, str]]()
    train = metrics.newest.get("train", {})
    shown = metrics.newest.get("eval", train)
    kind = "evaluation" if "eval" in metrics.newest else "training"
    for name, value in list(figures_of(shown).items())[:_TILES]:
        found.append((name, figure(value), f"last {kind}"))
    if (step := train.get("step")) is not None:
        whole = train.get("total_steps")
        found.append(("step", str(step), f"of {whole}" if isinstance(whole, int) and whole else ""))
    if (speed := metrics.curves.get(("train", "samples_per_s"))) is not None and speed.last is not None:
        found.append(("samples/s", figure(speed.last.value), "newest record"))
    if records.times is not None and records.times["goodput"] is not None:
        text = goodput_text(records.times).partition(" of ")[2]
        found.append(("goodput", percent(records.times["goodput"]), f"of {text}"))
    if records.attempts:
        failed = sum(attempt.how in ("restarted", "lost") for attempt in records.attempts)
        found.append(
            ("attempts", str(len(records.attempts)), f"{failed} failed and restarted" if failed else "")
        )
    if records.kept_steps:
        found.append(
            ("newest checkpoint", f"step {records.kept_steps[-1]}", f"{len(records.kept_steps)} kept")
        )
    rows = [
        tag("div", tag("dt", name), tag("dd", value, tag("small", note) if note else None))
        for name, value, note in found
    ]
    return tag("dl", *rows, class_="tiles") if rows else tag("p", "No figures were recorded.", class_="quiet")


def failure_box(failure: Failure | None, is_current: bool) -> Markup | None:
    """The root cause, and what is known of it."""
    if failure is None:
        return None
    lines: list[Child] = [
        tag("h2", "Why it failed" if is_current else "The last failure, after which it went on"),
        tag("p", tag("strong", f"{root_cause_name(failure)} ({failure.cls}): {failure.message}")),
    ]
    step = "" if failure.step is None else f", step {failure.step}"
    lines.append(tag("p", f"Attempt {display_number(failure.attempt)}{step}, exit code {failure.exit_code}."))
    if failure.file is not None:
        lines.append(tag("p", "At ", tag("code", f"{failure.file}:{failure.line}")))
    if failure.hint is not None:
        lines.append(tag("p", f"Hint: {failure.hint}"))
    if failure.secondary_failures:
        lines.append(tag("p", f"{name_ranks(failure.secondary_failures)} ended because of it."))
    if failure.traceback:
        lines.append(details("Traceback", tag("pre", failure.traceback, tabindex="0")))
    if failure.log_tail:
        lines.append(
            details("Its last lines", tag("pre", "\n".join(map(str, failure.log_tail)), tabindex="0"))
        )
    lines += [tag("p", tag("code", command)) for command in failure.next if is_current]
    return tag("section", *lines, class_="box" if is_current else "box note")


def curves(records: RunRecords) -> Markup:
    """Loss, metrics, learning rate, speed, data wait, memory: by step or by time."""
    metrics, marks = records.metrics, _marks(records)
    charts = [chart for chart in _charts(records) if chart.curves]
    if not charts:
        text = "Nothing was recorded yet." if not metrics.records else "No record holds a number."
        return tag("section", tag("h2", "Curves"), tag("p", text, class_="quiet"))
    shown, names = charts[:MOST_CHARTS], [chart.title for chart in charts[MOST_CHARTS:]]
    notes = [f"{metrics.records:,} records."]
    if metrics.is_thinned:
        notes.append(
            "Too many to draw all: a line is the mean of neighbouring records, the band around it goes from "
            "the lowest to the highest of them."
        )
    if names or metrics.names_left_out:
        left_out = [*names, *sorted(metrics.names_left_out)]
        notes.append(f"Not drawn, for there are too many: {', '.join(left_out[:20])}{_more(left_out, 20)}.")
    if any(mark.kind == "failure" for mark in marks):
        notes.append(
            "Red lines: failures. Dotted lines: starts of attempts. Pale: steps that were done again."
        )
    return tag(
        "section",
        tag("h2", "Curves"),
        tag("p", " ".join(notes), class_="quiet"),
        _switch(),
        tag("div", *(render_chart(chart, marks) for chart in shown), class_="charts"),
        _last_figures(records),
    )


def time_spent(records: RunRecords) -> Markup | None:
    """Goodput, the parts of each attempt, and of each rank."""
    parts: list[Child] = []
    if records.times is not None:
        parts += [tag("p", f"Goodput {goodput_text(records.times)}."), time_table(records.times)]
    if records.rank_times:
        parts.append(tag("div", tag("h3", "By rank"), rank_table(records.rank_times), class_="ranks"))
    if (slowest := slowest_text(records.metrics.slowest)) is not None:
        parts.append(tag("p", f"Slowest rank (data and forward pass of its own): {slowest}."))
    return tag("section", tag("h2", "Where the time went"), *parts) if parts else None


def attempts(records: RunRecords, now: float) -> Markup | None:
    """Each attempt: when, from which step, how it ended and why."""
    if not records.attempts:
        return None
    shown = records.attempts[-MOST_ATTEMPTS:]
    began = min([*records.submitted, records.attempts[0].began])
    last = max(attempt.ended or _last_seen(attempt, records, now) for attempt in records.attempts)
    rows = [_attempt_row(attempt, began, max(1e-3, last - began), last) for attempt in shown]
    heads = ("attempt", "when", "began", "ran", "from", "ended", "cause", "what followed", "hosts")
    left_out = len(records.attempts) - len(shown)
    caption = f"The newest {len(shown)} of {len(records.attempts)} attempts" if left_out else "Attempts"
    return tag("section", tag("h2", "Attempts and failures"), table(heads, rows, caption=caption))


def checkpoints(records: RunRecords) -> Markup | None:
    """The committed checkpoints, newest first."""
    if not records.commits and not records.kept_steps:
        return None
    rows = [
        (
            str(commit.step),
            _moment(commit.at),
            "-" if commit.attempt is None else str(display_number(commit.attempt)),
            "removed since" if commit.size is None else size(commit.size),
        )
        for commit in reversed(records.commits)
    ]
    noted = {commit.step for commit in records.commits}
    rows += [(str(s), "-", "-", "there") for s in reversed(records.kept_steps) if s not in noted]
    left_out = records.commit_count - len(records.commits)
    caption = f"The newest {len(records.commits)} of {records.commit_count}" if left_out > 0 else "Committed"
    listed = table(("step", "when", "attempt", "size"), rows, caption=caption)
    return tag("section", tag("h2", "Checkpoints"), details(f"{len(rows)} checkpoints", listed))


def config(records: RunRecords) -> Markup | None:
    """Each value of the config and where it came from; first what was chosen."""
    values = records.config
    if not values:
        return None
    heading = tag("h2", "Config")
    if not any(value.origin for value in values):
        text = "Where each value came from was not recorded."
        return tag("section", heading, tag("p", text, class_="quiet"), details("Values", _values(values)))
    chosen = [value for value in values if value.origin != DEFAULT]
    others = [value for value in values if value.origin == DEFAULT]
    rest = details(f"{len(others)} defaults", _values(others)) if others else None
    return tag("section", heading, _values(chosen, "What was chosen") if chosen else None, rest)


def environment(records: RunRecords) -> Markup:
    """What ran, where, by which versions."""
    spec, job, fingerprint = records.spec, records.job, records.fingerprint
    rows: list[tuple[str, Child]] = []
    target = spec.get("target")
    if isinstance(target, dict):
        words = [str(target.get("value")), *map(str, target.get("args") or ())]
        rows.append(("target", tag("code", f"{target.get('kind')} {' '.join(words)}")))
    if isinstance(job.get("argv"), list):
        rows.append(("command", tag("code", " ".join(map(str, job["argv"])))))
    rows += [(key, str(job[key])) for key in ("launcher", "handle") if key in job]
    keys = ("nodes", "procs_per_node", "device", "threads_per_rank", "bind", "max_restarts", "time_limit_s")
    rows += [(key, str(spec[key])) for key in keys if spec.get(key) is not None]
    rows += [(key, str(value)) for key, value in fingerprint.items() if key not in ("schema_version", "time")]
    env = spec.get("env")
    if isinstance(env, list) and env:
        pairs = [f"{pair[0]}={pair[1]}" for pair in env if isinstance(pair, list) and len(pair) == 2]
        rows.append(("--env", tag("code", "\n".join(pairs))))
    rows += [(f"rank {one.rank}", str(one)) for one in records.devices]
    rows += [(f"changed in attempt {number}", text) for number, text in _changes(records.fingerprints)]
    body = [(name, tag("td", value, class_="value")) for name, value in rows]
    listed = table(("what", "value"), body) if body else tag("p", "Nothing was recorded.", class_="quiet")
    return tag("section", tag("h2", "Environment"), listed)


def _switch() -> Markup:
    options = [
        tag("label", tag("input", type="radio", name="over", id=f"over-{over}", **chosen), f" by {over}")
        for over, chosen in (("step", {"checked": "checked"}), ("time", dict[str, str]()))
    ]
    return tag("fieldset", tag("legend", "Show curves"), *options, class_="over")


def _charts(records: RunRecords) -> list[Chart]:
    metrics = records.metrics
    found = [Chart(name, _by_kind(metrics.of(name))) for name in metrics.figure_names]
    # The trainer's own come before a script's many.
    first, rest = found[: MOST_CHARTS - 6], found[MOST_CHARTS - 6 :]

    def of(**named: str) -> dict[str, Curve]:
        pairs = {shown: metrics.curves.get(("train", name)) for shown, name in named.items()}
        return {shown.replace("_", " "): curve for shown, curve in pairs.items() if curve is not None}

    measured = [
        Chart("Learning rate", of(lr="lr"), from_zero=True),
        Chart("Samples per second", of(samples="samples_per_s"), from_zero=True),
        Chart("Time of a step", of(step="step_s", compute="compute_s", data="data_s"), seconds, True),
        Chart("Data wait (share of the time)", of(data_wait="data_wait"), percent_tick, True),
        Chart("Memory of the rank with most", of(memory="memory_bytes"), byte_count, True),
        Chart("Own work per step", of(slowest_rank="slowest_s", mean_of_others="others_s"), seconds, True),
    ]
    return [*first, *measured, *rest]


def _by_kind(curves_of: Mapping[str, Curve]) -> dict[str, Curve]:
    names = {"train": "training", "eval": "evaluation"}
    return {names.get(kind, kind): curve for kind, curve in curves_of.items()}


def _marks(records: RunRecords) -> list[Mark]:
    began, found = records.began, list[Mark]()
    if began is None:
        return found
    for attempt in records.attempts[-MOST_ATTEMPTS:]:
        number, step = display_number(attempt.number), attempt.resume_step
        if attempt.number or len(found):
            text = f"attempt {number} from {'the beginning' if step is None else f'step {step}'}"
            found.append(Mark(0 if step is None else step, attempt.began - began, text, "attempt"))
        if attempt.failed_at is not None:
            text = f"failure in attempt {number}: {attempt.cause}"
            found.append(Mark(attempt.failed_step, attempt.failed_at - began, text, "failure"))
    return found


def _last_figures(records: RunRecords) -> Markup:
    rows = [
        (name, {"train": "training", "eval": "evaluation"}.get(kind, kind), figure(value), _step_of(record))
        for kind, record in records.metrics.newest.items()
        for name, value in figures_of(record).items()
    ]
    return details("Newest figures", table(("figure", "of", "value", "step"), rows))


def _step_of(record: Mapping[str, Any]) -> str:
    return str(record.get("step", "-"))


def _last_seen(attempt: Attempt, records: RunRecords, now: float) -> float:
    """The end of an attempt that no event tells: now, if it runs, else its last record."""
    if attempt.how == "running" and attempt is records.attempts[-1]:
        return now
    metrics = records.metrics
    return max(attempt.began, (metrics.began or attempt.began) + metrics.ended_s)


def _attempt_row(attempt: Attempt, began: float, whole_s: float, last: float) -> tuple[Child, ...]:
    ran = "-" if attempt.ended is None else clock(attempt.ended - attempt.began)
    ended = attempt.how if attempt.exit_code in (None, 0) else f"{attempt.how}, exit code {attempt.exit_code}"
    hosts = ", ".join(attempt.hosts[:4]) + _more(attempt.hosts, 4)
    return (
        str(display_number(attempt.number)),
        tag("td", attempt_bar(attempt, began, whole_s, last)),
        _moment(attempt.began),
        ran,
        "the beginning" if attempt.resume_step is None else f"step {attempt.resume_step}",
        tag("td", ended, class_=attempt.how),
        tag("td", attempt.cause or "-", class_="value"),
        tag("td", attempt.why or "-", class_="value"),
        hosts or "-",
    )


def _values(values: Sequence[ConfigValue], caption: str | None = None) -> Markup:
    rows = [
        (tag("th", tag("code", value.path), scope="row"), tag("td", value.text, class_="value"), value.origin)
        for value in values
    ]
    return table(("key", "value", "from"), rows, caption=caption)


def _changes(fingerprints: Mapping[int, Mapping[str, Any]]) -> list[tuple[int | None, str]]:
    """What an attempt has in its fingerprint that the one before had not."""
    found: list[tuple[int | None, str]] = []
    before: Mapping[str, Any] | None = None
    for number, now in fingerprints.items():
        if before is not None:
            texts = [
                f"{key}: {before.get(key, 'absent')} before, {value} now"
                for key, value in now.items()
                if key not in ("schema_version", "time") and before.get(key) != value
            ]
            found += [(display_number(number), text) for text in texts]
        before = now
    return found


def _moment(at: float | None) -> str:
    if at is None:
        return "-"
    return datetime.fromtimestamp(at, UTC).strftime("%Y-%m-%d %H:%M:%S")


def _more(items: Sequence[object], shown: int) -> str:
    return f" and {len(items) - shown} more" if len(items) > shown else ""
