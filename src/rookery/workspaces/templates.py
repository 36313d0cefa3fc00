"""Templates as folders and archives: reads, checks and packs them. The hash of its files identifies a revision.

An archive is untrusted: it is unpacked in memory only, and links, devices and paths outside of it are refused.
"""

from __future__ import annotations

import gzip
import hashlib
import io
import tarfile
from collections.abc import Iterator, Mapping
from pathlib import Path, PurePosixPath

import msgspec

from rookery.store.workspaces.templates import MAX_ARCHIVE_BYTES
from rookery.workspaces import manifest as manifests
from rookery.workspaces.drivers.driver_interface import Script
from rookery.workspaces.manifest import Manifest, ScriptRef
from rookery.workspaces.template_errors import Problem, TemplateInvalid

MANIFEST, README, FILES = "template.toml", "README.md", "files/"
MAX_README_BYTES = 256 * 1024
MAX_FILES = 2000
MAX_UNPACKED_BYTES = 32 * 1024 * 1024
_IGNORED = frozenset({".git", ".DS_Store", "__pycache__"})


class TemplateFile(msgspec.Struct, frozen=True):
    data: bytes
    is_executable: bool = False


class Packed(msgspec.Struct, frozen=True):
    """A valid template. The same files always give the same revision and archive."""

    manifest: Manifest
    revision: str
    readme: str
    archive: bytes


def read_folder(folder: Path) -> dict[str, TemplateFile]:
    """Return the files of a template's folder. Links are refused."""
    if not folder.is_dir():
        raise TemplateInvalid([Problem(str(folder), "This is not a folder.")])
    found: dict[str, TemplateFile] = {}
    problems: list[Problem] = []
    for path in sorted(folder.rglob("*")):
        relative = path.relative_to(folder)
        if _IGNORED & set(relative.parts):
            continue
        if path.is_symlink() or not (path.is_file() or path.is_dir()):
            problems.append(
                Problem(relative.as_posix(), "Only regular files and folders are allowed; this is a link or a device.")
            )
        elif path.is_file():
            found[relative.as_posix()] = TemplateFile(path.read_bytes(), bool(path.stat().st_mode & 0o100))
    if problems:
        raise TemplateInvalid(problems)
    return found


def read_archive(archive: bytes) -> dict[str, TemplateFile]:
    """Return the files of a tar archive, gzipped or not."""
    if len(archive) > MAX_ARCHIVE_BYTES:
        raise TemplateInvalid([Problem("archive", f"An archive may have at most {MAX_ARCHIVE_BYTES} bytes.")])
    try:
        return _unpacked(archive)
    except (tarfile.TarError, OSError, EOFError, ValueError) as error:
        raise TemplateInvalid([Problem("archive", f"This is not a tar archive: {error}.")]) from None


def _unpacked(archive: bytes) -> dict[str, TemplateFile]:
    found: dict[str, TemplateFile] = {}
    problems: list[Problem] = []
    size = 0
    with tarfile.open(fileobj=io.BytesIO(archive), mode="r:*") as tar:
        for member in tar:
            name = member.name.removeprefix("./")
            path = PurePosixPath(name)
            if member.isdir() or _IGNORED & set(path.parts):
                continue
            if not member.isfile() or path.is_absolute() or ".." in path.parts or not path.parts:
                problems.append(Problem(name[:200], "Only regular files inside of the template are allowed."))
                continue
            size += member.size
            if size > MAX_UNPACKED_BYTES or len(found) >= MAX_FILES:
                limit = f"A template may have at most {MAX_FILES} files with {MAX_UNPACKED_BYTES} bytes."
                raise TemplateInvalid([Problem("archive", limit)])
            reader = tar.extractfile(member)
            assert reader is not None
            found[path.as_posix()] = TemplateFile(reader.read(), bool(member.mode & 0o100))
    if problems:
        raise TemplateInvalid(problems)
    return found


def pack(files: Mapping[str, TemplateFile]) -> Packed:
    """Check the files of a template and pack them. Raise `TemplateInvalid` with all problems."""
    if MANIFEST not in files:
        raise TemplateInvalid([Problem(MANIFEST, "A template needs this file.")])
    problems: list[Problem] = []
    texts = {name: _text(name, files, problems) for name in (MANIFEST, README)}
    if problems:
        raise TemplateInvalid(problems)
    manifest = manifests.parse(texts[MANIFEST], files=files.keys())
    for ref in (manifest.startup, manifest.shutdown):
        if ref is not None:
            _text(ref.script, files, problems)
    archive = _archived(files)
    if len(texts[README].encode()) > MAX_README_BYTES:
        problems.append(Problem(README, f"This may have at most {MAX_README_BYTES} bytes."))
    if len(archive) > MAX_ARCHIVE_BYTES:
        problems.append(Problem("archive", f"The packed template has more than {MAX_ARCHIVE_BYTES} bytes."))
    if problems:
        raise TemplateInvalid(problems)
    return Packed(manifest, revision_of(files), texts[README], archive)


def revision_of(files: Mapping[str, TemplateFile]) -> str:
    """Return the SHA-256 of the sorted files: their names, content and executable flags."""
    digest = hashlib.sha256()
    for name in sorted(files):
        file = files[name]
        digest.update(f"{name}\0{int(file.is_executable)}\0{len(file.data)}\0".encode())
        digest.update(file.data)
    return digest.hexdigest()


def script(files: Mapping[str, TemplateFile], ref: ScriptRef | None) -> Script | None:
    """Return the script of a reference, with its text; None if there is none."""
    if ref is None or ref.script not in files:
        return None
    return Script(text=files[ref.script].data.decode(errors="replace"), timeout_s=ref.timeout_s)


def home_files(files: Mapping[str, TemplateFile]) -> bytes | None:
    """Return the files below `files/` as an archive for the home; None if there are none."""
    inside = {name.removeprefix(FILES): file for name, file in files.items() if name.startswith(FILES)}
    return _archived(inside) if inside else None


def _text(name: str, files: Mapping[str, TemplateFile], problems: list[Problem]) -> str:
    file = files.get(name)
    if file is None:
        return ""
    try:
        text = file.data.decode()
    except UnicodeDecodeError:
        text = "\0"
    if "\0" in text:
        problems.append(Problem(name, "This is not UTF-8 text."))
    return text


def _archived(files: Mapping[str, TemplateFile]) -> bytes:
    """Return a gzipped tar archive without times and owners, so that the same files give the same bytes."""
    raw = io.BytesIO()
    with tarfile.open(fileobj=raw, mode="w", format=tarfile.PAX_FORMAT) as tar:
        for name, file in _sorted(files):
            info = tarfile.TarInfo(name)
            info.size = len(file.data)
            info.mode = 0o755 if file.is_executable else 0o644
            tar.addfile(info, io.BytesIO(file.data))
    return gzip.compress(raw.getvalue(), mtime=0)


def _sorted(files: Mapping[str, TemplateFile]) -> Iterator[tuple[str, TemplateFile]]:
    for name in sorted(files):
        yield name, files[name]
