"""The guide with the built-in tools: their names, their arguments, and their results."""

from __future__ import annotations

import json
import pathlib
import re
import time
from collections.abc import Mapping
from typing import Annotated, Any, Literal

import msgspec
import pytest
from msgspec import Meta

from rookery.demo import guide as guides
from rookery.demo.guide_requests import understand
from rookery.domain.chat import submitted_content
from rookery.domain.chat.messages import Role
from rookery.domain.chat.model_prompt import Prompt, PromptMessage, PromptText
from rookery.llm.types import Call, Purpose, TextDelta, ToolCall
from rookery.models.connector import default_scripts
from tests.llm.test_scripted import asking, calls_of, message, play, round_trip, text_of

Path = Annotated[str, Meta(pattern=r"^/\S+$")]
Word = Annotated[str, Meta(pattern=r"\S")]


class Strict(msgspec.Struct, forbid_unknown_fields=True):
    """Strict arguments of a tool: an unknown argument is an error of the guide."""


class Execute(Strict):
    command: Word
    timeout: Annotated[str, Meta(pattern=r"^\d+(ms|s|m|h)$")] = "10s"
    workdir: Path | None = None
    run_in_background: bool = False
    model_intent: Annotated[str, Meta(max_length=100)] | None = None


class ReadFile(Strict):
    path: Path
    offset: int = 1
    limit: int | None = None


class WriteFile(Strict):
    path: Path
    content: str


class Edit(Strict):
    old_text: Annotated[str, Meta(min_length=1)]
    new_text: str
    replace_all: bool = False
    exact: bool = False


class FileEdits(Strict):
    path: Path
    edits: Annotated[list[Edit], Meta(min_length=1)]


class EditFiles(Strict):
    files: Annotated[list[FileEdits], Meta(min_length=1)]


class AttachFile(Strict):
    path: Path
    name: Word | None = None


class Choice(Strict):
    label: Word
    description: Word


class Question(Strict):
    header: Word
    question: Word
    options: Annotated[list[Choice], Meta(min_length=2, max_length=4)]


class AskUserQuestion(Strict):
    questions: Annotated[list[Question], Meta(min_length=1, max_length=4)]


class ProposePlan(Strict):
    path: Annotated[str, Meta(pattern=r"^/\S+\.md$")] | None = None


class SpawnAgent(Strict):
    type: Literal["general", "explore"]
    prompt: Word
    title: Annotated[str, Meta(max_length=80)] | None = None
    model_config_id: str | None = None
    reasoning_effort: str | None = None


class WaitAgent(Strict):
    chat_id: Word | None = None
    chat_ids: list[str] | None = None
    timeout_seconds: int = 300


class Advisor(Strict):
    question: Word


class CreateWorkspace(Strict):
    template_id: Word
    name: str | None = None
    parameters: Mapping[str, Any] | None = None
    preset_id: str | None = None
    new: bool = False


class ListTemplates(Strict):
    query: str | None = None
    page: int = 1


class Nothing(Strict):
    pass


REPOSITORY = pathlib.Path(__file__).parents[2]
SHAPES: dict[str, type[Strict]] = {
    "execute": Execute,
    "read_file": ReadFile,
    "write_file": WriteFile,
    "edit_files": EditFiles,
    "attach_file": AttachFile,
    "ask_user_question": AskUserQuestion,
    "propose_plan": ProposePlan,
    "spawn_agent": SpawnAgent,
    "wait_agent": WaitAgent,
    "advisor": Advisor,
    "list_agents": Nothing,
    "process_list": Nothing,
    "list_templates": ListTemplates,
    "create_workspace": CreateWorkspace,
    "start_workspace": Nothing,
    "stop_workspace": Nothing,
}
EVERYTHING = (*SHAPES, "process_output", "process_signal", "read_template", "read_skill", "message_agent")

