"""Errors of an object store as OSError, in a few words and without credentials.

The library's own text holds the whole answer of the server, and the answer to a wrong signature holds the
access key: nothing of it reaches a log but a code, its message and the reason of a lost connection.
"""

from __future__ import annotations

import errno
import os
import re
from collections.abc import Iterator
from contextlib import contextmanager

from dist_train.config.secret_names import is_secret_name

_CODE = re.compile(r"<Code>\s*([^<]{1,80}?)\s*</Code>")
_MESSAGE = re.compile(r"<Message>\s*([^<]{1,300}?)\s*</Message>", re.DOTALL)
_STATUS = re.compile(r"\b([45]\d\d) ([A-Z][A-Za-z ]+)")
_QUERY = re.compile(r"(https?://[^\s?)]*)\?[^\s)]*")
_USER = re.compile(r"(https?://)[^/\s@]*@")
_FULL = re.compile(r"XMinioStorageFull|QuotaExceeded|InsufficientStorage|\b507\b")
_NO_BUCKET = re.compile(
    r"NoSuchBucket|ContainerNotFound|bucket does not exist|container does not exist", re.I
)
_DENIED = re.compile(r"\b40[13] (?:Unauthorized|Forbidden)|<Code>(?:AccessDenied|InvalidAccessKeyId)")
_METADATA = re.compile(r"/latest/api/token|/latest/meta-data|computeMetadata|/metadata/identity")
_SHORTEST = 4
_MOST_CHARS = 300


@contextmanager
def as_os_errors(location: str) -> Iterator[None]:
    """Raise what the library raises as an OSError that names the URL.

    Args:
        location: the URL of the object, bucket or prefix.
    """
    from obstore import exceptions

    try:
        yield
    except exceptions.AlreadyExistsError:
        raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST), location) from None
    except (exceptions.BaseError, FileNotFoundError) as error:
        # Not chained: a traceback would print the library's text.
        raise _os_error(error, location) from None


def _os_error(error: Exception, location: str) -> OSError:
    text = str(error)
    if _NO_BUCKET.search(text):
        return OSError(errno.ENXIO, "there is no such bucket", location)
    if isinstance(error, FileNotFoundError) or type(error).__name__ == "NotFoundError":
        return FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), location)
    if _METADATA.search(text):
        return PermissionError(errno.EACCES, "this process has no credentials for it", location)
    reason = reason_of(text)
    if _DENIED.search(text) or type(error).__name__ in ("PermissionDeniedError", "UnauthenticatedError"):
        return PermissionError(errno.EACCES, f"the store refuses these credentials ({reason})", location)
    return OSError(errno.EDQUOT if _FULL.search(text) else errno.EIO, reason, location)


def reason_of(text: str) -> str:
    """The reason in an error text of the library: code and message of the store, or the last cause."""
    status, code, message = _STATUS.search(text), _CODE.search(text), _MESSAGE.search(text)
    if code or status:
        words = [f"{status[1]} {status[2].strip()}" if status else "", code[1] if code else ""]
        said = f": {message[1]}" if message else ""
        return without_secrets(" ".join(filter(None, words)) + said)
    line = text.split("\n\nDebug source", 1)[0].split("\n", 1)[0]
    return without_secrets(line)[:_MOST_CHARS]


def without_secrets(text: str) -> str:
    """A text without the values of secret variables, and without what stands in a URL besides its path."""
    text = _USER.sub(r"\1", _QUERY.sub(r"\1", text))
    for name, value in os.environ.items():
        if len(value) >= _SHORTEST and (is_secret_name(name) or name.endswith(("_SAS_KEY", "_SAS_TOKEN"))):
            text = text.replace(value, "***")
    return text
