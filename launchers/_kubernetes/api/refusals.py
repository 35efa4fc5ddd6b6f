"""What the API server refuses, in our errors: what was wrong, why, and the command that mends it."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from typing import Any

from dist_train.errors import ConfigError, DistTrainError, UnavailableError
from launchers._kubernetes.api.kinds import Kind

# RBAC's own form; admission plugins (quota, Pod Security, webhooks) answer 403 in other words.
_NO_RIGHT = re.compile(r"cannot (\w+) resource")


class Forbidden(UnavailableError):
    """This user may not do this (RBAC)."""


class NotAuthenticated(UnavailableError):
    """The API server does not know this user (any more)."""


class Unreachable(UnavailableError):
    """No answer, or one that says nothing of the job: try again later."""


class MissingApi(UnavailableError):
    """The server has no such kind: an operator is not installed."""


class Taken(ConfigError):
    """An object of this name is there already (409)."""


class Expired(UnavailableError):
    """A watch's version is too old (410): list again."""


class NoLogYet(UnavailableError):
    """The container has not begun."""


class Gone(UnavailableError):
    """The object is not there (404)."""


@dataclass(frozen=True)
class Question:
    """What was asked of the server, for the words of a refusal."""

    verb: str
    kind: Kind
    namespace: str
    name: str = ""
    server: str = ""
    context: str | None = None

    @property
    def what(self) -> str:
        """`Job digits-1`, or `pods`."""
        return f"{self.kind.kind} {self.name}" if self.name else self.kind.plural

    @property
    def where(self) -> str:
        """`namespace default of https://…`."""
        return f"namespace {self.namespace} of {self.server}"

    def kubectl(self, words: str) -> str:
        """A command for this cluster."""
        return f"kubectl{f' --context {self.context}' if self.context else ''} {words}"


def refusal(status: int, reason: str, body: str | None, asked: Question) -> DistTrainError:
    """One HTTP answer that is no success."""
    said = _status_object(body)
    words = str(said.get("message") or body or reason).strip()[:2000]
    if status == 401:
        return NotAuthenticated(
            f"the API server {asked.server} does not accept these credentials (401 {reason})",
            cause="the token has expired, or the kubeconfig's user is not one of this cluster",
            mend=f"log in again; `{asked.kubectl('auth whoami')}` tests it",
        )
    if status == 403:
        return _forbidden(words, asked)
    if status == 404:
        return _not_found(words, said, asked)
    if status == 409:
        return Taken(f"{asked.what} in {asked.where}: {words}")
    if status == 410 or said.get("reason") == "Expired":
        return Expired(f"{asked.what}: {words}")
    if status == 400 and asked.verb == "log":
        return NoLogYet(words)
    if status in (429, 500, 502, 503, 504) or status >= 500:
        return Unreachable(
            f"the API server {asked.server} cannot answer now ({status} {reason}): {words}",
            mend=f"`{asked.kubectl('get --raw /readyz?verbose')}` tells what it lacks",
        )
    if status in (400, 413, 415, 422):
        return ConfigError(
            f"the API server does not accept {asked.what}: {words}",
            mend="`dist-train launch … --dry-run` prints what it was sent",
        )
    return UnavailableError(f"the API server refuses to {asked.verb} {asked.what}: {status} {words}")


def no_answer(error: BaseException, asked: Question) -> Unreachable:
    """Nobody, or nobody whom we may trust, is at the server's address."""
    words = str(error).strip()
    untrusted = "CERTIFICATE" in words.upper() or "SSL" in words.upper()
    return Unreachable(
        f"the API server {asked.server} cannot be reached: {_short(words) or type(error).__name__}",
        cause="its certificate is not one that the kubeconfig trusts" if untrusted else None,
        mend=f"`{asked.kubectl('cluster-info')}` asks it; `dist-train launch … --dry-run` needs no cluster",
    )


def _forbidden(words: str, asked: Question) -> DistTrainError:
    if _NO_RIGHT.search(words) or not words or words == "Forbidden":
        verb = {"log": "get", "apply": "patch"}.get(asked.verb, asked.verb)
        resource = f"{asked.kind.full_name}{' --subresource=log' if asked.verb == 'log' else ''}"
        return Forbidden(
            f"you have no right to {verb} {asked.kind.full_name}{'/log' if asked.verb == 'log' else ''} "
            f"in {asked.where}: {words}",
            cause="the role of this user or service account lacks it; k8s/rbac.yaml has all that is needed",
            mend=asked.kubectl(f"auth can-i {verb} {resource} -n {asked.namespace}"),
        )
    return UnavailableError(
        f"the cluster refuses {asked.what} in {asked.where}: {words}",
        cause="a quota, a Pod Security level or another rule of the cluster",
        mend=asked.kubectl(f"-n {asked.namespace} describe quota,limitrange"),
    )


def _not_found(words: str, said: dict[str, Any], asked: Question) -> DistTrainError:
    if said.get("kind") != "Status" or "could not find the requested resource" in words:
        if asked.kind.needs:
            return MissingApi(
                f"{asked.kind.needs} is not installed on {asked.server}: "
                f"it has no kind {asked.kind.kind} of {asked.kind.api_version}",
                mend="`--kind job` needs nothing installed; or ask the cluster's administrators",
            )
        return MissingApi(f"{asked.server} has no kind {asked.kind.kind} of {asked.kind.api_version}")
    if (said.get("details") or {}).get("kind") == "namespaces" and asked.kind.kind != "Namespace":
        return no_namespace(asked)
    return Gone(f"{asked.what} is not in {asked.where}: {words}")


def no_namespace(asked: Question) -> ConfigError:
    """The namespace itself is not there."""
    return ConfigError(
        f"there is no namespace {asked.namespace} on {asked.server}",
        mend=f"`{asked.kubectl('get namespaces')}` lists them; give one with --namespace",
    )


def _status_object(body: str | None) -> dict[str, Any]:
    try:
        said = json.loads(body or "")
    except ValueError:
        return {}
    return said if isinstance(said, dict) else {}


def _short(words: str) -> str:
    """urllib3's errors begin with the object's repr, and repeat the address."""
    words = re.sub(r"<[^<>]* at 0x[0-9a-f]+>:?\s*", "", words)
    return re.sub(r"^HTTPS?ConnectionPool\([^)]*\):\s*", "", words)[:500]
