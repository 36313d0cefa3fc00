"""Request and response headers as the OpenAPI document describes them.

Handlers read and write headers themselves. Operations declare the headers that they take and return, because no library
can detect which headers a handler reads.
"""

from __future__ import annotations

from typing import Any

import msgspec

from rookery.domain.chat.messages import MAX_CLIENT_ID_CHARS
from rookery.store.authorized.rights import MAX_REASON_CHARS, MIN_REASON_CHARS
from rookery.store.db.idempotency import MAX_KEY_CHARS


class Header(msgspec.Struct, frozen=True):
    """One documented header. `schema` is the JSON Schema of its value."""

    name: str
    description: str
    schema: dict[str, Any]


def _text(**bounds: Any) -> dict[str, Any]:
    return {"type": "string", **bounds}


# Request headers
BREAK_GLASS = Header(
    "Rookery-Break-Glass",
    "The reason why an administrator reads another user's chat, if the settings require one. The owner sees it.",
    _text(minLength=MIN_REASON_CHARS, maxLength=MAX_REASON_CHARS),
)
IDEMPOTENCY_KEY = Header(
    "Idempotency-Key",
    "For 24 hours, a repeated request with the same key and body gets the first response again.",
    _text(minLength=1, maxLength=MAX_KEY_CHARS),
)
CLIENT_ID = Header(
    "Idempotency-Key",
    "Used as `client_id` when the body has none.",
    _text(minLength=1, maxLength=MAX_CLIENT_ID_CHARS),
)
FILE_NAME = Header("Content-Disposition", "The name of the file: `attachment; filename*=UTF-8''a%20name.txt`.", _text())
RANGE = Header(
    "Range", ("One range of bytes: `bytes=0-1023`. A request for several ranges gets the whole file."), _text()
)
IF_RANGE = Header(
    "If-Range",
    ("The `ETag` of the file that the range belongs to. If the file has another one, the whole file is sent."),
    _text(),
)
IF_NONE_MATCH = Header(
    "If-None-Match", ("The `ETag` that the client has. The response is 304 if it is still current."), _text()
)
LAST_EVENT_ID = Header(
    "Last-Event-ID", ("The last `id` that was received. It takes precedence over `after_id`."), _text()
)

# Response headers
LOCATION = Header("Location", "The address of the created resource.", _text())
REPLAYED = Header(
    "Idempotency-Replayed",
    ("Present, with the value `true`, when the response is that of an earlier request."),
    _text(),
)
ETAG = Header("ETag", "Identifies the content of the file.", _text())
CONTENT_RANGE = Header("Content-Range", "The range of bytes in this response, and the size of the file.", _text())
RETRY_AFTER = Header(
    "Retry-After", ("The number of seconds to wait before the next try."), {"type": "integer", "minimum": 0}
)
