"""Long texts cut in the middle: what went wrong stands at the head, where at the tail."""

from __future__ import annotations


def shorten_text(text: str, limit: int, whole: str | None = None) -> str:
    """Cut the middle out of a text of more than `limit` characters, and say how much is left out.

    Args:
        limit: characters that are kept, half of them of the head and half of the tail.
        whole: the file that has all of it, to be named.
    """
    if len(text) <= limit:
        return text
    tail = limit // 2
    head = limit - tail
    where = f": all are in {whole}" if whole else ""
    return f"{text[:head]} … [{len(text) - limit:,} characters left out{where}] … {text[len(text) - tail :]}"
