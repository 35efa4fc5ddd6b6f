"""Injected errors and warnings of the API server: RBAC, quotas, faults."""

from __future__ import annotations

import threading
from dataclasses import dataclass, field

from cluster.api.errors import ApiError, not_allowed
from cluster.objects import Resource

USER = "system:serviceaccount:default:researcher"


@dataclass(frozen=True)
class Call:
    """Verb and target of a request.

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
        """Resource as in the rules of a Role: `pods`, `jobs`, `pods/log`."""
        return f"{self.resource.plural}/{self.subresource}" if self.subresource else self.resource.plural


@dataclass
class Rule:
    """An error response, or a warning header, for matching requests.

    Attributes:
        verb: "*" for all.
        what: a resource as in a Role, "*" for all.
        left: number of requests that it still applies to; None: all.
    """

    verb: str
    what: str
    error: ApiError | None = None
    warning: str = ""
    left: int | None = None

    def applies(self, call: Call) -> bool:
        """Whether it matches the request and is not used up."""
        return self.left != 0 and self.verb in ("*", call.verb) and self.what in ("*", call.what)


@dataclass
class Rules:
    """All rules, in order; the first error wins."""

    _rules: list[Rule] = field(default_factory=list)
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def add(self, rule: Rule) -> None:
        """Apply the rule to later requests."""
        with self._lock:
            self._rules.append(rule)

    def clear(self) -> None:
        """Remove all rules."""
        with self._lock:
            self._rules.clear()

    def forbid(self, verb: str, what: str) -> None:
        """Deny a verb to the user's role (403)."""
        self.add(Rule(verb, what, error=ApiError(403, "Forbidden", "")))

    def check(self, call: Call) -> list[str]:
        """Return the warnings for the response; raises ApiError where a rule refuses."""
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
