"""Every replacement rule, with tabs and spaces, LF and CRLF, and no final newline."""

from __future__ import annotations

from typing import NamedTuple

import pytest

from rookery.workspaces.agent.edit import edit
from rookery.workspaces.agent.edit.edit import Edit


class Case(NamedTuple):
    """A file, an edit, the file after it, and the pass that finds the match."""

    name: str
    before: str
    old: str
    new: str
    after: str
    number: int


CASES = [
    # -- pass 1: literal ---------------------------------------------------------------------------------------
    Case("a literal match is replaced inside its line", "a = 1\nb = 2\n", "= 1", "= 3", "a = 3\nb = 2\n", 1),
    Case("a line without its newline folds into the next", "line\nnext\n", "line\n", "LINE", "LINEnext\n", 1),
    Case("inner endings become the file's", "a\r\nb\r\nc\r\n", "b", "x\ny", "a\r\nx\r\ny\r\nc\r\n", 1),
    Case("inner endings become LF in an LF file", "a\nb\nc\n", "b", "x\r\ny", "a\nx\ny\nc\n", 1),
    Case("the last line keeps the caller's ending", "a\r\nb\r\nc\r\n", "b\r\n", "x\ny\n", "a\r\nx\r\ny\nc\r\n", 1),
    Case("a change of endings is literal", "a\r\nb\r\nc\r\n", "a\r\nb\r\n", "a\nb\n", "a\nb\nc\r\n", 1),
    Case("a match that begins inside CRLF doubles nothing", "a\r\nb\r\n", "\nb", "\nx\ny", "a\r\nx\r\ny\r\n", 1),
    Case("a match that begins inside CRLF leaves nothing", "a\r\nb\r\n", "\nb", " b", "a b\r\n", 1),
    Case("a literal deletion", "a\nb\nc\n", "b\n", "", "a\nc\n", 1),
    Case("no final newline stays so", "a\nb", "b", "c", "a\nc", 1),
    # -- body, lead and trail of paired lines ------------------------------------------------------------------
    Case("the file's trail stays when the caller has none", "a  \nb\t\n", "a\nb\n", "x\ny\n", "x  \ny\t\n", 2),
    Case("the caller's trail wins when it changes", "a\t\nb\n", "a\nb\n", "a  \nb\n", "a  \nb\n", 2),
    Case(
        "the file's lead stays when the caller kept its own", "\t\tfoo()\n", "  foo()\n", "  bar()\n", "\t\tbar()\n", 3
    ),
    Case("one changed lead is the caller's", "\tfoo()\n", "    foo()\n", "        foo()\n", "        foo()\n", 3),
    Case(
        "two indented lines of another unit are translated",
        "\tif x:\n\t\tfoo()\n\t\tbar()\n",
        "    if x:\n        foo()\n        bar()\n",
        "    if x:\n        foo()\n    bar()\n",
        "\tif x:\n\t\tfoo()\n\tbar()\n",
        3,
    ),
    Case(
        "unwrapping a block in a tab file",
        "def f():\n\tif x:\n\t\tfoo()\n\t\tbar()\n",
        "    if x:\n        foo()\n        bar()\n",
        "    foo()\n    bar()\n",
        "def f():\n\tfoo()\n\tbar()\n",
        3,
    ),
    Case(
        "unwrapping a block in a two-space file",
        "def f\n  if x\n    foo\n    bar\n  end\nend\n",
        "    if x\n        foo\n        bar\n    end\n",
        "    foo\n    bar\n",
        "def f\n  foo\n  bar\nend\n",
        3,
    ),
    Case(
        "wrapping a block in a tab file",
        "\tfoo()\n\tbar()\n",
        "    foo()\n    bar()\n",
        "    if x:\n        foo()\n        bar()\n",
        "\tif x:\n\t\tfoo()\n\t\tbar()\n",
        3,
    ),
    Case(
        "equal units leave a changed lead as written",
        "    a\n        b\n",
        "  a\n      b\n",
        "  a\n    b\n",
        "    a\n    b\n",
        3,
    ),
    Case(
        "a lead that is no whole level is the caller's",
        "\ta(\n\t\tb)\n",
        "    a(\n        b)\n",
        "    a(\n      b)\n",
        "\ta(\n      b)\n",
        3,
    ),
    Case(
        "mixed leads of the file are not translated",
        " \ta\n\tb\n",
        "    a\n    b\n",
        "    a\n        b\n",
        " \ta\n        b\n",
        3,
    ),
    # -- inserted lines ----------------------------------------------------------------------------------------
    Case(
        "an inserted line is translated",
        "\tfoo()\n",
        "    foo()\n",
        "    foo()\n        bar()\n",
        "\tfoo()\n\t\tbar()\n",
        3,
    ),
    Case(
        "an inserted line as deep as the one below takes its place",
        "\tif x:\n\t\ta()\n\tb()\n",
        "if x:\na()\nb()\n",
        "if x:\na()\nc()\nb()\n",
        "\tif x:\n\t\ta()\n\tc()\n\tb()\n",
        3,
    ),
    Case(
        "an inserted line as deep as the one above takes its place",
        "\tif x:\n\t\ta()\n\tb()\n",
        "if x:\n  a()\nb()\n",
        "if x:\n  a()\n  c()\nb()\n",
        "\tif x:\n\t\ta()\n\t\tc()\n\tb()\n",
        3,
    ),
    Case(
        "an inserted line at the end takes the last pair as its place",
        "\t\ta\n",
        "  a\n",
        "  b\n  c\n",
        "\t\tb\n\t\tc\n",
        3,
    ),
    Case(
        "an inserted line whose unit is unknown takes the reference's lead",
        "\tfoo()\n\tbar()\n",
        "foo()\nbar()\n",
        "foo()\nnew()\nbar()\n",
        "\tfoo()\n\tnew()\n\tbar()\n",
        3,
    ),
    Case(
        "leads that agree are taken as written",
        "def f(): \nx\n",
        "def f():\nx\n",
        "def f():\n    pass\nx\n",
        "def f(): \n    pass\nx\n",
        2,
    ),
    Case(
        "a line in the place of an empty one is placed like an inserted one",
        "\tfoo\n  \n\tbar\n",
        "foo\n\nbar\n",
        "foo\nbaz\nbar\n",
        "\tfoo\n\tbaz\n\tbar\n",
        3,
    ),
    Case("a line without body is literal", "\ta\n\tb\n", "  a\n  b\n", "  a\n \n  b\n", "\ta\n \n\tb\n", 3),
    # -- endings -----------------------------------------------------------------------------------------------
    Case("a paired line keeps the file's CRLF", "a \r\nb\r\n", "a\n", "x\n", "x \r\nb\r\n", 2),
    Case("unterminated on both sides keeps the file's", "\ta\r\nb\r\n", "  a", "  x", "\tx\r\nb\r\n", 3),
    Case("a final newline asked for is given", "a\n\tb", "  b", "  b\n", "a\n\tb\n", 3),
    Case("a final newline asked for is the file's", "a\r\n\tb", "  b", "  b\n", "a\r\n\tb\r\n", 3),
    Case("a missing final newline stays missing", "a\n\tb", "  b\n", "  c\n", "a\n\tc", 3),
    Case("a taken newline never glues lines", "\ta\nb\n", "  a\n", "  x", "\tx\nb\n", 3),
    Case("a taken newline never glues CRLF lines", "\ta\r\nb\r\n", "  a\n", "  x", "\tx\r\nb\r\n", 3),
    Case("a taken final newline is gone", "a\n\tb", "a\n  b\n", "a\n  c", "a\n\tc", 3),
    Case(
        "inner endings are the dominant one", "\ta\nb\r\nc\r\n", "  a\nb\n", "  a\nx\nb\n", "\ta\r\nx\r\nb\r\nc\r\n", 3
    ),
    Case(
        "a line that is not the last any more gets an ending", "a\n\tb", "a\n  b\n", "a\n  b\n  c\n", "a\n\tb\n\tc", 3
    ),
    Case("the same in a CRLF file", "a\r\n\tb", "a\n  b\n", "a\n  b\n  c\n", "a\r\n\tb\r\n\tc", 3),
    Case("the last line takes the forced ending", "\ta\r\nb\r\n", "  a", "  x\n  y", "\tx\r\n\ty\r\nb\r\n", 3),
    # -- deletion ----------------------------------------------------------------------------------------------
    Case("lines replaced by nothing are gone", "a\n\tb\nc\n", "  b\n", "", "a\nc\n", 3),
    Case("the last unterminated line replaced by nothing is gone", "a\n\tb", "  b\n", "", "a\n", 3),
    Case("fewer lines drop the rest of the middle", "\ta\n\tb\n\tc\n", " a\n b\n c\n", " x\n", "\tx\n", 3),
    Case("fewer lines leave a missing final newline missing", "\ta\n\tb", " a\n b\n", " a\n", "\ta", 3),
    # -- the mark at the beginning -----------------------------------------------------------------------------
    Case("a byte order mark is not part of the first line", "\ufeff\ta\nb\n", "  a\n", "  x\n", "\ufeff\tx\nb\n", 3),
    # -- where a rule ends -------------------------------------------------------------------------------------
    Case(
        "one changed lead in a file of the same unit is the caller's",
        "        if a:\n            b()\n",
        "    if a:\n        b()\n",
        "    if a:\n    b()\n",
        "        if a:\n    b()\n",
        3,
    ),
    Case(
        "an inserted line as deep as neither neighbour is placed by the one below",
        "\ta\n\t\t\tb\n",
        "    a\n        b\n",
        "    a\n            x\n        b\n",
        "\ta\n\t\t\t\tx\n\t\t\tb\n",
        3,
    ),
    Case(
        "a lead that would lie left of the margin is the caller's",
        "b\n\tc\n\td\n",
        "        b\n            c\n            d\n",
        "    b\n            c\n            d\n",
        "    b\n\tc\n\td\n",
        3,
    ),
    Case("an inner line never takes a missing ending", "a \nb", "a\nb\n", "a\nB\r\nc\n", "a \nB\r\nc", 2),
]


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_replacing(case: Case) -> None:
    after, applied = edit.apply(case.before, [Edit(case.old, case.new)])

    assert after == case.after
    assert [(done.matches, done.pass_number) for done in applied] == [(1, case.number)]


