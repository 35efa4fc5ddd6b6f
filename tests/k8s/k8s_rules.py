"""What an administrator or a fault adds to the API server: refusals and warnings for chosen requests."""

from __future__ import annotations

import threading
from dataclasses import dataclass, field

from k8s_objects import Resource
from k8s_status import ApiError, not_allowed

USER = "system:serviceaccount:default:researcher"


@dataclass(frozen=True)
class Call:
    """What a request asks for.

    Attributes:
        verb: get, list, watch, create, update, patch, delete or deletecollection.
    """

    verb: str
    resource: Resource
    namespace: str = ""
    name: str = ""
    subresource: str = ""

    @property
    def what(self) -> str:
        """`pods`, `jobs`, `pods/log`: as in the rules of a Role."""
        return f"{self.resource.plural}/{self.subresource}" if self.subresource else self.resource.plural


@dataclass
class Rule:
    """A refusal, or a warning beside the answer.

    Attributes:
        verb: "*" for all.
        what: a resource as in a Role, "*" for all.
        left: how often it still applies; None: always.
    """

    verb: str
    what: str
    error: ApiError | None = None
    warning: str = ""
    left: int | None = None

    def applies(self, call: Call) -> bool:
        """Whether it is meant for this request and not used up."""
        return self.left != 0 and self.verb in ("*", call.verb) and self.what in ("*", call.what)


@dataclass
class Rules:
    """All rules; asked in order, the first refusal counts."""

    _rules: list[Rule] = field(default_factory=list)
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def add(self, rule: Rule) -> None:
        """For the requests from now on."""
        with self._lock:
            self._rules.append(rule)

    def clear(self) -> None:
        """As on the first day."""
        with self._lock:
            self._rules.clear()

    def forbid(self, verb: str, what: str) -> None:
        """The user's role lacks this verb."""
        self.add(Rule(verb, what, error=ApiError(403, "Forbidden", "")))

    def judge(self, call: Call) -> list[str]:
        """Warnings for the answer; raises the refusal."""
        warnings = []
        with self._lock:
            for rule in self._rules:
                if not rule.applies(call):
                    continue
                if rule.left is not None:
                    rule.left -= 1
                if rule.warning:
                    warnings.append(rule.warning)
                if rule.error is not None:
                    raise _filled_in(rule.error, call)
        return warnings


def _filled_in(error: ApiError, call: Call) -> ApiError:
    if error.message:
        return error
    return not_allowed(USER, call.verb, call.resource, call.subresource, call.namespace)
