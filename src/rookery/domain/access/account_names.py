"""The one form in which names of accounts are stored, looked for and counted."""

from __future__ import annotations

import unicodedata


def normal_name(name: str) -> str:
    """A username or email address without case, outer whitespace and differences of composition or width.

    It is made here and not by the database, whose `lower()` depends on its locale and does not compose characters.
    Sorting combining marks takes quadratic time, so the caller bounds the length first.
    """
    folded = unicodedata.normalize("NFKC", name).casefold()
    # Folding may leave characters that compose, and composing may leave a space at an end.
    return unicodedata.normalize("NFKC", folded).strip()
