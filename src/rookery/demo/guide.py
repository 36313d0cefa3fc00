"""The guide script: recognizes plain requests and calls the matching tools.

It introduces itself as a script. Each step of a turn is derived from the prompt alone, so a turn continues after a
crash like that of any other model.
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence

import msgspec

from rookery.demo import short_texts
from rookery.demo.guide_requests import Request, field_of, make_tour, plan_for, system_text, understand
from rookery.domain.chat.messages import Role
from rookery.domain.chat.model_prompt import Prompt, PromptCall, PromptResult
from rookery.llm.scripted import CallTool, Say, Step, Think, all_parts, last_user_text, results_since_user, text_of
from rookery.llm.types import Call, Purpose

WHO_I_AM = (
    "I am Rookery's scripted model: I follow fixed rules, need no key and no network, and run a chat's tools for real. "
    "To talk to a language model instead, set ANTHROPIC_API_KEY or OPENAI_API_KEY before you start the server, "
    "or add a provider in the settings."
)
# Example requests and the tools that they need.
SUGGESTIONS: tuple[tuple[frozenset[str], str], ...] = (
    (frozenset({"write_file", "read_file", "edit_files", "execute"}), "take the tour"),
    (frozenset({"write_file", "execute"}), "write a Python script that counts to five"),
    (frozenset({"execute"}), "run `uname -a`"),
    (frozenset({"write_file"}), "write /home/agent/notes.md with Hello from Rookery"),
    (frozenset({"read_file"}), "read /home/agent/notes.md"),
    (frozenset({"edit_files"}), 'replace "Hello" with "Greetings" in /home/agent/notes.md'),
    (frozenset({"execute"}), "search for Greetings in /home/agent"),
    (frozenset({"ask_user_question"}), "ask me which color to use: red, green or blue"),
    (frozenset({"write_file", "propose_plan"}), "make a plan to tidy the home directory"),
    (frozenset({"spawn_agent", "wait_agent"}), "ask an agent to count the files in /etc"),
    (frozenset({"spawn_agent", "wait_agent"}), "ask agents to count the files in /etc; name the kernel"),
    (frozenset({"spawn_agent", "wait_agent"}), "delegate: list the files; run `uname -a`"),
    (frozenset({"advisor"}), "ask the advisor: should I rewrite it or patch it?"),
    (frozenset({"process_list"}), "use the tool process_list"),
    (frozenset({"read_file"}), 'use the tool read_file with {"path": "/etc/hostname"}'),
)
NOTHING_TO_USE = (
    "This chat has no tools, so there is nothing that I could do for you. But you can see how chats work here: watch "
    "this one from somewhere else, stop me, send more while I speak, leave and come back."
)
TOUR_TOOLS = SUGGESTIONS[0][0]
WRITING = frozenset({"write_file", "edit_files"})
PLAN_TOOLS = frozenset({"ask_user_question", "propose_plan"})
NEEDS_WORKSPACE = re.compile(r"no workspace", re.IGNORECASE)
NEEDS_START = re.compile(r"use start_workspace", re.IGNORECASE)
# Tools that need a workspace. A chat without a workspace gets one before they are called.
WORKSPACE_TOOLS = frozenset(
    {
        *("read_file", "write_file", "edit_files", "execute", "attach_file", "propose_plan"),
        *("process_output", "process_list", "process_signal"),
    }
)
PREPARATION = frozenset({"list_templates", "create_workspace", "start_workspace"})
READ_ONLY_MARK, PLAN_MARK = "<read-only-mode>", "<plan-mode>"
HAS_WORKSPACE = "<workspace-context>"
MAX_SHOWN = 1500
# The length and the number of messages that a summary repeats.
MAX_QUOTE, MAX_QUOTES = 300, 20

HELP = re.compile(
    r"(?:please[, ]+)?(?:help|(?:show me |tell me |explain )?what (?:can you|you can) do\b.*|who are you)[.!?]*",
    re.IGNORECASE | re.DOTALL,
)
CONTINUE = re.compile(r"(?:please[, ]+)?(?:continue|go on)[.!]*", re.IGNORECASE)
NOTHING_LEFT = (
    "Nothing is left to continue: your last request is done. Give me another one, or send `help` for examples."
)
READ_ONLY = (
    "This chat is read only, so I did not do that: it would change something. To allow it, set the mode beside the "
    "message to Auto or Ask, and ask again."
)
PLANNING = (
    "This chat is in plan mode, in which only the plan is written, so I did not do that. Turn plan mode off, and ask "
    "again."
)
NEEDS_PLAN_MODE = (
    "I make plans and ask questions in plan mode, which is off in this chat. Turn it on beside the message, and ask "
    "again."
)
DENIED = {
    "denied_by_user": "You denied that, so I did not run it. Tell me what to do instead.",
    "denied_by_rule": "A rule denies that, so I did not run it. Tell me what to do instead.",
}

NOTICE = "<subagent-notice>"
ADVICE = (
    "I would take the smaller step first, and check it before the larger one: it is easier to take back. What would "
    "change my mind is a deadline that leaves no time for two steps. (This advice is scripted; a language model reads "
    "your work.)"
)
NOT_UNDERSTOOD = (
    "I follow fixed rules and have none for that. So that you see a turn with tools all the same, here is a short "
    "tour: I write a file, read it, edit it, and run a command on it."
)


def guide(call: Call) -> Sequence[Step]:
    """Return the next step of the turn: the next round of calls, or a report of all results."""
    if not call.tools and call.format is not None:
        return (Say(json.dumps(short_texts.make_object(call.format.schema, last_user_text(call.prompt)))),)
    if call.purpose is Purpose.COMPACTION:
        return (Say(_summary(call.prompt)),)
    if call.purpose is Purpose.ADVISOR:
        return (Say(ADVICE),)
    results = results_since_user(call.prompt)
    asked = last_user_text(call.prompt).strip()
    if asked.startswith(NOTICE):
        return (Say(_noticed(asked)),)
    if not results and (answered := _answered(call.prompt, asked)) is not None:
        return (Say(answered),)
    if HELP.fullmatch(asked):
        return (Say(_help(_usable(call))),)
    if CONTINUE.fullmatch(asked):
        return _continue(call, results)
    request = understand(asked, call.prompt, results) or _instead(call, asked, results)
    return _proceed(call, request, results)


def _help(tools: set[str]) -> str:
    tour_ends = "\n\nThe tour is the quickest start: send `take the tour`." if tools >= TOUR_TOOLS else ""
    return f"{WHO_I_AM}\n\n{_offer(tools)}{tour_ends}"


def _continue(call: Call, results: Sequence[PromptResult]) -> Sequence[Step]:
    """Take up the last request where it was stopped. Calls of complete rounds are not repeated."""
    asked, before = _last_request(call.prompt)
    request = understand(asked, call.prompt, before)
    if request is None:
        return (Say(NOTHING_LEFT if asked else f"There is nothing to continue yet. {_help(_usable(call))}"),)
    done_before = _own(request, [result for result in before if not result.is_error])
    rounds = _rounds_done(request, done_before)
    if rounds == len(request.rounds):
        return (Say(NOTHING_LEFT),)
    left = msgspec.structs.replace(request, intro=f"I continue with: {_shown(asked)}", rounds=request.rounds[rounds:])
    return _proceed(call, left, results)


def _last_request(prompt: Prompt) -> tuple[str, list[PromptResult]]:
    """Return the last request that is not to continue, and the results of its turns before the last message."""
    asked, found = "", list[PromptResult]()
    users = [place for place, message in enumerate(prompt.messages) if message.role is Role.USER]
    for message in prompt.messages[: users[-1] if users else 0]:
        if message.role is Role.USER and (text := text_of(message).strip()) and not CONTINUE.fullmatch(text):
            asked, found = text, []
        found += [part for part in message.parts if isinstance(part, PromptResult)]
    return asked, found


def tour(call: Call) -> Sequence[Step]:
    """Return the next step of the tour. The message does not matter."""
    return _proceed(call, make_tour(call.prompt), results_since_user(call.prompt))


def _instead(call: Call, asked: str, results: Sequence[PromptResult]) -> Request | None:
    """Return the request for a message that matches no pattern: a plan in plan mode, else the tour, once per chat."""
    tools = _usable(call)
    if len(asked.split()) < 3 or "the tool " in asked:
        return None
    if {"propose_plan", "write_file"} <= tools:
        return plan_for(asked, call.prompt)
    rounds = make_tour(call.prompt, NOT_UNDERSTOOD, WHO_I_AM)
    before = [part for part in all_parts(call.prompt) if isinstance(part, PromptResult)]
    is_first = len(before) == len(results)
    return rounds if is_first and not _missing(rounds, tools) else None


def _answered(prompt: Prompt, said: str) -> str | None:
    """Return an answer to a choice; None if the message does not answer a question of the guide."""
    before = [part for part in all_parts(prompt) if isinstance(part, PromptCall | PromptResult)]
    if len(before) < 2 or not isinstance(before[-1], PromptResult) or before[-1].name != "ask_user_question":
        return None
    try:
        questions = msgspec.json.decode(before[-1].text, type=_Questions).questions
    except msgspec.DecodeError:
        return None
    labels = {option.label.casefold() for question in questions for option in question.options}
    if said.casefold().strip(" .!") not in labels:
        return None
    choice = said.strip(" .!")
    return f"You chose {choice}. I follow fixed rules, so that is all I do with it; a language model would continue."


class _Option(msgspec.Struct, frozen=True):
    label: str


class _Question(msgspec.Struct, frozen=True):
    options: tuple[_Option, ...] = ()


class _Questions(msgspec.Struct, frozen=True):
    questions: tuple[_Question, ...]


def _usable(call: Call) -> set[str]:
    return {tool.name for tool in call.tools} if call.tool_choice != "none" else set()


def _proceed(call: Call, request: Request | None, results: Sequence[PromptResult]) -> Sequence[Step]:
    tools = _usable(call)
    if request is None:
        return (Say(_help(tools)),)
    if missing := _missing(request, tools):
        if PLAN_TOOLS.intersection(missing):
            return (Say(NEEDS_PLAN_MODE),)
        if READ_ONLY_MARK in system_text(call.prompt):
            return (Say(READ_ONLY),)
        if PLAN_MARK in system_text(call.prompt):
            return (Say(PLANNING),)
        names = ", ".join("the advisor" if name == "advisor" else name for name in missing)
        hint = " An administrator can turn it on in the settings, on the page Agent." if "advisor" in missing else ""
        it = "it" if len(missing) == 1 else "them"
        return (Say(f"I would use {names} for that, but this chat does not have {it}.{hint}\n\n{WHO_I_AM}"),)
    if (steps := _prepare(call.prompt, request, results, tools)) is not None:
        return steps
    own = _own(request, results)
    done = _rounds_done(request, own)
    if done == len(request.rounds) or (own and own[-1].is_error):
        return (Say("\n\n".join(filter(None, (_account(own), request.outro)))),)
    if own:
        return request.rounds[done]
    thought = f"This reads like a request for {_names(request.rounds[0])}."
    return (Think(thought), Say(request.intro), *request.rounds[0])


def _offer(tools: set[str]) -> str:
    """Return a list of the example requests that work in this chat."""
    is_planning = "propose_plan" in tools
    lines = [
        f"- {line}"
        for needed, line in SUGGESTIONS
        # In plan mode, only the plan may be written.
        if needed <= tools and not (is_planning and needed & WRITING and "propose_plan" not in needed)
    ]
    return "\n".join(["Try one of these:", *lines]) if lines else NOTHING_TO_USE


def _missing(request: Request, tools: set[str]) -> list[str]:
    return sorted({call.name for calls in request.rounds for call in calls} - tools)


def _rounds_done(request: Request, own: Sequence[PromptResult]) -> int:
    """Return the number of rounds that have results."""
    left = len(own)
    for index, calls in enumerate(request.rounds):
        if left < len(calls):
            return index
        left -= len(calls)
    return len(request.rounds)


def _own(request: Request, results: Sequence[PromptResult]) -> list[PromptResult]:
    """Return the results of the request, without those of creating and starting a workspace."""
    asked_for = {call.name for calls in request.rounds for call in calls}
    return [
        result
        for result in results
        if not (result.name in PREPARATION and result.name not in asked_for) and not _is_about_workspace(result)
    ]


def _is_about_workspace(result: PromptResult) -> bool:
    """Return whether the result is the error of a missing or stopped workspace."""
    return result.is_error and bool(NEEDS_WORKSPACE.search(result.text) or NEEDS_START.search(result.text))


def _prepare(
    prompt: Prompt, request: Request, results: Sequence[PromptResult], tools: set[str]
) -> Sequence[Step] | None:
    """Return the calls that must precede those of the request; None if there are none."""
    names = {call.name for calls in request.rounds for call in calls}
    if not (names & WORKSPACE_TOOLS or request.needs_workspace) or names & PREPARATION:
        return None
    by_name = {result.name: result for result in results}
    created, started = by_name.get("create_workspace"), by_name.get("start_workspace")
    for made, what in ((created, "made"), (started, "started")):
        if made is not None and made.is_error:
            return (Say(f"No workspace could be {what}: {_shown(field_of(made, 'error') or made.text)}"),)
    last = results[-1] if results else None
    is_missing = last is not None and last.is_error and NEEDS_WORKSPACE.search(last.text) is not None
    if is_missing and created is not None:
        return (Say("There is no workspace that I could use. Attach one to this chat, then ask again."),)
    if is_missing or (created is None and not _has_workspace(prompt) and "create_workspace" in tools):
        return _make_workspace(by_name.get("list_templates"), tools)
    is_down = last is not None and last.is_error and NEEDS_START.search(last.text) is not None
    is_made_down = created is not None and field_of(created, "status") in ("stopped", "failed")
    if (is_down or is_made_down or (not results and _was_stopped(prompt))) and started is None:
        if "start_workspace" not in tools:
            return (Say("The workspace of this chat does not run, and I cannot start it here."),)
        return (Say("The workspace does not run, so I start it first."), CallTool("start_workspace"))
    return None


def _make_workspace(listed: PromptResult | None, tools: set[str]) -> Sequence[Step]:
    if not {"list_templates", "create_workspace"} <= tools:
        return (Say("There is no workspace that I could use. Attach one to this chat, then ask again."),)
    if listed is None:
        return (Say("There is no workspace yet, so I make one first."), CallTool("list_templates"))
    template = _template_for(listed)
    if not template:
        return (Say("There is no template that I could make a workspace from. An administrator has to add one."),)
    return (CallTool("create_workspace", {"template_id": template}),)


def _has_workspace(prompt: Prompt) -> bool:
    return HAS_WORKSPACE in system_text(prompt)


def _was_stopped(prompt: Prompt) -> bool:
    """Return whether the last workspace operation of this chat was a stop."""
    life = [
        part.name
        for part in all_parts(prompt)
        if isinstance(part, PromptResult) and part.name.endswith("_workspace") and not part.is_error
    ]
    return bool(life) and life[-1] == "stop_workspace"


class _Template(msgspec.Struct, frozen=True):
    id: str


class _Templates(msgspec.Struct, frozen=True):
    templates: tuple[_Template, ...] = ()


def _template_for(listed: PromptResult) -> str:
    """Return `python` or `blank` if they exist, else the recommended template, else the first.

    The recommended template is the one used most, often `git`, which needs a repository and an approval.
    """
    try:
        templates = msgspec.json.decode(listed.text, type=_Templates).templates
    except msgspec.DecodeError:
        return ""
    ids = [template.id for template in templates]
    choices = ("python", "blank", field_of(listed, "recommended_template_id"), *ids[:1])
    return next((name for name in choices if name in ids), "")


def _account(results: Sequence[PromptResult]) -> str:
    """Return a text about the results of all tools. The report of a subagent says that it was started."""
    has_reports = any(result.name == "wait_agent" for result in results)
    told = [result for result in results if result.is_error or not (has_reports and result.name == "spawn_agent")]
    return "\n\n".join(map(_said, told))


def _startup(result: PromptResult) -> str:
    """Return a text about the failure of the workspace's startup script; empty if it did not fail."""
    how = field_of(result, "startup_script")
    if not how:
        return ""
    output = field_of(result, "startup_output")
    told = "did not end in time" if how == "timeout" else "failed"
    return f" Its startup script {told}" + (f":\n\n```\n{_shown(output)}\n```" if output else ".")


