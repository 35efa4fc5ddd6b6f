"""Recognise environment variables whose values must not be written into a run's files."""

from __future__ import annotations

import re

# Whole words only: TOKENIZERS_PARALLELISM is no secret.
_SECRET = re.compile(
    r"(?:^|_)(?:TOKEN|SECRET|PASSWORD|PASSWD|CREDENTIALS?|API_?KEY|ACCESS_?KEY|PRIVATE_?KEY)(?:_|$)"
)


def is_secret_name(name: str) -> bool:
    """True for names like HF_TOKEN, WANDB_API_KEY, AWS_SECRET_ACCESS_KEY."""
    return _SECRET.search(name.upper()) is not None
