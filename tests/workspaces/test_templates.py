"""Templates as folders and archives."""

from __future__ import annotations

import gzip
import io
import tarfile
from pathlib import Path

import pytest

from rookery.store.workspaces.templates import MAX_ARCHIVE_BYTES
from rookery.workspaces import templates
from rookery.workspaces.template_errors import TemplateInvalid
from rookery.workspaces.templates import TemplateFile

FILES = {
    "template.toml": TemplateFile(b'name = "t"'),
    "README.md": TemplateFile(b"# T"),
    "startup.sh": TemplateFile(b"echo hi", is_executable=True),
    "files/.profile": TemplateFile(b"export A=1"),
}


def archive_of(*members: tarfile.TarInfo) -> bytes:
    raw = io.BytesIO()
    with tarfile.open(fileobj=raw, mode="w") as tar:
        for member in members:
            tar.addfile(member, io.BytesIO(b"x" * member.size))
    return raw.getvalue()


def member(name: str, kind: bytes = tarfile.REGTYPE, *, size: int = 0, link: str = "") -> tarfile.TarInfo:
    made = tarfile.TarInfo(name)
    made.type, made.size, made.linkname = kind, size, link
    return made


def test_folder_and_archive_give_the_same_revision(tmp_path: Path) -> None:
    for name, file in FILES.items():
        path = tmp_path / name
        path.parent.mkdir(exist_ok=True)
        path.write_bytes(file.data)
        path.chmod(0o755 if file.is_executable else 0o644)
    (tmp_path / ".git").mkdir()
    (tmp_path / ".git" / "config").write_text("x")

    packed = templates.pack(templates.read_folder(tmp_path))

    assert packed == templates.pack(FILES)
    assert templates.read_archive(packed.archive) == FILES
    assert templates.pack(templates.read_archive(packed.archive)).revision == packed.revision
    assert packed.readme == "# T"


@pytest.mark.parametrize("name", ["README.md", "startup.sh", "files/.profile"])
def test_every_file_counts_for_the_revision(name: str) -> None:
    changed = {**FILES, name: TemplateFile(FILES[name].data + b"!", FILES[name].is_executable)}
    renamed = {("x" + key if key == name else key): file for key, file in FILES.items()}

    assert len({templates.revision_of(each) for each in (FILES, changed, renamed)}) == 3


def test_parts_of_a_template_for_drivers() -> None:
    manifest = templates.pack(FILES).manifest

    script = templates.script(FILES, manifest.startup)
    home = templates.home_files(FILES)

    assert script is not None
    assert (script.text, script.timeout_s) == ("echo hi", 600)
    assert home is not None
    assert templates.read_archive(home) == {".profile": FILES["files/.profile"]}
    assert templates.home_files({"template.toml": FILES["template.toml"]}) is None


@pytest.mark.parametrize(
    "archive",
    [
        b"no archive",
        gzip.compress(b"no archive"),
        archive_of(member("../escape", size=1)),
        archive_of(member("/etc/passwd", size=1)),
        archive_of(member("link", tarfile.SYMTYPE, link="/etc/passwd")),
        archive_of(member("pipe", tarfile.FIFOTYPE)),
        archive_of(*(member(f"f{number}") for number in range(templates.MAX_FILES + 1))),
        b"\0" * (MAX_ARCHIVE_BYTES + 1),
    ],
    ids=["text", "gzip", "above", "absolute", "link", "device", "many", "large"],
)
def test_archive_that_cannot_be_trusted_is_refused(archive: bytes) -> None:
    with pytest.raises(TemplateInvalid):
        templates.read_archive(archive)


def test_bomb_is_refused_without_unpacking_it() -> None:
    header = member("bomb", size=2**33).tobuf()

    with pytest.raises(TemplateInvalid, match="at most"):
        templates.read_archive(gzip.compress(header))


@pytest.mark.parametrize(
    ("files", "field"),
    [
        ({}, "template.toml"),
        ({"template.toml": TemplateFile(b"\xff")}, "template.toml"),
        ({**FILES, "README.md": TemplateFile(b"\xff")}, "README.md"),
        ({**FILES, "startup.sh": TemplateFile(b"\xff")}, "startup.sh"),
        ({**FILES, "README.md": TemplateFile(b"x" * (templates.MAX_README_BYTES + 1))}, "README.md"),
    ],
)
def test_unusable_template_says_what_is_wrong(files: dict[str, TemplateFile], field: str) -> None:
    with pytest.raises(TemplateInvalid) as caught:
        templates.pack(files)

    assert [problem.field for problem in caught.value.problems] == [field]


def test_link_in_a_folder_is_refused(tmp_path: Path) -> None:
    (tmp_path / "template.toml").write_text('name = "t"')
    (tmp_path / "link").symlink_to("/etc/passwd")

    with pytest.raises(TemplateInvalid, match="link"):
        templates.read_folder(tmp_path)