def _said(result: PromptResult) -> str:
    if result.is_error:
        if (denied := DENIED.get(field_of(result, "reason"))) is not None:
            return denied
        return f"{result.name} failed: {_shown(field_of(result, 'error') or result.text)}"
    match result.name:
        case "execute":
            output = field_of(result, "output").rstrip()
            head = _how_it_ended(result)
            if field_of(result, "backgrounded"):
                return f"{head}."
            return f"{head}:\n\n```\n{_shown(output)}\n```" if output else f"{head}. It printed nothing."
        case "read_file":
            return f"It reads:\n\n```\n{_shown(field_of(result, 'content'))}\n```"
        case "write_file":
            return "The file is written."
        case "edit_files":
            return "The file is changed."
        case "create_workspace" if field_of(result, "created") == "True":
            return f"The workspace {field_of(result, 'workspace_name')} is made, and runs.{_startup(result)}"
        case "start_workspace":
            return f"The workspace {field_of(result, 'workspace_name')} runs.{_startup(result)}"
        case "stop_workspace":
            return f"The workspace {field_of(result, 'workspace_name')} is stopped. Its files are kept."
        case "attach_file":
            return f"{field_of(result, 'name')} is attached."
        case "wait_agent":
            return _reported(result)
        case "spawn_agent":
            return "The agent has started."
        case "advisor":
            told = field_of(result, "advice") or field_of(result, "reason")
            return f"The advisor says:\n\n{_shown(told)}"
        case _:
            return f"{result.name} is done:\n\n```\n{_shown(result.text)}\n```" if result.text else "It is done."


