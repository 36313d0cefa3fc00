"""Tools for users (files, questions, plans), and skills for the model."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from rookery.domain.content.skills import SkillFile
from rookery.store.machine.message_rows import MAX_FILES_PER_CHAT
from rookery.store.settings import settings
from rookery.tools.registry import Column
from tests.store.builders import StoreRig, open_store_rig
from tests.store.people.account_rows import open_pool
from tests.tools.tools_rig import ToolsRig, open_hands

QUESTION = {
    "header": "Colour",
    "question": "Which one?",
    "options": [{"label": "Red", "description": "Warm"}, {"label": "Blue", "description": "Cold"}],
}


@pytest.fixture
async def world(database_url: str) -> AsyncIterator[StoreRig]:
    async with open_store_rig(database_url) as made:
        yield made


@pytest.fixture
async def giving(database_url: str, world: StoreRig) -> AsyncIterator[ToolsRig]:
    async with open_pool(database_url) as pool, open_hands() as made:
        made.pool, made.owner_id = pool, await world.user()
        made.chat_id = await world.chat(made.owner_id)
        yield made


# attach_file


async def test_file_is_stored_once_however_often_the_call_is_run(giving: ToolsRig, world: StoreRig) -> None:
    path = giving.home / "data.json"
    path.write_text('{"a": 1}')

    first = await giving.run("attach_file", call_id="same", path=str(path))
    path.unlink()
    again = await giving.run("attach_file", call_id="same", path=str(path))

    assert (first.value["name"], first.value["media_type"], first.value["size"]) == ("data.json", "application/json", 8)
    assert again.value == first.value
    assert [str(file.file_id) for file in again.result.files] == [first.value["file_id"]]
    assert await world.conn.fetchval("SELECT count(*) FROM chat_files") == 1


@pytest.mark.parametrize(
    ("content", "name", "media_type"),
    [
        (b"# Hi\n", "a.md", "text/markdown"),
        (b"<svg xmlns='x'/>", "a.txt", "image/svg+xml"),
        (b"\x7fELF\0\0", "tool", "application/octet-stream"),
        (b"{broken", "a.json", "text/plain"),
    ],
)
async def test_type_is_what_the_bytes_are(giving: ToolsRig, content: bytes, name: str, media_type: str) -> None:
    (giving.home / name).write_bytes(content)

    done = await giving.run("attach_file", path=f"{giving.home}/{name}")

    assert done.value["media_type"] == media_type


async def test_file_that_cannot_be_given_is_refused_and_leaves_no_row(giving: ToolsRig, world: StoreRig) -> None:
    (giving.home / "empty").touch()
    (giving.home / "huge").write_bytes(bytes(10 * 1024 * 1024 + 1))
    (giving.home / "one").write_text("x")

    empty = await giving.run("attach_file", path=f"{giving.home}/empty")
    large = await giving.run("attach_file", path=f"{giving.home}/huge")
    missing = await giving.run("attach_file", path=f"{giving.home}/nowhere")
    await giving.run_all(
        *(giving.call("attach_file", path=f"{giving.home}/one") for _ in range(MAX_FILES_PER_CHAT + 2))
    )

    assert "empty" in empty.error
    assert "larger" in large.error
    assert missing.is_error
    assert await world.conn.fetchval("SELECT count(*) FROM chat_files") == MAX_FILES_PER_CHAT


async def test_file_beyond_the_quota_of_the_user_is_refused(giving: ToolsRig, world: StoreRig) -> None:
    await settings.write_setting(world.conn, "chats", value={"max_file_mib_per_user": 1})
    (giving.home / "large").write_bytes(bytes(1024 * 1024))
    (giving.home / "small").write_bytes(b"x")

    first = await giving.run("attach_file", call_id="first", path=f"{giving.home}/large")
    refused = await giving.run("attach_file", path=f"{giving.home}/small")
    again = await giving.run("attach_file", call_id="first", path=f"{giving.home}/large")

    assert "1 MiB" in refused.error
    assert again.value == first.value
    assert await world.conn.fetchval("SELECT count(*) FROM chat_files") == 1


# Questions and plans


async def test_question_is_given_back_for_the_user(rig: ToolsRig) -> None:
    done = await rig.run("ask_user_question", questions=[QUESTION])

    assert done.value == {"questions": [QUESTION]}


@pytest.mark.parametrize(
    ("questions", "words"),
    [
        ([], "1 to 4"),
        ([QUESTION] * 5, "1 to 4"),
        ([{**QUESTION, "options": QUESTION["options"][:1]}], "needs 2 to 4"),
        ([{**QUESTION, "header": " "}], "questions[0].header"),
        ([{**QUESTION, "options": [{"label": "a", "description": ""}] * 2}], "options[0].description"),
    ],
)
async def test_question_that_cannot_be_answered_is_refused(rig: ToolsRig, questions: object, words: str) -> None:
    assert words in (await rig.run("ask_user_question", questions=questions)).error


async def test_plan_is_proposed_from_the_plan_file_alone(giving: ToolsRig) -> None:
    giving.column = Column.ROOT_PLAN
    early = await giving.run("propose_plan")
    await giving.run("write_file", path=giving.plan_path, content="# Plan\n")

    done = await giving.run("propose_plan")
    other = await giving.run("propose_plan", path=f"{giving.home}/other.md")

    assert early.is_error
    assert (done.value["kind"], done.value["path"]) == ("plan", giving.plan_path)
    assert done.value["media_type"] == "text/markdown"
    assert giving.plan_path in other.error


@pytest.mark.parametrize(("content", "words"), [(" \n\n", "blank"), ("x" * 40_000, "larger")])
async def test_plan_without_substance_or_measure_is_refused(giving: ToolsRig, content: str, words: str) -> None:
    giving.column = Column.ROOT_PLAN
    await giving.run("write_file", path=giving.plan_path, content=content)

    assert words in (await giving.run("propose_plan")).error


# Skills


def skill(rig: ToolsRig) -> SkillFile:
    folder = rig.home / "skills/deploy"
    folder.mkdir(parents=True)
    (folder / "SKILL.md").write_text("...")
    (folder / "notes.txt").write_text("Notes.")
    (folder / "scripts").mkdir()
    return SkillFile("deploy", "Ship it", "Run make ship.", "workspace", str(folder))


async def test_skill_is_read_with_its_files(rig: ToolsRig) -> None:
    rig.skills = [skill(rig)]

    done = await rig.run("read_skill", name="deploy")
    file = await rig.run("read_skill_file", name="workspace/deploy", path="notes.txt")

    assert (done.value["body"], sorted(done.value["files"])) == ("Run make ship.", ["notes.txt", "scripts/"])
    assert done.value["dir"].endswith("skills/deploy")
    assert file.value == {"content": "Notes."}


async def test_skill_is_read_while_the_workspace_is_down(rig: ToolsRig) -> None:
    rig.skills = [skill(rig)]
    rig.directory.status = "stopped"

    done = await rig.run("read_skill", name="deploy")

    assert (done.value["body"], done.value["files"]) == ("Run make ship.", [])


@pytest.mark.parametrize("path", ["/etc/passwd", "../other/SKILL.md", "a/../../b", ".git/config", "a//b", ""])
async def test_path_out_of_a_skill_is_refused_before_anybody_is_asked(rig: ToolsRig, path: str) -> None:
    rig.skills = [skill(rig)]
    rig.agent.kill()

    assert "cannot be used" in (await rig.run("read_skill_file", name="deploy", path=path)).error


async def test_skill_that_is_not_there_names_those_that_are(rig: ToolsRig) -> None:
    rig.skills = [skill(rig)]

    assert "There are: deploy" in (await rig.run("read_skill", name="test")).error
