"""Types of uploaded files, detected from their bytes, so that a file is not served with a wrong type.

SVG is refused, because it can contain scripts that run where it is displayed.
"""

from __future__ import annotations

import re
import struct
from collections.abc import Iterator

from msgspec import DecodeError, json

from rookery.domain.chat.errors import InvalidInput
from rookery.domain.content.attachments import cut_utf8, plain_type

MAX_NAME_BYTES = 255
MAX_PIXELS = 40_000_000

PNG, JPEG, GIF, WEBP = "image/png", "image/jpeg", "image/gif", "image/webp"
SVG = "image/svg+xml"
PLAIN, MARKDOWN, CSV, JSON, PDF = "text/plain", "text/markdown", "text/csv", "application/json", "application/pdf"
ALLOWED_TYPES = frozenset({PNG, JPEG, GIF, WEBP, PLAIN, MARKDOWN, CSV, JSON, PDF})
# The type of a file whose type is unknown.
UNKNOWN = "application/octet-stream"

_REFINED = frozenset({MARKDOWN, CSV, JSON})
_BY_EXTENSION = {".md": MARKDOWN, ".markdown": MARKDOWN, ".csv": CSV, ".json": JSON}

_CONTROL = re.compile("[\0-\x1f\x7f-\x9f\u2028\u2029\u202a-\u202e\u2066-\u2069\ud800-\udfff]")
_SEPARATORS = re.compile(r"[/\\]")
# The parts that XML allows before the root element.
_BEFORE_ROOT = re.compile(r"\s+|<\?.*?\?>|<!--.*?-->|<!DOCTYPE[^>\[]*(?:\[.*?\]\s*)?>", re.DOTALL | re.IGNORECASE)
_SVG_ROOT = re.compile(r"<(?:[\w.-]+:)?svg[\s/>]", re.IGNORECASE)
# Control characters that text does not have: all but tab, line ends, form feed, and the escape of colored output.
_NOT_TEXT = re.compile(rb"[\0-\x08\x0e-\x1a\x1c-\x1f]")


def checked_type(data: bytes, *, name: str, declared: str | None) -> str:
    """Return the type of a file. Raises `InvalidInput` if the type is not accepted or differs from the declared one."""
    if _is_svg(data):
        raise InvalidInput("file", "SVG files are not accepted, because they can contain scripts. Send a PNG.")
    found = _detect(data, name)
    if found is None:
        accepted = ", ".join(sorted(ALLOWED_TYPES))
        raise InvalidInput("file", f"Files of this type are not accepted. Accepted types: {accepted}.")
    said = plain_type(declared or UNKNOWN)
    if not _agrees(said, found):
        raise InvalidInput("Content-Type", f"The file is declared as {said}, but its bytes are {found}.")
    if found.startswith("image/"):
        _check_size(data, found)
    return found


def detected_type(data: bytes, *, name: str) -> str:
    """Return the type of a file that a tool attaches, which may be any type."""
    if _is_svg(data):
        return SVG
    return _detect(data, name) or UNKNOWN


def _agrees(said: str, found: str) -> bool:
    if said in (found, UNKNOWN) or (said == PLAIN and found in _REFINED):
        return True
    # Text types that are not detected, such as source code.
    return found == PLAIN and said.startswith("text/") and said not in ALLOWED_TYPES


def cleaned_name(name: str) -> str:
    """Return the name without a path and invisible characters, with at most 255 bytes."""
    name = _CONTROL.sub("", _SEPARATORS.sub("", name)).strip()
    name = cut_utf8(name.encode(), MAX_NAME_BYTES).decode().strip()
    if not name:
        raise InvalidInput("filename", "The file needs a name: Content-Disposition: attachment; filename*=UTF-8''name.")
    return name


def is_text(media_type: str) -> bool:
    return plain_type(media_type).startswith("text/") or plain_type(media_type) == JSON


def is_shown_inline(media_type: str) -> bool:
    """Return whether a browser may display the file. Other files are downloaded."""
    return media_type in ALLOWED_TYPES and media_type != PDF


