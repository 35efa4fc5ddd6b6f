"""Exchange a small value between all ranks under a name; a rank that does not come is named in the error.

It goes through the store, not by a collective: a collective that only some ranks reach would be matched
with another one of the others, and hang or mix their data.
"""

from __future__ import annotations

import json
import logging
import time
from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass

from dist_train.distributed.control_group import JsonValue
from dist_train.distributed.stores.torch_stores import Store
from dist_train.errors import ConfigError
from dist_train.rundir.name_ranks import name_ranks

logger = logging.getLogger(__name__)

Judge = Callable[[list[JsonValue]], JsonValue]

_FIRST_SLEEP_S = 0.0001
# Ranks come within some milliseconds of each other: a wait should not be much longer than that.
_LONGER = 1.25
_LONGEST_SLEEP_S = 0.05
# From here on a waiting rank looks where the missing ones are. Two threads of one rank may begin two
# exchanges in either order: within this time the second has begun too.
_LOOK_AFTER_S = 5.0
_LOOK_EVERY_S = 1.0
_WARN_AFTER_S = 15.0
_HINT = "do it on all ranks in the same order, not under `if run.is_main:`"


class KeyedExchange:
    """Exchanges of one run. Each name has numbers of its own, counted alike on all ranks.

    Args:
        store: a store of this run alone.
        rank: this process's rank.
        world_size: number of ranks.
        timeout_s: how long ranks wait for each other.
    """

    def __init__(self, store: Store, rank: int, world_size: int, timeout_s: float) -> None:
        self._store = store
        self._rank = rank
        self._world_size = world_size
        self._timeout_s = timeout_s
        self._begun: dict[str, int] = defaultdict(int)
        self._names: dict[str, int] = defaultdict(int)

    def new_name(self, kind: str) -> str:
        """The next name of a kind ("loader 0", "loader 1"); equal on ranks that ask in the same order."""
        self._names[kind] += 1
        return f"{kind} {self._names[kind] - 1}"

    def exchange(self, name: str, value: JsonValue, judge: Judge, what: str) -> JsonValue:
        """What `judge` makes of all ranks' values; equal on all ranks. Collective.

        Args:
            name: ranks that give the same name for the same time meet.
            value: this rank's.
            judge: called on rank 0 with every rank's value in rank order.
            what: what this rank does, for the errors of the others ("run.mean").

        Raises:
            ConfigError: on every rank, what `judge` raises; or a rank has not come within the timeout,
                or waits for this one elsewhere.
        """
        number = self._begun[name]
        self._begun[name] = number + 1
        place = _Place(name, number, what)
        self._store.set(f"at/{self._rank}", json.dumps([name, number, what]))
        self._store.set(place.given_by(self._rank), json.dumps(value))
        if self._rank == 0:
            self._decide(place, judge)
        else:
            self._wait_for([place.answer], place)
        answer = json.loads(self._store.get(place.answer))
        if "error" in answer:
            raise ConfigError(answer["error"], cause=answer["cause"], hint=answer["hint"])
        return answer["value"]  # type: ignore[no-any-return]

    def _decide(self, place: _Place, judge: Judge) -> None:
        keys = [place.given_by(rank) for rank in range(self._world_size)]
        try:
            self._wait_for(keys, place)
            values = [json.loads(self._store.get(key)) for key in keys]
            answer: dict[str, JsonValue] = {"value": judge(values)}
        except ConfigError as error:
            answer = {"error": error.what, "cause": error.cause, "hint": error.hint}
        self._store.set(place.answer, json.dumps(answer))
        for key in keys:
            self._store.delete_key(key)
        if place.number:
            # All ranks are here, so that all have read the last answer.
            self._store.delete_key(_Place(place.name, place.number - 1, "").answer)

    def _wait_for(self, keys: list[str], place: _Place) -> None:
        began = time.monotonic()
        look_at, warned, sleep = began + _LOOK_AFTER_S, False, _FIRST_SLEEP_S
        while not self._store.check(keys):
            now = time.monotonic()
            if now - began > self._timeout_s:
                raise self._not_here(place)
            if now >= look_at:
                look_at = now + _LOOK_EVERY_S
                self._refuse_other_place(place)
            if now - began > _WARN_AFTER_S and not warned:
                warned = True
                missing = name_ranks(self._missing(place))
                logger.warning("%s: rank %d waits for %s", place.what, self._rank, missing)
            time.sleep(sleep)
            sleep = min(_LONGER * sleep, _LONGEST_SLEEP_S)

    def _missing(self, place: _Place) -> list[int]:
        return [rank for rank in range(self._world_size) if not self._store.check([place.given_by(rank)])]

    def _refuse_other_place(self, place: _Place) -> None:
        """Raise if a missing rank waits where this one has not been: both would wait for ever."""
        for rank in self._missing(place):
            if not self._store.check([f"at/{rank}"]):
                continue
            name, number, what = json.loads(self._store.get(f"at/{rank}"))
            # An answer that has come meanwhile: that rank has read it and gone on.
            if number >= self._begun[name] and not self._store.check([place.answer]):
                raise ConfigError(
                    f"rank {self._rank} is at {place.what}, and rank {rank} at {what}",
                    cause="each waits for the other",
                    hint=_HINT,
                )

    def _not_here(self, place: _Place) -> ConfigError:
        missing = name_ranks(self._missing(place))
        return ConfigError(
            f"{place.what}: {missing} did not come within {self._timeout_s:g} s",
            cause="it needs every rank",
            hint=_HINT,
        )


@dataclass(frozen=True)
class _Place:
    """One exchange: its name, its number among those of the name, and what it is for."""

    name: str
    number: int
    what: str

    def given_by(self, rank: int) -> str:
        return f"given/{self.name}/{self.number}/{rank}"

    @property
    def answer(self) -> str:
        return f"answer/{self.name}/{self.number}"
