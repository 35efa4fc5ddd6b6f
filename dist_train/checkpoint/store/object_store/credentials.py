"""Whether this process has credentials for S3, and the options of a client; nothing is stored."""

from __future__ import annotations

import os
import socket
from collections.abc import Callable
from datetime import timedelta
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from dist_train.config.bucket_url import BucketUrl
from dist_train.errors import ConfigError

if TYPE_CHECKING:
    from obstore.store import ClientConfig, RetryConfig

_INSTANCE = "http://169.254.169.254"
_INSTANCE_ANSWERS_S = 2.0
# One of these, and the library finds the rest.
_GIVEN = (
    "AWS_ACCESS_KEY_ID",
    "AWS_WEB_IDENTITY_TOKEN_FILE",
    "AWS_CONTAINER_CREDENTIALS_RELATIVE_URI",
    "AWS_CONTAINER_CREDENTIALS_FULL_URI",
)
# A part of an upload must pass within this time; a request that fails is sent again for so long.
_REQUEST_S = 120
_RETRY_S = 120


def client_options(*endpoints: str) -> ClientConfig:
    """Options of the library's HTTP client.

    Args:
        endpoints: variables that may name a server of one's own; one without TLS is used only if it is so
            named.
    """
    plain = any(os.environ.get(name, "").lower().startswith("http://") for name in endpoints)
    return {
        "timeout": timedelta(seconds=_REQUEST_S),
        "connect_timeout": timedelta(seconds=10),
        "allow_http": plain or _is_true("AWS_ALLOW_HTTP"),
    }


def retries() -> RetryConfig:
    """How often and how long the library repeats a request that a server has failed."""
    return {
        "max_retries": 10,
        "retry_timeout": timedelta(seconds=_RETRY_S),
        "backoff": {
            "init_backoff": timedelta(milliseconds=100),
            "max_backoff": timedelta(seconds=15),
            "base": 2,
        },
    }


def s3_provider(url: BucketUrl) -> Callable[[], Any] | None:
    """What gives the credentials for S3; None where the library finds them itself.

    Raises:
        ConfigError: there are none.
    """
    if any(os.environ.get(name) for name in _GIVEN) or _is_true("AWS_SKIP_SIGNATURE"):
        return None
    if (provider := _from_profile()) is not None:
        return provider
    if _instance_answers():
        return None
    raise ConfigError(
        f"this process has no credentials for {url}",
        cause="AWS_ACCESS_KEY_ID is not set, and neither a role (AWS_WEB_IDENTITY_TOKEN_FILE, "
        "AWS_CONTAINER_CREDENTIALS_*) nor an instance gives any; profiles are read where boto3 is installed",
        hint="set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY for the job (on a cluster: --secret NAME), or "
        "give its nodes a role",
    )


def _from_profile() -> Callable[[], Any] | None:
    """The chain of boto3 with its profiles and single sign-on, where boto3 is installed."""
    try:
        import boto3
        from obstore.auth.boto3 import Boto3CredentialProvider
    except ImportError:
        return None
    session = boto3.session.Session()
    return None if session.get_credentials() is None else Boto3CredentialProvider(session)


def _instance_answers() -> bool:
    if _is_true("AWS_EC2_METADATA_DISABLED"):
        return False
    parts = urlsplit(os.environ.get("AWS_METADATA_ENDPOINT") or _INSTANCE)
    try:
        with socket.create_connection((parts.hostname or "", parts.port or 80), _INSTANCE_ANSWERS_S):
            return True
    except OSError:
        return False


def _is_true(variable: str) -> bool:
    return os.environ.get(variable, "").lower() in ("1", "true", "yes", "on")
