"""Checkpoints in S3, or behind any endpoint that speaks its protocol: s3://BUCKET/PREFIX."""

from __future__ import annotations

from typing import Any

from dist_train.checkpoint.store.object_store.credentials import client_options, retries, s3_provider
from dist_train.checkpoint.store.object_store.object_storage import ObjectStorage
from dist_train.config.bucket_url import BucketUrl

# Checked before anything starts (registry.missing).
REQUIRES = {"obstore": "pip install 'dist-train[object-store]'"}


class S3Storage(ObjectStorage):
    """A prefix of a bucket; region, endpoint and credentials come from the environment (AWS_*)."""

    name = "s3"

    def connect(self, url: BucketUrl) -> Any:
        from obstore.store import S3Store

        return S3Store(
            url.bucket,
            prefix=url.prefix or None,
            client_options=client_options("AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT_URL", "AWS_ENDPOINT"),
            retry_config=retries(),
            credential_provider=s3_provider(url),
            # S3's request for many at once is not every server's.
            disable_bulk_delete=True,
        )


STORAGE = S3Storage
