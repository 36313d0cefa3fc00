"""Unified diffs of the workspace agent."""

from __future__ import annotations

import time

from rookery.workspaces.agent.edit import unified_diff


def test_equal_texts_have_no_diff() -> None:
    assert unified_diff.unified("/f", "a\n", "a\n") == ""


def test_diff_has_three_lines_of_context_under_the_callers_path() -> None:
    before = "".join(f"{n}\n" for n in range(1, 21))

    assert unified_diff.unified("/x/f.py", before, before.replace("10\n", "ten\n")) == (
        "--- /x/f.py\n+++ /x/f.py\n@@ -7,7 +7,7 @@\n 7\n 8\n 9\n-10\n+ten\n 11\n 12\n 13\n"
    )


def test_far_changes_are_two_hunks_and_near_ones_one() -> None:
    before = "".join(f"{n}\n" for n in range(1, 41))

    assert (
        unified_diff.unified("/f", before, before.replace("5\n", "five\n", 1).replace("30\n", "thirty\n")).count("@@ -")
        == 2
    )
    assert (
        unified_diff.unified("/f", before, before.replace("\n12\n", "\n\n").replace("\n18\n", "\n\n")).count("@@ -")
        == 1
    )


def test_missing_final_newline_is_marked() -> None:
    assert unified_diff.unified("/f", "a", "a\n") == (
        "--- /f\n+++ /f\n@@ -1 +1 @@\n-a\n\\ No newline at end of file\n+a\n"
    )


def test_new_text_in_an_empty_file() -> None:
    assert unified_diff.unified("/f", "", "a\nb\n") == "--- /f\n+++ /f\n@@ -0,0 +1,2 @@\n+a\n+b\n"


def test_a_hundred_thousand_lines_are_compared_in_a_moment() -> None:
    lines = [f"line {n % 5000} of {n}\n" for n in range(100_000)]
    changed = list(lines)
    for at in range(0, 100_000, 1000):
        changed[at] = "changed\n"

    began = time.process_time()
    found = unified_diff.changes(lines, changed)

    assert len(found) == 100
    assert time.process_time() - began < 20  # difflib alone takes minutes


def test_repetitive_blocks_count_as_replaced_instead_of_taking_forever() -> None:
    found = unified_diff.changes(["a\n", "b\n"] * 3000, ["b\n", "a\n"] * 3000 + ["c\n"])

    assert found


def test_huge_diff_is_cut() -> None:
    text = unified_diff.unified("/f", "a\n" * 10, "".join(f"{n}{'x' * 1000}\n" for n in range(3000)))

    assert len(text) < unified_diff.MAX_BYTES + 1000
    assert text.endswith("[the rest of this diff is not shown]\n")
