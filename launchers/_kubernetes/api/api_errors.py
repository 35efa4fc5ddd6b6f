"""Error responses of the API server as our errors: what was wrong, why, and a hint with the command."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from typing import Any

from dist_train.errors import ConfigError, DistTrainError, UnavailableError
from launchers._kubernetes.api.kinds import Kind

# The text of RBAC; admission plugins (quota, Pod Security, webhooks) answer 403 with other texts.
_RBAC_DENIED = re.compile(r"cannot (\w+) resource")

# Its addition where a binding names a role that the authorizer has not read yet (or that is not there).
_NO_ROLES_YET = re.compile(r"RBAC: .*not found")
# The text of an admission plugin that has not read its objects since the server's start.
_NOT_READY = "not yet ready to handle request"


class Forbidden(UnavailableError):
    """This user lacks the permission (403 by RBAC)."""


class Unauthorized(UnavailableError):
    """The API server does not accept the credentials (any more): 401."""


class Unreachable(UnavailableError):
    """No response, or a server error that tells nothing about the job: try again later."""


class MissingApi(UnavailableError):
    """The server has no such kind (404): an operator is not installed."""


class AlreadyExists(ConfigError):
    """An object of this name exists already (409)."""


class Expired(UnavailableError):
    """The resourceVersion of a watch is too old (410): list again."""


class NoLogYet(UnavailableError):
    """The container has not started (400 for its log)."""


class ObjectNotFound(UnavailableError):
    """The object does not exist (404)."""


@dataclass(frozen=True)
class ApiRequest:
    """Verb, kind and name of a request, for the text of its error."""

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

    def kubectl(self, arguments: str) -> str:
        """Return a kubectl command for this cluster."""
        return f"kubectl{f' --context {self.context}' if self.context else ''} {arguments}"


def error_of_response(status: int, reason: str, body: str | None, request: ApiRequest) -> DistTrainError:
    """Convert an HTTP response that is no success."""
    answer = _status_object(body)
    message = str(answer.get("message") or body or reason).strip()[:2000]
    if status == 401:
        return Unauthorized(
            f"the API server {request.server} does not accept these credentials (401 {reason})",
            cause="the token has expired, or the kubeconfig's user is not one of this cluster",
            hint=f"log in again; `{request.kubectl('auth whoami')}` tests it",
        )
    if status == 403:
        return _forbidden(message, request)
    if status == 404:
        return _not_found(message, answer, request)
    if status == 409:
        return AlreadyExists(f"{request.what} in {request.where}: {message}")
    if status == 410 or answer.get("reason") == "Expired":
        return Expired(f"{request.what}: {message}")
    if status == 400 and request.verb == "log":
        return NoLogYet(message)
    if status in (429, 500, 502, 503, 504) or status >= 500:
        return Unreachable(
            f"the API server {request.server} cannot answer now ({status} {reason}): {message}",
            hint=f"`{request.kubectl('get --raw /readyz?verbose')}` shows which of its checks fail",
        )
    if status in (400, 413, 415, 422):
        return ConfigError(
            f"the API server does not accept {request.what}: {message}",
            hint="`dist-train launch … --dry-run` prints what it was sent",
        )
    return UnavailableError(f"the API server refuses to {request.verb} {request.what}: {status} {message}")


def unreachable(error: BaseException, request: ApiRequest) -> Unreachable:
    """Convert a failed connection: refused, timed out, or a certificate that is not trusted."""
    message = str(error).strip()
    untrusted = "CERTIFICATE" in message.upper() or "SSL" in message.upper()
    return Unreachable(
        f"the API server {request.server} cannot be reached: {_short(message) or type(error).__name__}",
        cause="its certificate is not one that the kubeconfig trusts" if untrusted else None,
        hint=f"test it with `{request.kubectl('cluster-info')}`; "
        "`dist-train launch … --dry-run` needs no cluster",
    )


def _forbidden(message: str, request: ApiRequest) -> DistTrainError:
    if _RBAC_DENIED.search(message) or not message or message == "Forbidden":
        verb = {"log": "get", "apply": "patch"}.get(request.verb, request.verb)
        resource = f"{request.kind.full_name}{' --subresource=log' if request.verb == 'log' else ''}"
        cause = "the role of this user or service account lacks it; k8s/rbac.yaml has all that is needed"
        hint = request.kubectl(f"auth can-i {verb} {resource} -n {request.namespace}")
        if _NO_ROLES_YET.search(message):
            cause, hint = (
                f"the API server has just started, and has not read its roles; or {cause}",
                (f"try again in a minute; {hint}"),
            )
        elif request.kind.namespaced:
            cause += f"; the server says the same where there is no namespace {request.namespace}"
        return Forbidden(
            f"you have no right to {verb} {request.kind.full_name}{'/log' if request.verb == 'log' else ''} "
            f"in {request.where}: {message}",
            cause=cause,
            hint=hint,
        )
    if _NOT_READY in message:
        return Unreachable(
            f"the API server {request.server} cannot answer now: {message}",
            cause="it has just started, and its admission plugins have not read what they need",
            hint=f"try again in a minute; `{request.kubectl('get --raw /readyz?verbose')}` shows its checks",
        )
    return UnavailableError(
        f"the cluster refuses {request.what} in {request.where}: {message}",
        cause="a quota, a Pod Security level or another rule of the cluster",
        hint=request.kubectl(f"-n {request.namespace} describe quota,limitrange"),
    )


def _not_found(message: str, answer: dict[str, Any], request: ApiRequest) -> DistTrainError:
    if answer.get("kind") != "Status" or "could not find the requested resource" in message:
        if request.kind.needs:
            return MissingApi(
                f"{request.kind.needs} is not installed on {request.server}: "
                f"it has no kind {request.kind.kind} of {request.kind.api_version}",
                hint="`--kind job` needs nothing installed; or ask the cluster's administrators",
            )
        return MissingApi(f"{request.server} has no kind {request.kind.kind} of {request.kind.api_version}")
    if (answer.get("details") or {}).get("kind") == "namespaces" and request.kind.kind != "Namespace":
        return no_namespace(request)
    return ObjectNotFound(f"{request.what} is not in {request.where}: {message}")


def no_namespace(request: ApiRequest) -> ConfigError:
    """The error for a namespace that does not exist."""
    return ConfigError(
        f"there is no namespace {request.namespace} on {request.server}",
        hint=f"`{request.kubectl('get namespaces')}` lists them; give one with --namespace",
    )


def _status_object(body: str | None) -> dict[str, Any]:
    try:
        found = json.loads(body or "")
    except ValueError:
        return {}
    return found if isinstance(found, dict) else {}


def _short(message: str) -> str:
    """Cut the object's repr and the address, with which urllib3's errors begin."""
    message = re.sub(r"<[^<>]* at 0x[0-9a-f]+>:?\s*", "", message)
    return re.sub(r"^HTTPS?ConnectionPool\([^)]*\):\s*", "", message)[:500]