def _how_it_ended(result: PromptResult) -> str:
    process, code = field_of(result, "background_process_id"), field_of(result, "exit_code")
    if error := field_of(result, "error"):
        return f"The command {error}" + (f", and continues as process {process}" if process else "")
    if process:
        return f"The command runs in the background as process {process}"
    return "The command finished" + (f" with exit code {code}" if code not in ("", "0") else "")


def _noticed(text: str) -> str:
    """Return a text about subagents that ended without a waiting `wait_agent` call."""
    inner = text.replace(NOTICE, "").replace(NOTICE.replace("<", "</"), "")
    return f"There is news of my subagents:\n\n{_shown(inner.strip())}"


class _Agent(msgspec.Struct, frozen=True):
    title: str = ""
    report: str = ""
    last_error: str = ""
    timed_out: bool = False


class _Agents(msgspec.Struct, frozen=True):
    agents: tuple[_Agent, ...]


def _reported(result: PromptResult) -> str:
    try:
        agents = msgspec.json.decode(result.text, type=_Agents).agents
    except msgspec.DecodeError:
        return _reported_one(result)
    return "\n\n".join(map(_reported_of_many, agents))


def _reported_of_many(agent: _Agent) -> str:
    if agent.last_error:
        return f"**{agent.title}** failed: {_shown(agent.last_error)}"
    if agent.timed_out:
        return f"**{agent.title}** is still at work."
    return f"**{agent.title}** reports:\n\n{_shown(agent.report) or '(nothing)'}"


