"""The normal form of usernames and email addresses, in which they are stored and compared."""

from __future__ import annotations

import unicodedata


def normal_name(name: str) -> str:
    """Return the normal form of a name: one case, composed characters of normal width, no outer whitespace.

    PostgreSQL's `lower()` is not used, because it depends on the locale and does not compose characters. The time is
    quadratic in the number of combining marks, so the caller checks the length first.
    """
    folded = unicodedata.normalize("NFKC", name).casefold()
    # Case folding may leave characters that can be composed, and their composition may leave outer spaces.
    return unicodedata.normalize("NFKC", folded).strip()