# Requests of new users, and the tools that they need.
REQUESTS = {
    "run `uname -a`": ["execute"],
    "run sleep 60 in the background": ["execute"],
    "write /home/agent/notes.md with Hello": ["write_file"],
    "read /home/agent/notes.md": ["read_file"],
    'replace "Hello" with "Greetings" in /home/agent/notes.md': ["edit_files"],
    "search for Greetings in /home/agent": ["execute"],
    "attach /home/agent/notes.md": ["attach_file"],
    "ask me which color to use: red, green or blue": ["ask_user_question"],
    "ask me whether to go on": ["ask_user_question"],
    "ask me what to eat: a, b, c, d, e, f": ["ask_user_question"],
    "make a plan to tidy the home directory": ["write_file", "propose_plan"],
    "ask an agent to count the files in /etc": ["spawn_agent", "wait_agent"],
    "ask agents to count the files; name the kernel": ["spawn_agent", "spawn_agent", "wait_agent", "wait_agent"],
    "delegate: tidy up": ["spawn_agent", "spawn_agent", "wait_agent"],
    "Delegate to two agents: list the files in /etc; run uname -a": ["spawn_agent", "spawn_agent", "wait_agent"],
    "ask the advisor: rewrite or patch?": ["advisor"],
    "list agents": ["list_agents"],
    "show me the running processes": ["process_list"],
    "list the templates": ["list_templates"],
    "start the workspace": ["start_workspace"],
    "please stop the workspace": ["stop_workspace"],
    "take the tour": ["write_file", "read_file", "edit_files", "execute"],
    "list the files here": ["execute"],
    "plan a small project with me": ["write_file", "propose_plan"],
    "write me a small Python program": ["write_file", "execute"],
    "list the files": ["execute"],
    "list files in /etc": ["execute"],
    "count the files in the workspace": ["execute"],
    "How many files are in /etc?": ["execute"],
    "count files": ["execute"],
    "ls -la": ["execute"],
    "git status": ["execute"],
    "run the tests": ["execute"],
    "show the diff": ["execute"],
    'create a workspace from git with {"repository": "https://a.example/b.git"}': ["create_workspace"],
}


@pytest.mark.parametrize("asked", REQUESTS)
async def test_every_request_drives_its_tools_with_arguments_they_take(asked: str) -> None:
    rows: list[PromptMessage] = []
    made: list[ToolCall] = []
    while calls := await calls_of(asking(asked, *rows, tools=EVERYTHING)):
        made += calls
        rows += round_trip(calls, *({"ok": True, "chat_id": f"c-{call.id}"} for call in calls))
        assert len(made) < 10

    assert [call.name for call in made] == REQUESTS[asked]
    for call in made:
        msgspec.json.decode(call.input, type=SHAPES[call.name])
    assert await text_of(asking(asked, *rows, tools=EVERYTHING))


@pytest.mark.parametrize(("needed", "asked"), guides.SUGGESTIONS)
async def test_guide_understands_every_request_that_it_offers_with_these_tools(
    needed: frozenset[str], asked: str
) -> None:
    assert await calls_of(asking(asked, tools=sorted(needed)))


def suggestions_of_the_page() -> list[str]:
    """Return the requests that the start page and the set-up suggest."""
    found = []
    for page in ("conversation/new_chat_page.tsx", "setup/first_message_step.tsx"):
        text = (REPOSITORY / "web/src/features" / page).read_text()
        for listed in re.findall(r"^const (?:PROMPTS|WORKING) = \[(.*?)\];", text, re.DOTALL | re.MULTILINE):
            found += re.findall(r'"([^"]+)"', listed)
    return found


def test_suggestions_of_the_page_are_found() -> None:
    assert {"Explain what you can do here", "List the files here"} <= set(suggestions_of_the_page())


@pytest.mark.parametrize("asked", suggestions_of_the_page())
async def test_guide_understands_every_suggestion_of_the_page(asked: str) -> None:
    call = asking(asked, tools=EVERYTHING)

    made = [] if guides.HELP.fullmatch(asked) else await calls_of(call)
    said = await text_of(call)

    assert guides.NOT_UNDERSTOOD not in said
    assert made or guides.HELP.fullmatch(asked) or "review" in asked
    assert not made or guides.WHO_I_AM not in said


@pytest.mark.parametrize("asked", ["What can you do here?", "Explain what you can do here", "help"])
async def test_help_says_first_who_answers_and_offers_the_tour_last(asked: str) -> None:
    said = await text_of(asking(asked, tools=EVERYTHING))

    assert said.startswith(guides.WHO_I_AM)
    assert said.endswith("send `take the tour`.")
    assert await calls_of(asking(asked, tools=EVERYTHING)) == []


@pytest.mark.parametrize(
    ("reason", "said"), [("denied_by_user", "You denied that"), ("denied_by_rule", "A rule denies that")]
)
async def test_denial_is_told_in_words_for_people(reason: str, said: str) -> None:
    first = await calls_of(asking("run `x`"))
    rows = round_trip(first, {"error": "Do not repeat it.", "reason": reason}, is_error=True)

    assert (await text_of(asking("run `x`", *rows))).startswith(said)
    assert "Do not repeat" not in await text_of(asking("run `x`", *rows))