def in_style(text: str, *, indent: str, ending: str, final: bool) -> str:
    text = text.replace("\t", indent).replace("\n", ending)
    return text if final else text.removesuffix(ending)


STYLES = [
    pytest.param(indent, ending, final, id=f"{name}-{'crlf' if ending == chr(13) + chr(10) else 'lf'}-{final}")
    for indent, name in (("\t", "tabs"), ("  ", "two"), ("    ", "four"), ("   ", "three"))
    for ending in ("\n", "\r\n")
    for final in (True, False)
]
# Edits by a four-space caller with LF, written with tabs for readability: file, old text, new text, file afterwards.
CALLS = [
    pytest.param(
        "class A:\n\tdef f(self):\n\t\tfoo()\n\t\tbar()\n",
        "\tdef f(self):\n\t\tfoo()\n\t\tbar()\n",
        "\tdef f(self):\n\t\tif x:\n\t\t\tfoo()\n\t\tbar()\n",
        "class A:\n\tdef f(self):\n\t\tif x:\n\t\t\tfoo()\n\t\tbar()\n",
        id="wrap",
    ),
    pytest.param(
        "def f():\n\tif x:\n\t\tfoo()\n\t\tbar()\n",
        "\tif x:\n\t\tfoo()\n\t\tbar()\n",
        "\tfoo()\n\tbar()\n",
        "def f():\n\tfoo()\n\tbar()\n",
        id="unwrap",
    ),
    pytest.param(
        "def f():\n\tif x:\n\t\tfoo()\n",
        "\tif x:\n\t\tfoo()\n",
        "\tif x:\n\t\tfoo()\n\telse:\n\t\tbar()\n",
        "def f():\n\tif x:\n\t\tfoo()\n\telse:\n\t\tbar()\n",
        id="append",
    ),
    pytest.param(
        "def f():\n\tif x:\n\t\tfoo()\n\treturn\n",
        "def f():\n\tif x:\n\t\tfoo()\n\treturn\n",
        "def f():\n\tfor y in z:\n\t\tif x:\n\t\t\tfoo(y)\n\treturn\n",
        "def f():\n\tfor y in z:\n\t\tif x:\n\t\t\tfoo(y)\n\treturn\n",
        id="rewrite",
    ),
    pytest.param("a\n\tb\n\tc\nd\n", "\tb\n\tc\n", "\tc\n", "a\n\tc\nd\n", id="delete"),
]


