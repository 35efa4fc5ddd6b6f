"""Error responses of the API server: HTTP code, reason and message of a metav1.Status.

https://kubernetes.io/docs/reference/kubernetes-api/common-definitions/status/
"""

from __future__ import annotations

from cluster.objects import Manifest, Resource


class ApiError(Exception):
    """An error response."""

    def __init__(self, code: int, reason: str, message: str, details: Manifest | None = None) -> None:
        super().__init__(message)
        self.code = code
        self.reason = reason
        self.message = message
        self.details = details or {}

    @property
    def status(self) -> Manifest:
        """The Status object of the response."""
        return {
            "kind": "Status",
            "apiVersion": "v1",
            "metadata": {},
            "status": "Failure",
            "message": self.message,
            "reason": self.reason,
            "details": self.details,
            "code": self.code,
        }


def _details(resource: Resource, name: str) -> Manifest:
    return {"name": name, "group": resource.group, "kind": resource.plural}


def not_found(resource: Resource, name: str) -> ApiError:
    """404: `jobs.batch "x" not found`."""
    return ApiError(404, "NotFound", f'{resource.name} "{name}" not found', _details(resource, name))


def already_exists(resource: Resource, name: str) -> ApiError:
    """409 on create."""
    text = f'{resource.name} "{name}" already exists'
    return ApiError(409, "AlreadyExists", text, _details(resource, name))


def conflict(resource: Resource, name: str, why: str) -> ApiError:
    """409 on update: the object was modified in between."""
    text = f'Operation cannot be fulfilled on {resource.name} "{name}": {why}'
    return ApiError(409, "Conflict", text, _details(resource, name))


def forbidden(resource: Resource, name: str, why: str) -> ApiError:
    """403 of an admission plug-in: quota, security policy."""
    text = f'{resource.name} "{name}" is forbidden: {why}'
    return ApiError(403, "Forbidden", text, _details(resource, name))


def not_allowed(user: str, verb: str, resource: Resource, subresource: str, namespace: str) -> ApiError:
    """403 of RBAC, naming verb, resource, group and namespace."""
    what = f"{resource.plural}/{subresource}" if subresource else resource.plural
    where = f' in the namespace "{namespace}"' if namespace else " at the cluster scope"
    text = f'User "{user}" cannot {verb} resource "{what}" in API group "{resource.group}"{where}'
    details = {"group": resource.group, "kind": resource.plural}
    return ApiError(403, "Forbidden", f"{resource.name} is forbidden: {text}", details)


def invalid(kind: str, name: str, field: str, why: str) -> ApiError:
    """422: an invalid value."""
    causes = [{"reason": "FieldValueInvalid", "message": why, "field": field}]
    details = {"name": name, "kind": kind, "causes": causes}
    return ApiError(422, "Invalid", f'{kind} "{name}" is invalid: {field}: {why}', details)


def bad_request(message: str) -> ApiError:
    """400."""
    return ApiError(400, "BadRequest", message)


def expired(message: str) -> ApiError:
    """410: a resourceVersion that was compacted."""
    return ApiError(410, "Expired", message)


def unsupported_patch(content_type: str, accepted: str) -> ApiError:
    """415."""
    text = f"the body of the request was in an unknown format - accepted media types include: {accepted}"
    return ApiError(415, "UnsupportedMediaType", text, {"was": content_type})
