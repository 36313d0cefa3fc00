"""Files for messages: upload, download and delete."""

from __future__ import annotations

import asyncio
from pathlib import Path
from urllib.parse import quote
from uuid import UUID

from rookery.client.http import Http, path
from rookery.client.models import DownloadUrl, File

# Ten megabytes over a slow line.
TRANSFER_SECONDS = 300.0
UNKNOWN_TYPE = "application/octet-stream"


class AsyncFiles:
    """`client.files`."""

    def __init__(self, http: Http) -> None:
        self._http = http

    async def upload(self, data: bytes | Path, *, name: str | None = None, mime_type: str = UNKNOWN_TYPE) -> File:
        """Upload a file, at most 10 MiB. Without a type, the server detects it from the bytes.

        Use it in a message with `content.file_part(file.id)`.
        """
        if isinstance(data, Path):
            name = name or data.name
            data = await asyncio.to_thread(data.read_bytes)
        if not name:
            raise ValueError("A file that is given as bytes needs a name.")
        headers = {
            "Content-Type": mime_type,
            "Content-Disposition": f"attachment; filename*=UTF-8''{quote(name, safe='')}",
        }
        answer = await self._http.send(
            "POST", "/files", content=data, headers=headers, timeout_seconds=TRANSFER_SECONDS
        )
        return self._http.decode(File, answer)

    async def download(self, file_id: UUID | str) -> bytes:
        answer = await self._http.send("GET", path("files", file_id), timeout_seconds=TRANSFER_SECONDS)
        return answer.body

    async def download_url(self, file_id: UUID | str) -> DownloadUrl:
        """Return an address that downloads the file without a token, for five minutes."""
        return await self._http.write(DownloadUrl, "POST", path("files", file_id, "download-url"), is_repeatable=True)

    async def delete(self, file_id: UUID | str) -> None:
        """Delete a file that no chat uses."""
        await self._http.send("DELETE", path("files", file_id))
