"""URLs of places in an object store, parsed without a library: s3://BUCKET/PREFIX, gs://…, az://…"""

from __future__ import annotations

import re
from dataclasses import dataclass

from dist_train.errors import ConfigError

# The schemes that are ours; a plug-in may register others, whose URLs are its own matter.
BUCKET_SCHEMES = ("s3", "gs", "az")
_URL = re.compile(r"([A-Za-z][A-Za-z0-9+.-]*)://(.*)", re.DOTALL)
_BUCKET = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")


@dataclass(frozen=True)
class BucketUrl:
    """A place in an object store.

    Args:
        scheme: `s3`, `gs` or `az`.
        bucket: the bucket; of `az` the container.
        prefix: what all keys begin with, without slashes around it; may be empty.
    """

    scheme: str
    bucket: str
    prefix: str

    def __str__(self) -> str:
        return f"{self.scheme}://{self.bucket}" + (f"/{self.prefix}" if self.prefix else "")


def scheme_of(location: str) -> str | None:
    """The scheme of a URL; None for a path."""
    match = _URL.match(location)
    return match[1].lower() if match else None


def parse_bucket_url(url: str) -> BucketUrl:
    """Parse the URL of a place in an object store.

    Raises:
        ConfigError: it names no bucket, holds credentials, or a key that stores treat in different ways.
            What might be a credential is not in the error's text.
    """
    match = _URL.match(url)
    scheme = match[1].lower() if match else ""
    rest = match[2] if match else ""
    shown = f"{scheme}://…"
    place = f"{scheme}://BUCKET/PREFIX"
    if "@" in rest.partition("/")[0]:
        raise ConfigError(
            f"the URL {shown}@… has credentials in it",
            cause="a URL stands in records and logs",
            hint=f"write {place}, and give the credentials by the environment or the provider's own chain",
        )
    if "?" in rest or "#" in rest:
        raise ConfigError(
            f"the URL {shown} has a `?` or `#` in it",
            cause="a signed URL is a credential, and URLs stand in records and logs",
            hint=f"write {place}, and give the credentials by the environment or the provider's own chain",
        )
    bucket, _, path = rest.partition("/")
    if not bucket:
        raise ConfigError(f"{url} names no bucket", hint=f"write {place}")
    if not _BUCKET.fullmatch(bucket):
        raise ConfigError(f"{bucket!r} in {url} is no name of a bucket", hint=f"write {place}")
    prefix = path.rstrip("/")
    parts = [part for part in prefix.split("/") if part not in ("", ".", "..")]
    if prefix and "/".join(parts) != prefix:
        raise ConfigError(
            f"{url} has an empty part, `.` or `..` in its path",
            cause="a store takes these as names, and tools do not",
            hint=f"write {scheme}://{bucket}/{'/'.join(parts)}",
        )
    if any(ord(char) < 0x20 for char in prefix):
        raise ConfigError(f"{url!r} has a control character in it", hint=f"write {place}")
    return BucketUrl(scheme, bucket, prefix)
