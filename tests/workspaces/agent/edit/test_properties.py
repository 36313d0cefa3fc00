"""Properties that hold for every edit of every text."""

from __future__ import annotations

import re
from math import gcd
from unittest import mock

from hypothesis import assume, given
from hypothesis import strategies as st

from rookery.workspaces.agent.edit import edit, match, replace, unified_diff
from rookery.workspaces.agent.edit import lines as edit_lines
from rookery.workspaces.agent.edit.edit import Edit

WORDS = st.sampled_from(
    ["a", "b", "if x:", "ä ö", "日本", "return 1", "}", "x\ry", "e\u0301", "\ufeff", "\u2028", "\x0c"]
)
LEADS = st.sampled_from(["", "\t", "\t\t", "  ", "    ", "        ", " \t"])
TRAILS = st.sampled_from(["", "", " ", "\t"])
ENDINGS = st.sampled_from(["\n", "\r\n"])


@st.composite
def texts(draw: st.DrawFn, *, least: int = 0, most: int = 8) -> str:
    """Lines of any indentation with one or mixed endings, with or without a final newline."""
    kinds = draw(st.sampled_from([["\n"], ["\r\n"], ["\n", "\r\n"]]))
    lines = []
    for _ in range(draw(st.integers(least, most))):
        content = draw(LEADS) + draw(st.one_of(WORDS, st.just(""))) + draw(TRAILS)
        lines.append(content + draw(st.sampled_from(kinds)))
    text = "".join(lines)
    return text.rstrip("\r\n") if draw(st.booleans()) and len(text.rstrip("\r\n")) else text


@given(st.text(alphabet=st.sampled_from("ab \t\r\n\f\v\x1c\x85\u2028\ufeffä"), max_size=40))
def test_lines_join_to_the_text_they_come_from(text: str) -> None:
    raws = edit_lines.split(text)
    lines = edit_lines.parse_all(raws)

    assert "".join(raws) == text
    assert "".join("".join(line) for line in lines) == text
    assert [raw.count("\n") for raw in raws] == [1] * text.count("\n") + [0] * (len(raws) - text.count("\n"))
    assert all(raw.endswith("\n") for raw in raws[:-1])


@given(texts(), texts(least=1, most=2), texts(), texts(least=1, most=2))
def test_exact_edit_and_its_inverse_give_the_original(before: str, old: str, behind: str, new: str) -> None:
    # One kind of line ending: with two, the inserted text deliberately differs from the given one.
    old, new, before, behind = (part.replace("\r\n", "\n") for part in (old, new, before, behind))
    assume(old and new)
    text = before + old + behind
    there = before + new + behind
    assume(text.count(old) == 1 and there.count(new) == 1 and text.find(old) == len(before) == there.find(new))
    assume(text.startswith(edit.BOM) == there.startswith(edit.BOM))

    changed, _ = edit.apply(text, [Edit(old, new, exact=True)])
    restored, _ = edit.apply(changed, [Edit(new, old, exact=True)])

    assert changed == there
    assert restored == text


@st.composite
def respelled(draw: st.DrawFn) -> tuple[str, str]:
    """Return a file, and some of its lines with other blanks and endings."""
    text = draw(texts(least=1))
    raws = edit_lines.split(text)
    assume(raws)
    start = draw(st.integers(0, len(raws) - 1))
    end = draw(st.integers(start + 1, len(raws)))
    ending = draw(ENDINGS)
    wanted = [draw(LEADS) + match.stripped(raw, 3) + draw(TRAILS) + ending for raw in raws[start:end]]
    if draw(st.booleans()):
        wanted[-1] = edit_lines.content_of(wanted[-1])
    return text, "".join(wanted)


@given(respelled(), texts())
def test_edit_by_lines_touches_nothing_outside_and_glues_nothing(case: tuple[str, str], new: str) -> None:
    text, old = case
    assume(old)
    found = match.find(text, old, passes=(2, 3))
    assert found is not None
    raws = edit_lines.split(text)
    count = len(edit_lines.split(old))
    start = found.starts[0]
    forced = edit_lines.forced_ending(text, new)

    after = replace.replace_lines(text, [start], old_text=old, new_text=new, forced=forced)

    head, tail = "".join(raws[:start]), "".join(raws[start + count :])
    assert after.startswith(head)
    assert after.endswith(tail)
    middle = after[len(head) : len(after) - len(tail)]
    if tail and middle:
        assert middle.endswith("\n")
    bodies = [line.body for line in edit_lines.parse_all(edit_lines.split(middle))]
    wanted = [line.body for line in edit_lines.parse_all(edit_lines.split(new))]
    while not tail and wanted and not wanted[-1] and len(bodies) < len(wanted):
        wanted.pop()  # an empty last line without an ending does not exist
    assert bodies == wanted


@given(respelled())
def test_edit_that_changes_nothing_in_the_callers_spelling_changes_nothing_in_the_file(case: tuple[str, str]) -> None:
    text, old = case
    assume(old and edit_lines.internal_ending(old) is None)
    found = match.find(text, old, passes=(2, 3))
    assert found is not None
    window = edit_lines.split(text)[found.starts[0] :][: len(edit_lines.split(old))]
    assume(all(match.stripped(raw, 3) for raw in window))

    after = replace.replace_lines(text, found.starts[:1], old_text=old, new_text=old, forced=None)

    assert after == text


