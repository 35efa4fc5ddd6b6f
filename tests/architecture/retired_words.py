"""Words that the source no longer uses, each with the field's word for it and the reason.

An engineer who knows torchrun, Slurm or Kubernetes must be able to grep for what they know. These words were
a dialect of this project's own: nobody outside it would have searched for them.
"""

from __future__ import annotations

import re
from dataclasses import dataclass


@dataclass(frozen=True)
class Retired:
    """One word: its pattern (whole words, any case), what stands in its place, and why."""

    pattern: str
    instead: str
    reason: str

    def found_in(self, text: str) -> bool:
        """Whether the text has the word."""
        return re.search(rf"(?<![A-Za-z])(?:{self.pattern})(?![A-Za-z])", text, re.IGNORECASE) is not None


# In identifiers (split at underscores and capitals), docstrings, comments and printed text.
EVERYWHERE = (
    Retired("mend|mends|mended|mending", "hint, fix, repair", "pip, rustc and kubectl print a hint"),
    Retired("guilty|guilt", "root cause", "the term of torch elastic's and of every incident report"),
    Retired(
        "victims?", "secondary failure", "as torch elastic says; the record's key and class stay (version 1)"
    ),
    Retired("roll[ -]?call", "membership check", "what distributed systems call it"),
    Retired("anew", "again", "plain English"),
    Retired("autopsy|post-mortem", "classify failure", "a metaphor"),
    Retired("random streams?", "RNG state", "torch.get_rng_state"),
    Retired("died of|die of|dies of", "failed with", "a metaphor"),
)
# In identifiers alone: as English words in a sentence they are fine.
IDENTIFIERS = (
    Retired("told", "what it is: settings, error, nodes", "a participle names nothing"),
    Retired("standing", "state", "JobState, PodStatus"),
    Retired("sight|sighting", "snapshot", "what a reader of several records gets"),
    Retired("tally", "metric sums", "what it holds"),
    Retired("lap|stretch", "interval", "what is timed"),
    Retired("extent", "horizon or total", "what it holds"),
    Retired("rooms?", "package", "Python's word"),
    Retired("hello|hellos", "handshake", "the term of network protocols"),
    Retired("outlive|outlived|deaf|blame|blamed|rehearsal|parcel", "see CONTRIBUTING.md", "a metaphor"),
)
