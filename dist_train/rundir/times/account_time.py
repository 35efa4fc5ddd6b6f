"""Give every second of a run to one part, from the history of its attempts and the clock of rank 0."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from dist_train.rundir.times.attempt_history import AttemptHistory, End
from dist_train.rundir.times.clock_file import FROM_THE_BEGINNING, ClockReading
from dist_train.rundir.times.time_parts import PARTS, STEP_PARTS, AttemptTime, RunTime

# A running attempt whose rank 0 has shown no sign of life for so long is taken as ended there.
SILENT_S = 120.0
# What a script need not tell us of.
_MAY_BE_UNKNOWN = ("import", "restore", "data_wait", "communication", "evaluation", "save_stall")
Seconds = dict[str, float]


def account_time(
    history: Sequence[AttemptHistory],
    readings: Mapping[int, ClockReading],
    is_script: bool,
    now: float,
) -> RunTime:
    """Divide the time of each attempt into parts; their sum is its time.

    Args:
        readings: by attempt; none of an attempt whose rank 0 has not begun.
        is_script: the target is a user's own script: what it does without us is not known.
        now: the end of an attempt that runs.
    """
    ends = [_end_of(attempt, readings.get(attempt.attempt), now) for attempt in history]
    kept = _kept_steps(history, readings, is_script)
    found: list[AttemptTime] = []
    for place, attempt in enumerate(history):
        before = ends[place - 1] if place and not attempt.resubmitted else None
        reading = readings.get(attempt.attempt)
        seconds = dict.fromkeys(PARTS, 0.0)
        begins = _before_the_ranks(seconds, attempt, before)
        _add_rank(seconds, attempt, reading, ends[place], is_script)
        lost = _move_lost(seconds, attempt, reading, kept[place], is_script)
        unknown = _unknown(attempt, reading, seconds, is_script)
        if lost is None:
            unknown.add("lost")
        parts = {part: None if part in unknown else seconds[part] for part in PARTS}
        found.append(AttemptTime(attempt.attempt, max(0.0, ends[place] - begins), parts))
    return RunTime(tuple(found))


def _end_of(attempt: AttemptHistory, reading: ClockReading | None, now: float) -> float:
    if attempt.ended_at is not None:
        return max(attempt.started, attempt.ended_at)
    alive = max(attempt.started, reading.alive if reading is not None else attempt.started)
    if attempt.end is not None or (reading is not None and now - alive > SILENT_S):
        return alive
    return max(alive, now)


def _before_the_ranks(seconds: Seconds, attempt: AttemptHistory, before: float | None) -> float:
    """Count the time up to the start of the ranks; returns where the attempt's time begins."""
    begins = before if before is not None else attempt.begins
    agent, joins, started = attempt.agent_started, attempt.joins_since, attempt.started
    if begins is None or (attempt.resubmitted and not attempt.submission_seen):
        begins = agent
    begins = min(begins, agent if attempt.resubmitted else started, started)
    agent = min(max(begins, agent), started)
    joins = min(max(agent, joins), started)
    waited = "queue" if attempt.queued else "start" if attempt.resubmitted else "idle"
    seconds[waited] += agent - begins
    seconds["start"] += joins - agent
    seconds["membership"] += started - joins
    return begins


def _add_rank(
    seconds: Seconds, attempt: AttemptHistory, reading: ClockReading | None, end: float, is_script: bool
) -> None:
    """Count the time from the start of the ranks to the attempt's end."""
    cut = end if attempt.failed_at is None else min(end, max(attempt.started, attempt.failed_at))
    if reading is None:
        seconds["start"] += cut - attempt.started
        seconds["idle"] += end - cut
        return
    began = min(max(attempt.started, reading.began), cut)
    seconds["start"] += began - attempt.started
    named = _PartNames(reading, is_script, attempt.end)
    left = end - began
    for clock_part, counted in reading.seconds.items():
        taken = min(left, max(0.0, counted))
        seconds[named(clock_part)] += taken
        left -= taken
    # Since its last change of part: it was in this one until it ended, or until a failure was seen.
    taken = min(left, max(0.0, cut - reading.since))
    seconds[named(reading.part)] += taken
    # What is left passed after the failure was seen, or was being counted when the kill came.
    seconds["idle"] += left - taken