async def test_read_only_chat_and_plan_mode_say_why_nothing_is_written() -> None:
    def asked_in(mode: str) -> Call:
        call = asking("write /a/b.md with x", tools=["read_file", "execute"])
        rows = (message(Role.SYSTEM, PromptText(f"<{mode}>")), *call.prompt.messages)
        return msgspec.structs.replace(call, prompt=Prompt(rows))

    assert await text_of(asked_in("read-only-mode")) == guides.READ_ONLY
    assert await text_of(asked_in("plan-mode")) == guides.PLANNING


async def test_continue_takes_up_the_request_that_was_stopped() -> None:
    asked = "take the tour"
    rows = [message(Role.USER, PromptText(asked))]
    written = await calls_of(asking(asked, tools=sorted(guides.TOUR_TOOLS)))
    rows += round_trip(written, {"ok": True})

    def again(*more: PromptMessage) -> Call:
        said = message(Role.USER, PromptText("Continue."))
        return msgspec.structs.replace(
            asking(asked, tools=sorted(guides.TOUR_TOOLS)), prompt=Prompt((*rows, said, *more))
        )

    (read,) = await calls_of(again())
    assert read.name == "read_file"
    assert "I continue with: take the tour" in await text_of(again())
    (edit,) = await calls_of(again(*round_trip([read], {"content": "x"})))
    assert edit.name == "edit_files"


async def test_continue_after_a_finished_request_repeats_nothing() -> None:
    rows = [message(Role.USER, PromptText("run `x`"))]
    rows += round_trip(await calls_of(asking("run `x`")), {"exit_code": 0})
    call = msgspec.structs.replace(asking("x"), prompt=Prompt((*rows, message(Role.USER, PromptText("Continue.")))))

    assert await calls_of(call) == []
    assert await text_of(call) == guides.NOTHING_LEFT


async def test_it_offers_what_the_tools_of_the_chat_allow() -> None:
    few = await text_of(asking("hello", tools=["read_file"]))
    none = await text_of(asking("hello", tools=[]))

    assert "- read /home/agent/notes.md" in few
    assert "- run" not in few
    assert guides.NOTHING_TO_USE in none
    assert "Try one of these" not in none


async def test_it_offers_nothing_to_write_where_only_the_plan_may_be() -> None:
    said = await text_of(asking("hello", tools=["read_file", "write_file", "edit_files", "execute", "propose_plan"]))

    offered = [line for line in said.splitlines() if line.startswith("- ")]
    assert "- make a plan to tidy the home directory" in offered
    assert "- run `uname -a`" in offered
    assert [line for line in offered if "write" in line or "tour" in line or "replace" in line] == []


@pytest.mark.parametrize("name", [*EVERYTHING, "github__listIssues"])
async def test_any_tool_can_be_used_by_its_name(name: str) -> None:
    (call,) = await calls_of(asking(f'use the tool {name} with {{"a": [1, "two"]}}', tools=[name]))

    assert (call.name, json.loads(call.input)) == (name, {"a": [1, "two"]})


async def test_arguments_that_are_no_json_are_not_understood() -> None:
    assert await calls_of(asking("use the tool read_file with {path}")) == []


@pytest.mark.parametrize("unit", ["!", "' with '", " in ", "'"])
@pytest.mark.parametrize("head", ["run ", "ask me a: ", "make a plan to ", "replace '", "search for '"])
def test_long_message_is_no_request_and_takes_no_time(head: str, unit: str) -> None:
    asked = f"{head}{unit * (submitted_content.MAX_TEXT_BYTES // len(unit))}x"

    began = time.thread_time()
    request = understand(asked, Prompt(messages=()), ())

    assert request is None
    # Matching it takes minutes.
    assert time.thread_time() - began < 1.0


async def test_agents_are_waited_for_each_by_its_own_id() -> None:
    asked = "ask agents to a; b; c"
    first = await calls_of(asking(asked))
    rows = round_trip(first, *({"chat_id": f"c-{place}"} for place in range(3)))

    second = await calls_of(asking(asked, *rows))

    assert [json.loads(call.input)["prompt"] for call in first] == ["a", "b", "c"]
    assert [json.loads(call.input) for call in second] == [{"chat_id": f"c-{place}"} for place in range(3)]


async def test_report_of_an_agent_is_told_without_its_start() -> None:
    asked = "ask an agent to count"
    first = await calls_of(asking(asked))
    rows = round_trip(first, {"chat_id": "c-1"})
    rows += round_trip(await calls_of(asking(asked, *rows)), {"report": "Seven."})

    assert await text_of(asking(asked, *rows)) == "The agent reports:\n\nSeven."


async def test_semicolon_of_a_command_does_not_end_a_task() -> None:
    calls = await calls_of(asking("delegate: run `sleep 1; date`; list the files; say `"))

    assert [json.loads(call.input)["prompt"] for call in calls] == ["run `sleep 1; date`", "list the files", "say `"]