def _detect(data: bytes, name: str) -> str | None:
    if data.startswith(b"\x89PNG\r\n\x1a\n"):
        return PNG
    if data.startswith(b"\xff\xd8\xff"):
        return JPEG
    if data.startswith((b"GIF87a", b"GIF89a")):
        return GIF
    if data.startswith(b"RIFF") and data[8:12] == b"WEBP":
        return WEBP
    if data.startswith(b"%PDF-"):
        return PDF
    return _detect_text(data, name)


def _detect_text(data: bytes, name: str) -> str | None:
    if _NOT_TEXT.search(data):
        return None
    try:
        text = data.decode()
    except UnicodeDecodeError:
        return None
    dot = name.rfind(".")
    refined = _BY_EXTENSION.get(name[dot:].casefold(), PLAIN) if dot >= 0 else PLAIN
    if refined == JSON and not _is_json(text):
        return PLAIN
    return refined


def _is_json(text: str) -> bool:
    try:
        json.decode(text.removeprefix("\ufeff"))
    except (DecodeError, ValueError, RecursionError):
        return False
    return True


def _is_svg(data: bytes) -> bool:
    """Return whether the root element is `svg`, in an encoding that browsers recognize."""
    is_wide = data[:2] in (b"\xff\xfe", b"\xfe\xff")
    if not is_wide and not data.removeprefix(b"\xef\xbb\xbf").lstrip().startswith(b"<"):
        return False
    encoding = "utf-16" if is_wide else "utf-8-sig"
    text = data.decode(encoding, "replace")
    place = 0
    while skipped := _BEFORE_ROOT.match(text, place):
        place = skipped.end()
    return _SVG_ROOT.match(text, place) is not None


def _check_size(data: bytes, media_type: str) -> None:
    """Raise `InvalidInput` if the image has too many pixels: it may need much more memory than its size suggests."""
    size = {PNG: _png_size, JPEG: _jpeg_size, GIF: _gif_size, WEBP: _webp_size}[media_type](data)
    if size is None:
        raise InvalidInput("file", "The image is damaged: its size cannot be read.")
    width, height = size
    if width * height > MAX_PIXELS:
        raise InvalidInput(
            "file",
            f"The image has {width} x {height} pixels; at most {MAX_PIXELS // 1_000_000} megapixels are accepted.",
        )


def _png_size(data: bytes) -> tuple[int, int] | None:
    if len(data) < 24 or data[12:16] != b"IHDR":
        return None
    return struct.unpack(">II", data[16:24])


def _gif_size(data: bytes) -> tuple[int, int] | None:
    return struct.unpack("<HH", data[6:10]) if len(data) >= 10 else None


def _jpeg_size(data: bytes) -> tuple[int, int] | None:
    for marker, segment in _jpeg_segments(data):
        # SOF0 to SOF15, without the three markers that have another meaning.
        if 0xC0 <= marker <= 0xCF and marker not in (0xC4, 0xC8, 0xCC) and len(segment) >= 5:
            height, width = struct.unpack(">HH", segment[1:5])
            return width, height
    return None


def _jpeg_segments(data: bytes) -> Iterator[tuple[int, bytes]]:
    place = 2
    while place + 4 <= len(data) and data[place] == 0xFF:
        marker = data[place + 1]
        if marker == 0xFF:  # padding
            place += 1
            continue
        if marker == 0x01 or 0xD0 <= marker <= 0xD9:  # has no segment
            place += 2
            continue
        length = int.from_bytes(data[place + 2 : place + 4], "big")
        yield marker, data[place + 4 : place + 2 + length]
        place += 2 + max(length, 2)


def _webp_size(data: bytes) -> tuple[int, int] | None:
    kind, rest = data[12:16], data[20:]
    if kind == b"VP8X" and len(rest) >= 10:
        return 1 + int.from_bytes(rest[4:7], "little"), 1 + int.from_bytes(rest[7:10], "little")
    if kind == b"VP8 " and len(rest) >= 10 and rest[3:6] == b"\x9d\x01\x2a":
        width, height = struct.unpack("<HH", rest[6:10])
        return width & 0x3FFF, height & 0x3FFF
    if kind == b"VP8L" and len(rest) >= 5 and rest[0] == 0x2F:
        bits = int.from_bytes(rest[1:5], "little")
        return 1 + (bits & 0x3FFF), 1 + (bits >> 14 & 0x3FFF)
    return None
