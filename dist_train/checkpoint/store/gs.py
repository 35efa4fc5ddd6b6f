"""Checkpoints in Google Cloud Storage: gs://BUCKET/PREFIX."""

from __future__ import annotations

from typing import Any

from dist_train.checkpoint.store.object_store.credentials import client_options, retries
from dist_train.checkpoint.store.object_store.object_storage import ObjectStorage
from dist_train.config.bucket_url import BucketUrl

# Checked before anything starts (registry.missing).
REQUIRES = {"obstore": "pip install 'dist-train[object-store]'"}


class GoogleStorage(ObjectStorage):
    """A prefix of a bucket; credentials are the application's default ones (GOOGLE_*)."""

    name = "gs"

    def connect(self, url: BucketUrl) -> Any:
        from obstore.store import GCSStore

        return GCSStore(
            url.bucket,
            prefix=url.prefix or None,
            client_options=client_options(),
            retry_config=retries(),
        )


STORAGE = GoogleStorage
