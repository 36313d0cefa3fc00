"""Folders, in which users order their own chats: the rules for names and colors."""

from __future__ import annotations

import unicodedata
from enum import StrEnum

from rookery.domain.chat.errors import InvalidInput
from rookery.domain.content import invisible_characters

MAX_NAME_CHARS = 60
# Chosen: more than a sidebar can show.
MAX_FOLDERS = 200


class FolderColor(StrEnum):
    GRAY = "gray"
    BLUE = "blue"
    GREEN = "green"
    YELLOW = "yellow"
    RED = "red"
    PURPLE = "purple"


def checked_name(name: str) -> str:
    """Return the name in stored form: without invisible characters, with single spaces. Raises `InvalidInput`."""
    shown = unicodedata.normalize("NFC", " ".join(invisible_characters.clean(name).split()))
    if any(unicodedata.category(char) in ("Cc", "Cs") for char in shown):
        raise InvalidInput("name", "A name cannot contain control characters.")
    if not 1 <= len(shown) <= MAX_NAME_CHARS:
        raise InvalidInput("name", f"A name has 1 to {MAX_NAME_CHARS} visible characters.")
    return shown
