"""Long texts cut in the middle: what went wrong stands at the head, where at the tail."""

from __future__ import annotations


def shorten_text(text: str, limit: int) -> str:
    """Cut the middle out of a text of more than `limit` characters, and say how much is left out.

    Args:
        limit: characters that are kept, half of them of the head and half of the tail.
    """
    if len(text) <= limit:
        return text
    tail = limit // 2
    head = limit - tail
    return f"{text[:head]} … [{len(text) - limit:,} characters left out] … {text[len(text) - tail :]}"