def name_parts(reading: ClockReading, is_script: bool, end: End | None = None) -> Seconds:
    """What the clock has counted until its last change of part, by part."""
    named, seconds = _PartNames(reading, is_script, end), dict.fromkeys(PARTS, 0.0)
    for clock_part, counted in reading.seconds.items():
        seconds[named(clock_part)] += max(0.0, counted)
    return seconds


class _PartNames:
    """The part that what the clock counted belongs to."""

    def __init__(self, reading: ClockReading, is_script: bool, end: End | None) -> None:
        initialised = not is_script or _has(reading, "membership")
        stepped = not is_script or _has(reading, "compute")
        self._of = {
            # Without dt.init or a step of ours a script's time cannot be told apart.
            "script": "import" if initialised or _has(reading, "body") else "compute",
            "body": "start" if initialised else "compute",
            "set_up": "start" if stepped else "compute",
            # A script that does not ask whether to stop is interrupted, and ends as if it had failed.
            "idle": "stopping" if end == "stopped" else "idle",
        }

    def __call__(self, clock_part: str) -> str:
        return self._of.get(clock_part, clock_part)


def _has(reading: ClockReading, part: str) -> bool:
    return reading.part == part or reading.seconds[part] > 0 or part in reading.known


def _unknown(
    attempt: AttemptHistory, reading: ClockReading | None, seconds: Seconds, is_script: bool
) -> set[str]:
    unknown = {"queue"} if attempt.queued and attempt.resubmitted and not attempt.submission_seen else set()
    if reading is None:
        return unknown
    may_be = _MAY_BE_UNKNOWN if is_script else ("communication",)
    return unknown | {part for part in may_be if not seconds[part] and not _has(reading, part)}


def _kept_steps(
    history: Sequence[AttemptHistory], readings: Mapping[int, ClockReading], is_script: bool
) -> list[int | None]:
    """For each attempt the step from which it was, or would be, done again; None: not known, or none."""
    kept: list[int | None] = []
    after: int | None = None
    for attempt in reversed(history):
        reading = readings.get(attempt.attempt)
        own = _would_resume_from(attempt, reading, is_script)
        known = [step for step in (after, own) if step is not None]
        kept.append(min(known, default=None))
        resumed = _resumed_from(attempt, reading, is_script)
        after = resumed if after is None else after if resumed is None else min(after, resumed)
    return kept[::-1]


def _resumed_from(attempt: AttemptHistory, reading: ClockReading | None, is_script: bool) -> int | None:
    if reading is not None and reading.resumed is not None:
        return reading.resumed
    if attempt.resume_step is not None:
        return attempt.resume_step
    return None if is_script else FROM_THE_BEGINNING


def _would_resume_from(attempt: AttemptHistory, reading: ClockReading | None, is_script: bool) -> int | None:
    """The newest checkpoint at the end of an attempt that did not end well."""
    if attempt.end not in ("failed", "stopped", "unseen"):
        return None
    if reading is not None and reading.commits:
        return reading.commits[-1][0]
    return _resumed_from(attempt, reading, is_script)


def _move_lost(
    seconds: Seconds, attempt: AttemptHistory, reading: ClockReading | None, kept: int | None, is_script: bool
) -> float | None:
    """Count what was done after step `kept` as lost; None if that is not known."""
    if kept is None or reading is None:
        ended_well = attempt.end in (None, "done")
        return 0.0 if ended_well or not any(seconds[part] for part in STEP_PARTS) else None
    named, saved = _PartNames(reading, is_script, attempt.end), dict.fromkeys(PARTS, 0.0)
    commits = [counted for step, counted in reading.commits if step <= kept]
    for clock_part, counted in (commits[-1] if commits else {}).items():
        saved[named(clock_part)] += counted
    for part in STEP_PARTS:
        lost = max(0.0, seconds[part] - saved[part])
        seconds[part] -= lost
        seconds["lost"] += lost
    return seconds["lost"]
