"""The form of each type of file in a prompt."""

from __future__ import annotations

import base64
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rookery.domain.chat.model_prompt import PromptFile, PromptText
from rookery.domain.chat.parts import File, FileReference
from rookery.domain.content import attachments
from rookery.domain.content.attachments import MAX_PASTED_BYTES, FileRules, ImageTooLarge, StoredFile

FILE = UUID(int=1)
MIB = 1024 * 1024


def takes(*media_types: str, max_image_bytes: int | None = None) -> FileRules:
    return FileRules(accepts=lambda media_type: media_type in media_types, max_image_bytes=max_image_bytes)


def convert(
    file: StoredFile | None, rules: FileRules | None = None, *, is_newest: bool = True, media_type: str = "text/plain"
) -> PromptText | PromptFile | None:
    files = {} if file is None else {FILE: file}
    return attachments.convert(File(media_type, file_id=FILE), files, rules=rules or takes(), is_newest=is_newest)


def text_of(converted: PromptText | PromptFile | None) -> str:
    assert isinstance(converted, PromptText)
    return converted.text


def stored(
    media_type: str, data: bytes = b"hello", *, name: str | None = "a.txt", is_pasted: bool = False
) -> StoredFile:
    return StoredFile(media_type=media_type, data=data, name=name, is_pasted=is_pasted)


@pytest.mark.parametrize(
    "media_type",
    [
        "text/plain",
        "text/x-anything",
        "application/json",
        "application/xml",
        "application/javascript",
        "application/yaml",
    ],
)
def test_pasted_text_is_text_even_where_the_file_would_be_accepted(media_type: str) -> None:
    converted = convert(stored(media_type, is_pasted=True), takes(media_type))

    assert text_of(converted) == '<pasted-text name="a.txt">\nhello\n</pasted-text>'


def test_a_pasted_file_of_another_type_is_a_file() -> None:
    converted = convert(stored("application/pdf", is_pasted=True), takes("application/pdf"))

    assert isinstance(converted, PromptFile)


def test_a_long_paste_is_cut_between_characters_and_says_so() -> None:
    data = b"x" * (MAX_PASTED_BYTES - 1) + "é".encode() + b"rest"

    text = text_of(convert(stored("text/plain", data, is_pasted=True)))

    assert text.startswith('<pasted-text name="a.txt">\n' + "x" * (MAX_PASTED_BYTES - 1) + "\n</pasted-text>\n[")
    assert f"{MAX_PASTED_BYTES - 1} of {len(data)} bytes" in text
    assert "\ufffd" not in text


def test_a_paste_of_exactly_the_limit_is_whole() -> None:
    text = text_of(convert(stored("text/plain", b"x" * MAX_PASTED_BYTES, is_pasted=True)))

    assert text.endswith("x\n</pasted-text>")


def test_a_deleted_file_becomes_a_request_for_a_new_upload() -> None:
    text = text_of(convert(None, media_type="image/png; x=1"))

    assert text.startswith('<attachment-missing type="image/png">')
    assert "upload" in text


def test_a_file_without_room_is_named_and_not_taken_for_a_deleted_one() -> None:
    file = StoredFile(media_type="image/png", data=b"", name="a.png", is_left_out=True)

    text = text_of(convert(file, takes("image/png")))

    assert text == '<attachment-omitted name="a.png" type="image/png">Left out to save room.</attachment-omitted>'


@pytest.mark.parametrize("media_type", ["", "application/octet-stream"])
def test_a_deleted_file_of_no_real_type_names_none(media_type: str) -> None:
    assert text_of(convert(None, media_type=media_type)).startswith("<attachment-missing>")


@pytest.mark.parametrize("is_pasted", [True, False])
def test_an_empty_file_is_dropped(is_pasted: bool) -> None:
    assert convert(stored("text/plain", b"", is_pasted=is_pasted), takes("text/plain")) is None


@pytest.mark.parametrize("media_type", ["text/plain", "text/markdown", "text/csv", "application/json"])
def test_text_that_the_wire_does_not_take_is_inlined(media_type: str) -> None:
    text = text_of(convert(stored(f"{media_type}; charset=utf-8")))

    assert text == f'<attachment name="a.txt" type="{media_type}">\nhello\n</attachment>'


