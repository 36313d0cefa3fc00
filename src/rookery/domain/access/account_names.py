"""The normal form of account names: the form in which they are stored, looked up and counted."""

from __future__ import annotations

import unicodedata


def normal_name(name: str) -> str:
    """Return a username or email address without differences of case, outer whitespace, composition or width.

    This is not done in the database, whose `lower()` depends on its locale and does not compose characters. Sorting
    combining marks takes quadratic time, so the caller bounds the length first.
    """
    folded = unicodedata.normalize("NFKC", name).casefold()
    # Folding may leave characters that can be composed, and composing may leave a space at either end.
    return unicodedata.normalize("NFKC", folded).strip()