@pytest.mark.parametrize(("indent", "ending", "final"), STYLES)
@pytest.mark.parametrize(("file", "old", "new", "expected"), CALLS)
def test_four_space_caller_keeps_the_style_of_the_file(
    file: str, old: str, new: str, expected: str, *, indent: str, ending: str, final: bool
) -> None:
    before = in_style(file, indent=indent, ending=ending, final=final)

    after, _ = edit.apply(before, [Edit(old.replace("\t", "    "), new.replace("\t", "    "))])

    assert after == in_style(expected, indent=indent, ending=ending, final=final)


def test_replace_all_changes_every_place_in_its_own_style() -> None:
    before = "if a:\n\tx = 1  \nif b:\n\t\tx = 1\r\n  x = 1"

    after, applied = edit.apply(before, [Edit(" x = 1\n", " x = 2\n", replace_all=True)])

    assert after == "if a:\n\tx = 2  \nif b:\n\t\tx = 2\r\n  x = 2"
    assert applied == [edit.Applied(3, 3)]


def test_matches_do_not_overlap() -> None:
    after, applied = edit.apply("aaaaa", [Edit("aa", "b", replace_all=True)])

    assert (after, applied) == ("bba", [edit.Applied(2, 1)])


def test_later_edit_sees_what_the_one_before_left() -> None:
    after, _ = edit.apply("a\n", [Edit("a", "b"), Edit("b", "c")])

    assert after == "c\n"


def test_earlier_edit_can_make_a_later_one_ambiguous() -> None:
    with pytest.raises(edit.EditFailed, match=r"occurs 2 times \(lines 1, 2\)") as caught:
        edit.apply("a\nb\n", [Edit("a", "b"), Edit("b", "c")])

    assert caught.value.index == 1