def test_text_that_the_wire_takes_stays_a_file() -> None:
    converted = convert(stored("text/Markdown; charset=utf-8"), takes("text/markdown"))

    assert converted == PromptFile("text/markdown", b"hello", "a.txt")


@pytest.mark.parametrize("media_type", ["application/pdf", "image/png", "text/html", "application/xml"])
def test_other_types_that_the_wire_does_not_take_are_named(media_type: str) -> None:
    text = text_of(convert(stored(media_type)))

    assert text.startswith(f'<attachment-omitted name="a.txt" type="{media_type}">')
    assert "hello" not in text


def test_an_image_below_the_limit_is_sent() -> None:
    rules = takes("image/png", max_image_bytes=5 * MIB)

    assert isinstance(convert(stored("image/png", b"x" * (5 * MIB - 1)), rules), PromptFile)


def test_an_image_at_the_limit_fails_the_newest_message_with_the_limit_named() -> None:
    rules = takes("image/png", max_image_bytes=5 * MIB)

    with pytest.raises(ImageTooLarge, match=r"'a\.txt'.* 5 MiB"):
        convert(stored("image/png", b"x" * (5 * MIB)), rules, is_newest=True)


def test_an_old_image_at_the_limit_becomes_a_placeholder() -> None:
    rules = takes("image/png", max_image_bytes=5 * MIB)

    text = text_of(convert(stored("image/png", b"x" * (6 * MIB)), rules, is_newest=False))

    assert text.startswith('<attachment-omitted name="a.txt" type="image/png">')
    assert "5 MiB" in text


def test_only_images_have_that_limit() -> None:
    rules = takes("application/pdf", max_image_bytes=10)

    assert isinstance(convert(stored("application/pdf", b"x" * 20), rules), PromptFile)


def test_inline_data_is_read() -> None:
    part = File("image/png", data=base64.b64encode(b"pixels").decode(), name="p.png")

    converted = attachments.convert(part, {}, rules=takes("image/png"), is_newest=True)

    assert converted == PromptFile("image/png", b"pixels", "p.png")


def test_damaged_inline_data_counts_as_missing() -> None:
    converted = attachments.convert(File("image/png", data="%"), {}, rules=takes("image/png"), is_newest=True)

    assert text_of(converted).startswith("<attachment-missing")


def test_invalid_utf8_is_repaired() -> None:
    assert "a\ufffdb" in text_of(convert(stored("text/plain", b"a\xffb")))


def test_a_name_cannot_leave_its_attribute() -> None:
    text = text_of(convert(stored("image/png", name='x" onload="\n<y>\ud800')))

    assert text.startswith('<attachment-omitted name="x&quot; onload=&quot; &lt;y&gt; " type=')


@pytest.mark.parametrize(
    ("reference", "expected"),
    [
        (FileReference("a.py", 3, 7, "x = 1"), '<file-reference path="a.py" lines="3-7">\nx = 1\n</file-reference>'),
        (FileReference("a.py", 3, 3, "x = 1"), '<file-reference path="a.py" lines="3">\nx = 1\n</file-reference>'),
        (FileReference("a.py", 3, 7, " \n"), '<file-reference path="a.py" lines="3-7"/>'),
        (FileReference("a.py", 0, 0, ""), '<file-reference path="a.py"/>'),
    ],
)
def test_a_reference_is_an_element_with_its_snippet(reference: FileReference, expected: str) -> None:
    assert attachments.quote(reference) == expected


@given(st.text(), st.integers(0, 50))
def test_a_cut_is_the_longest_start_that_ends_between_characters(text: str, max_bytes: int) -> None:
    data = text.encode("utf-8", "replace")

    cut = attachments.cut_utf8(data, max_bytes)

    assert data.startswith(cut)
    assert data.decode().startswith(cut.decode())
    assert len(cut) <= max_bytes
    assert len(cut) == len(data) or len(cut) > max_bytes - 4