@pytest.mark.parametrize("asked", ["ask an agent to list the files", "delegate: list the files; run x"])
async def test_workspace_is_made_before_agents_are_started(asked: str) -> None:
    tools = ["spawn_agent", "wait_agent", "list_templates", "create_workspace"]

    (call,) = await calls_of(asking(asked, tools=tools, system=""))

    assert call.name == "list_templates"


async def test_question_keeps_the_words_as_they_were_written() -> None:
    (call,) = await calls_of(asking("ask me which color to use: red or blue"))

    assert json.loads(call.input)["questions"][0]["question"] == "Which color to use?"


@pytest.mark.parametrize(("said", "is_choice"), [("Red.", True), ("blue", True), ("yellow", False)])
async def test_choice_is_taken_for_the_answer_to_its_question(said: str, is_choice: bool) -> None:
    asked = "ask me which color to use: red or blue"
    first = await calls_of(asking(asked))
    rows = [message(Role.USER, PromptText(asked)), *round_trip(first, json.loads(first[0].input))]

    call = Call(prompt=Prompt((*rows, message(Role.USER, PromptText(said)))), tools=asking(asked).tools)

    assert ("You chose" in await text_of(call)) is is_choice


async def test_tools_of_plan_mode_are_not_missed_without_a_hint() -> None:
    assert "plan mode" in await text_of(asking("ask me whether to go on", tools=["execute"]))


@pytest.mark.parametrize(
    ("asked", "result", "said"),
    [
        ("run `x`", {"backgrounded": True, "background_process_id": "p1"}, "background as process p1"),
        ("run `x`", {"exit_code": -1, "error": "timed out after 30s", "background_process_id": "p1"}, "timed out"),
        ("read /a", {"content": "1\tThere is no workspace like this one."}, "no workspace like this one"),
        ("run `x`", {"output": "x\n" * 5000 + "the end"}, "x\nthe end\n```"),
        ("list the templates", {"templates": [{"id": "t-1"}]}, "t-1"),
        ("stop the workspace", {"stopped": True, "workspace_name": "otter"}, "The workspace otter is stopped."),
        ("start the workspace", {"started": True, "workspace_name": "otter"}, "The workspace otter runs."),
        ("create a workspace from git", {"created": True, "workspace_name": "otter"}, "otter is made, and runs."),
        ("create a workspace from git", {"created": False, "message": "use start_workspace"}, "use start_workspace"),
        ("attach /a/b.txt", {"ok": True, "name": "b.txt"}, "b.txt is attached."),
    ],
)
async def test_results_are_told_as_they_are(asked: str, result: object, said: str) -> None:
    first = await calls_of(asking(asked, tools=EVERYTHING))
    rows = round_trip(first, result)

    assert await calls_of(asking(asked, *rows, tools=EVERYTHING)) == []
    assert said in await text_of(asking(asked, *rows, tools=EVERYTHING))


@pytest.mark.parametrize(
    ("result", "said"),
    [
        ({"report": "There are 12."}, "There are 12."),
        ({"timed_out": True}, "still at work"),
        ({"report": "", "last_error": "No key."}, "failed: No key."),
    ],
)
async def test_agent_that_is_late_or_failed_is_told_so(result: object, said: str) -> None:
    asked = "ask an agent to count"
    rows = round_trip(await calls_of(asking(asked)), {"chat_id": "c"})
    rows += round_trip(await calls_of(asking(asked, *rows)), result)

    assert said in await text_of(asking(asked, *rows))


async def test_summary_repeats_what_was_asked_and_calls_nothing() -> None:
    earlier = [message(Role.USER, PromptText("run `ls`")), *round_trip([ToolCall("c", "execute", "{}")], {"ok": 1})]
    instruction = message(Role.USER, PromptText("run a summary of this chat"))
    call = Call(
        prompt=Prompt((*earlier, instruction)),
        tools=asking("x").tools,
        tool_choice="none",
        purpose=Purpose.COMPACTION,
    )

    assert await calls_of(call) == []
    said = await text_of(call)
    assert "run `ls`" in said
    assert "execute" in said
    assert "summary of this chat" not in said


async def test_no_tool_is_called_when_none_may_be() -> None:
    call = msgspec.structs.replace(asking("run `ls`"), tool_choice="none")

    assert await calls_of(call) == []


async def test_model_named_tour_takes_the_tour_for_any_message() -> None:
    script = default_scripts().find("tour")
    assert script is not None

    parts = await play(script, asking("hello"))

    assert [part.name for part in parts if isinstance(part, ToolCall)] == ["write_file"]
    assert any(isinstance(part, TextDelta) for part in parts)
