"""The headers that some requests and answers carry, as the OpenAPI document describes them.

They are read and written where they are used. An operation names those it takes and gives, which is all the document
would otherwise lack: no library sees a header that a handler reads by itself.
"""

from __future__ import annotations

from typing import Any

import msgspec

from rookery.domain.chat.messages import MAX_CLIENT_ID_CHARS
from rookery.store.authorized.rights import MAX_REASON_CHARS, MIN_REASON_CHARS
from rookery.store.db.idempotency import MAX_KEY_CHARS


class Header(msgspec.Struct, frozen=True):
    """`schema` is the JSON Schema of its value."""

    name: str
    description: str
    schema: dict[str, Any]


def _text(**bounds: Any) -> dict[str, Any]:
    return {"type": "string", **bounds}


# Of requests
BREAK_GLASS = Header(
    "Rookery-Break-Glass",
    "Why an administrator reads somebody else's chat, where the settings ask for a reason. The owner sees it.",
    _text(minLength=MIN_REASON_CHARS, maxLength=MAX_REASON_CHARS),
)
IDEMPOTENCY_KEY = Header(
    "Idempotency-Key",
    "A repeat with the same key and body is answered as the first was, for 24 hours.",
    _text(minLength=1, maxLength=MAX_KEY_CHARS),
)
CLIENT_ID = Header(
    "Idempotency-Key",
    "Taken for `client_id` when the body has none.",
    _text(minLength=1, maxLength=MAX_CLIENT_ID_CHARS),
)
FILE_NAME = Header("Content-Disposition", "The name of the file: `attachment; filename*=UTF-8''a%20name.txt`.", _text())
RANGE = Header("Range", "One range of bytes: `bytes=0-1023`. Several are answered by the whole file.", _text())
IF_RANGE = Header("If-Range", "The `ETag` that the range is of; if it is another, the whole file comes.", _text())
IF_NONE_MATCH = Header("If-None-Match", "The `ETag` that the client has; 304 if it is still the same.", _text())
LAST_EVENT_ID = Header("Last-Event-ID", "The last `id` that was received; it counts before `after_id`.", _text())

# Of answers
LOCATION = Header("Location", "Where the new thing is.", _text())
REPLAYED = Header("Idempotency-Replayed", "There, and `true`, when the answer is that of an earlier request.", _text())
ETAG = Header("ETag", "Names the content of the file.", _text())
CONTENT_RANGE = Header("Content-Range", "Which bytes these are, and of how many.", _text())
RETRY_AFTER = Header("Retry-After", "After how many seconds to try again.", {"type": "integer", "minimum": 0})
