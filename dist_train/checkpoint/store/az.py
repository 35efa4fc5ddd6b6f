"""Checkpoints in Azure Blob Storage: az://CONTAINER/PREFIX, of the account AZURE_STORAGE_ACCOUNT_NAME."""

from __future__ import annotations

from typing import Any

from dist_train.checkpoint.store.object_store.credentials import client_options, retries
from dist_train.checkpoint.store.object_store.object_storage import ObjectStorage
from dist_train.config.bucket_url import BucketUrl

# Checked before anything starts (registry.missing).
REQUIRES = {"obstore": "pip install 'dist-train[object-store]'"}


class AzureStorage(ObjectStorage):
    """A prefix of a container; account and credentials come from the environment (AZURE_*)."""

    name = "az"

    def connect(self, url: BucketUrl) -> Any:
        from obstore.store import AzureStore

        return AzureStore(
            url.bucket,
            prefix=url.prefix or None,
            client_options=client_options("AZURE_ENDPOINT", "AZURE_STORAGE_ENDPOINT"),
            retry_config=retries(),
        )


STORAGE = AzureStorage