HUNK = re.compile(r"@@ -(\d+)(?:,(\d+))? \+(\d+)(?:,(\d+))? @@\n")


def patched(before: str, patch: str) -> str:
    """Apply a unified diff to a text; fail where the diff does not fit."""
    old = edit_lines.split(before)
    out: list[str] = []
    at = 0
    lines = patch.split("\n")[2:-1] if patch else []
    for index, line in enumerate(lines):
        head = HUNK.fullmatch(line + "\n")
        if head:
            start = int(head[1]) - (0 if head[2] == "0" else 1)
            out += old[at:start]
            at = start
        elif line[:1] in (" ", "-", "+"):
            unterminated = index + 1 < len(lines) and lines[index + 1].startswith("\\")
            text = line[1:] + ("" if unterminated else "\n")
            if line[0] != "+":
                assert old[at] == text
                at += 1
            if line[0] != "-":
                out.append(text)
        else:
            assert line.startswith("\\")
    return "".join(out + old[at:])


@given(texts(most=30), texts(most=30))
def test_diff_leads_from_one_text_to_the_other(before: str, after: str) -> None:
    assert patched(before, unified_diff.unified("/f", before, after)) == after


@given(texts(most=30), st.data())
def test_diff_of_a_moved_line_leads_from_one_text_to_the_other(before: str, data: st.DataObject) -> None:
    raws = [raw if raw.endswith("\n") else raw + "\n" for raw in edit_lines.split(before)]
    moved = data.draw(st.permutations(raws))

    assert patched("".join(raws), unified_diff.unified("/f", "".join(raws), "".join(moved))) == "".join(moved)


@given(texts(most=12), texts(most=3), texts(most=3), texts(most=12))
def test_lines_that_a_diff_skips_change_nothing_about_it(start: str, old: str, new: str, end: str) -> None:
    before, after = start + old + end, start + new + end
    whole = (0, edit_lines.split(before), edit_lines.split(after))
    with mock.patch.object(unified_diff, "_changed_region", return_value=whole):
        expected = unified_diff.unified("/f", before, after)

    assert unified_diff.unified("/f", before, after) == expected
    assert patched(before, expected) == after


@st.composite
def blocks(draw: st.DrawFn) -> tuple[list[tuple[int, str]], int, int, list[tuple[int, str]]]:
    """Lines of a file as level and body, a part of them, and what replaces that part."""
    levels = st.integers(0, 4)
    file = [(draw(levels), f"line {at}") for at in range(draw(st.integers(2, 8)))]
    start = draw(st.integers(0, len(file) - 2))
    end = draw(st.integers(start + 2, len(file)))
    bodies = st.sampled_from([body for _, body in file[start:end]] + ["new", "other"])
    new = draw(st.lists(st.tuples(levels, bodies), min_size=1, max_size=8))
    indented = [level for level, _ in file[start:end] if level]
    # Two indented lines determine the indentation unit, so it is the same in both texts.
    assume(len(indented) >= 2 and gcd(*indented) == 1)
    return file, start, end, new


def written(lines: list[tuple[int, str]], *, unit: str, ending: str) -> str:
    return "".join(f"{unit * level}{body}{ending}" for level, body in lines)


@given(blocks(), st.sampled_from(["\t", "  ", "   "]), ENDINGS, st.booleans())
def test_four_space_caller_gets_the_same_levels_in_every_file(
    case: tuple[list[tuple[int, str]], int, int, list[tuple[int, str]]], unit: str, ending: str, final: bool
) -> None:
    file, start, end, new = case
    before = written(file, unit=unit, ending=ending)
    expected = written([*file[:start], *new, *file[end:]], unit=unit, ending=ending)
    if not final:
        before, expected = before.removesuffix(ending), expected.removesuffix(ending)
    old_text = written(file[start:end], unit="    ", ending="\n")
    new_text = written(new, unit="    ", ending="\n")

    after, (applied,) = edit.apply(before, [Edit(old_text, new_text)])

    assert applied == edit.Applied(1, 3)
    assert after == expected


@given(respelled(), texts(), st.booleans())
def test_file_with_one_kind_of_ending_keeps_it(case: tuple[str, str], new: str, crlf: bool) -> None:
    kind = "\r\n" if crlf else "\n"
    text, old = (part.replace("\r\n", "\n") for part in case)
    text = text.replace("\n", kind)
    new = new.replace("\r\n", "\n")
    found = match.find(text, old, passes=(2, 3)) if old else None
    assume(found is not None)
    assert found is not None

    forced = edit_lines.forced_ending(text, new)
    after = replace.replace_lines(text, found.starts, old_text=old, new_text=new, forced=forced)

    # A file of one line has no ending to keep, unless that line has one.
    assume(kind in text)
    assert {edit_lines.ending_of(raw) for raw in edit_lines.split(after)} <= {kind, ""}