def _reported_one(result: PromptResult) -> str:
    if error := field_of(result, "last_error"):
        return f"The agent failed: {_shown(error)}"
    if field_of(result, "timed_out"):
        return "The agent is still at work. Ask me to list agents to see how it is doing."
    return f"The agent reports:\n\n{_shown(field_of(result, 'report')) or '(nothing)'}"


def _shown(text: str) -> str:
    """Return the text, or its beginning and end if it is long."""
    if len(text) <= MAX_SHOWN:
        return text
    half = MAX_SHOWN // 2
    return f"{text[:half]}\n... ({len(text) - 2 * half} more characters) ...\n{text[-half:]}"


def _summary(prompt: Prompt) -> str:
    """Return a summary that repeats the user's requests."""
    asked = [text_of(message) for message in prompt.messages if message.role is Role.USER][:-1]
    lines = [f"- {' '.join(text.split())[:MAX_QUOTE]}" for text in asked[-MAX_QUOTES:] if text.strip()]
    used = sorted({part.name for part in all_parts(prompt) if isinstance(part, PromptResult)})
    tools = f"\n\nTools that were used: {', '.join(used)}." if used else ""
    return "The user asked, in this order:\n" + ("\n".join(lines) or "- (nothing)") + tools


def _names(calls: Sequence[CallTool]) -> str:
    return " and ".join(sorted({call.name for call in calls}))
