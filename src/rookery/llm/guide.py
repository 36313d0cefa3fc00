"""The script a newcomer talks to: it understands plain requests and drives the real tools with them.

No intelligence is pretended: it says what it is, recognises a dozen ways to ask, and calls the tool that fits. What a
turn still has to do is read off its tool results, so it goes on after a crash like any other model.
"""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

import msgspec

from rookery.chat.messages import Role
from rookery.chat.prompt_parts import Prompt, PromptResult
from rookery.llm.scripted import CallTool, Say, Step, Think, all_parts, last_user_text, results_since_user, text_of
from rookery.llm.types import Call, Purpose

WHO_I_AM = (
    "I am Rookery's scripted model: I follow fixed rules, need no key and no network, and run a chat's tools for real. "
    "To talk to a language model instead, set ANTHROPIC_API_KEY or OPENAI_API_KEY before you start the server, "
    "or add a provider in the settings."
)
# What to ask for, and the tools that it takes.
SUGGESTIONS: tuple[tuple[frozenset[str], str], ...] = (
    (frozenset({"execute"}), "run `uname -a`"),
    (frozenset({"write_file"}), "write /home/agent/notes.md with Hello from Rookery"),
    (frozenset({"read_file"}), "read /home/agent/notes.md"),
    (frozenset({"edit_files"}), 'replace "Hello" with "Greetings" in /home/agent/notes.md'),
    (frozenset({"execute"}), "search for Greetings in /home/agent"),
    (frozenset({"ask_user_question"}), "ask me which colour I like: red, green or blue"),
    (frozenset({"write_file", "propose_plan"}), "make a plan to tidy the home directory"),
    (frozenset({"spawn_agent", "wait_agent"}), "ask an agent to count the files in /etc"),
    (frozenset({"spawn_agent", "wait_agent"}), "ask agents to count the files in /etc; name the kernel"),
    (frozenset({"process_list"}), "use the tool process_list"),
    (frozenset({"read_file"}), 'use the tool read_file with {"path": "/etc/hostname"}'),
    (frozenset({"write_file", "read_file", "edit_files", "execute"}), "take the tour"),
)
NOTHING_TO_USE = (
    "This chat has no tools, so there is nothing that I could do for you. But you can see how chats work here: watch "
    "this one from somewhere else, stop me, send more while I speak, leave and come back."
)
PLAN_TOOLS = frozenset({"ask_user_question", "propose_plan"})
MAX_AGENTS = 4
NEEDS_WORKSPACE = re.compile(r"no workspace", re.IGNORECASE)
PLAN_PATH = re.compile(r"<plan-file-path>\s*(\S+)\s*</plan-file-path>")
DEFAULT_PLAN_PATH = "/home/agent/plan.md"
HOME = "/home/agent"
MAX_SHOWN = 1500
# Of one message, and how many, a summary repeats.
MAX_QUOTE, MAX_QUOTES = 300, 20

TOUR = (
    ("write_file", {"path": f"{HOME}/tour.md", "content": "# A tour\n\nEverything here happened for real.\n"}),
    ("read_file", {"path": f"{HOME}/tour.md"}),
    (
        "edit_files",
        {
            "files": [
                {"path": f"{HOME}/tour.md", "edits": [{"old_text": "for real", "new_text": "for real, in a sandbox"}]}
            ]
        },
    ),
    ("execute", {"command": f"cat {HOME}/tour.md && uname -sm && date -u", "model_intent": "Look at the result"}),
)


class Request(msgspec.Struct, frozen=True):
    """The calls a request needs, in rounds: the calls of one round run side by side."""

    intro: str
    rounds: tuple[tuple[CallTool, ...], ...]


def guide(call: Call) -> Sequence[Step]:
    """The next step of the turn: more calls while there are rounds left, then an account of what they gave."""
    if not call.tools and call.format is not None:
        return (Say(json.dumps(_object_for(call))),)
    if call.purpose is Purpose.COMPACTION:
        return (Say(_summary(call.prompt)),)
    results = results_since_user(call.prompt)
    return _proceed(call, understand(last_user_text(call.prompt).strip(), call.prompt, results), results)


def tour(call: Call) -> Sequence[Step]:
    """Takes the tour, whatever was said."""
    return _proceed(call, _tour(), results_since_user(call.prompt))


def _proceed(call: Call, request: Request | None, results: Sequence[PromptResult]) -> Sequence[Step]:
    tools = {tool.name for tool in call.tools} if call.tool_choice != "none" else set()
    if request is None:
        return (Say(f"{WHO_I_AM}\n\n{_offer(tools)}"),)
    if missing := _missing(request, tools):
        names = ", ".join(missing)
        hint = " Turn on plan mode, and ask again." if PLAN_TOOLS.intersection(missing) else ""
        it = "it" if len(missing) == 1 else "them"
        return (Say(f"I would use {names} for that, but this chat does not have {it}.{hint}\n\n{WHO_I_AM}"),)
    if results and _is_preparation(results[-1], results) and (steps := _get_workspace(results, tools)):
        return steps
    done = _rounds_done(request, results)
    if done == len(request.rounds) or (results and results[-1].is_error):
        return (Say(_account(results)),)
    if results:
        return request.rounds[done]
    thought = f"This reads like a request for {_names(request.rounds[0])}."
    return (Think(thought), Say(request.intro), *request.rounds[0])


def _offer(tools: set[str]) -> str:
    """What can be asked for in this chat, and nothing else."""
    lines = [f"- {line}" for needed, line in SUGGESTIONS if needed <= tools]
    return "\n".join(["Try one of these:", *lines]) if lines else NOTHING_TO_USE


def understand(asked: str, prompt: Prompt, results: Sequence[PromptResult]) -> Request | None:
    """What the text asks for, or None when none of the patterns fits."""
    for pattern, make in _PATTERNS:
        if found := pattern.fullmatch(asked):
            return make(found, prompt, results)
    return None


Maker: TypeAlias = Callable[[re.Match[str], Prompt, Sequence[PromptResult]], Request | None]


def _run(found: re.Match[str], _: Prompt, __: Sequence[PromptResult]) -> Request:
    commands = re.findall(r"`([^`]+)`", found["what"]) or [found["what"].strip()]
    how = {"run_in_background": True} if found["background"] else {"timeout": "30s"}
    calls = tuple(CallTool("execute", {"command": command, **how}) for command in commands)
    return Request("I will run that.", (calls,))


def _read(found: re.Match[str], _: Prompt, __: Sequence[PromptResult]) -> Request:
    return Request("I will read it.", ((CallTool("read_file", {"path": found["path"]}),),))


def _write(found: re.Match[str], _: Prompt, __: Sequence[PromptResult]) -> Request:
    content = found["content"].strip().strip("\"'`") + "\n"
    return Request("I will write it.", ((CallTool("write_file", {"path": found["path"], "content": content}),),))


def _edit(found: re.Match[str], _: Prompt, __: Sequence[PromptResult]) -> Request:
    edits = [{"old_text": found["old"], "new_text": found["new"]}]
    call = CallTool("edit_files", {"files": [{"path": found["path"], "edits": edits}]})
    return Request("I will change it.", ((call,),))


def _search(found: re.Match[str], _: Prompt, __: Sequence[PromptResult]) -> Request:
    where = found["path"] or HOME
    command = f"grep -rnI --max-count=20 -e {shlex.quote(found['what'])} {shlex.quote(where)} | head -n 50"
    return Request("I will search for it.", ((CallTool("execute", {"command": command, "timeout": "30s"}),),))


def _attach(found: re.Match[str], _: Prompt, __: Sequence[PromptResult]) -> Request:
    return Request("I will attach it.", ((CallTool("attach_file", {"path": found["path"]}),),))


def _ask(found: re.Match[str], _: Prompt, __: Sequence[PromptResult]) -> Request:
    named = re.split(r",|\bor\b", found["options"]) if found["options"] else ["Yes", "No"]
    labels = [label.strip(" .?") for label in named if label.strip(" .?")][:4]
    if len(labels) < 2:
        labels = ["Yes", "No"]
    what = found["what"].strip(" :?")
    question = what[:1].upper() + what[1:] + "?"
    options = [{"label": label, "description": f"Choose {label}"} for label in labels]
    questions = [{"header": "Question", "question": question, "options": options}]
    return Request("I have a question.", ((CallTool("ask_user_question", {"questions": questions}),),))


def _plan(found: re.Match[str], prompt: Prompt, _: Sequence[PromptResult]) -> Request:
    goal = found["what"].strip(" .")
    system = "\n".join(text_of(message) for message in prompt.messages if message.role is Role.SYSTEM)
    marked = PLAN_PATH.search(system)
    path = marked[1] if marked else DEFAULT_PLAN_PATH
    steps = ("Look at what is there", f"Do the work: {goal}", "Check the result", "Report what changed")
    text = f"# Plan: {goal}\n\n" + "".join(f"{number}. {step}\n" for number, step in enumerate(steps, 1))
    write = CallTool("write_file", {"path": path, "content": text})
    return Request("I will write a plan and propose it.", ((write,), (CallTool("propose_plan", {"path": path}),)))


def _spawn(found: re.Match[str], _: Prompt, results: Sequence[PromptResult]) -> Request:
    tasks = [task.strip() for task in found["what"].split(";") if task.strip()] if found["several"] else []
    tasks = tasks[:MAX_AGENTS] or [found["what"].strip()]
    spawns = [CallTool("spawn_agent", {"type": "general", "prompt": task, "title": task[:60]}) for task in tasks]
    started = [result for result in results if result.name == "spawn_agent"]
    waits = [
        CallTool("wait_agent", {"chat_id": _field(started[place] if place < len(started) else None, "chat_id")})
        for place in range(len(tasks))
    ]
    whom = "an agent and wait for its report" if len(tasks) == 1 else "agents and wait for their reports"
    return Request(f"I will hand that to {whom}.", (tuple(spawns), tuple(waits)))


def _use(found: re.Match[str], _: Prompt, __: Sequence[PromptResult]) -> Request | None:
    """Any tool by its name, with the arguments as JSON: what plain words do not reach."""
    try:
        args = msgspec.json.decode(found["args"] or "{}", type=dict[str, Any])
    except msgspec.DecodeError:
        return None
    return Request(f"I will use {found['tool']}.", ((CallTool(found["tool"], args),),))


def _named_tool(name: str) -> Maker:
    return lambda _, __, ___: Request(f"I will use {name}.", ((CallTool(name),),))


def _take_tour(_: re.Match[str], __: Prompt, ___: Sequence[PromptResult]) -> Request:
    return _tour()


def _tour() -> Request:
    rounds = tuple((CallTool(name, args),) for name, args in TOUR)
    return Request("A short tour: I write a file, read it, edit it, and run a command on it.", rounds)


_PLEASE = r"(?:please[, ]+|can you |could you |now )?"
_PATH = r"[`\"']?(?P<path>/[^\s`\"']+)[`\"']?"
_WITH = r"(?: with| containing| saying)(?: the text)?:?"
_OLD, _NEW = (rf"[`\"'](?P<{name}>.*?)[`\"']" for name in ("old", "new"))
_PATTERNS: tuple[tuple[re.Pattern[str], Maker], ...] = tuple(
    (re.compile(_PLEASE + pattern + r"[.!?]*", re.IGNORECASE | re.DOTALL), make)
    for pattern, make in (
        (r"(?:take|give me|show me|start) (?:the|a) tour", _take_tour),
        (r"(?:use|call) the tool `?(?P<tool>[a-z0-9_-]+)`?(?: with:? (?P<args>\{.*\}))?", _use),
        (r"(?:list|show)(?: me)?(?: the| my| all)? templates", _named_tool("list_templates")),
        (r"(?:list|show)(?: me)?(?: the| my| all)?(?: running)? processes", _named_tool("process_list")),
        (r"(?:list|show)(?: me)?(?: the| my| all)? (?:sub)?agents", _named_tool("list_agents")),
        (r"start (?:the|my) workspace", _named_tool("start_workspace")),
        (r"stop (?:the|my) workspace", _named_tool("stop_workspace")),
        (r"(?:run|execute)(?: the command)?:? (?P<what>.+?)(?P<background> in the background)?", _run),
        (rf"(?:read|open|show|print)(?: me)?(?: the file)? {_PATH}", _read),
        (rf"(?:write|create|save)(?: a| the)?(?: file)? {_PATH}{_WITH} (?P<content>.+)", _write),
        (rf"(?:replace|change) {_OLD} (?:with|to|by|into) {_NEW} in(?: the file)? {_PATH}", _edit),
        (rf"(?:search(?: for)?|look for|grep(?: for)?) [`\"']?(?P<what>[^`\"']+?)[`\"']?(?: in {_PATH})?", _search),
        (rf"attach(?: the file)? {_PATH}", _attach),
        (
            r"(?:ask|spawn|start|use) (?:(?:an?|another) (?:sub)?agent|(?P<several>(?:sub)?agents))"
            r" (?:to|and let (?:it|them)) (?P<what>.+?)",
            _spawn,
        ),
        (r"ask me (?P<what>[^:]+?)(?:: (?P<options>.+?))?", _ask),
        (r"(?:make|write|propose|draft) (?:a|the) plan (?:to|for) (?P<what>.+?)", _plan),
    )
)


def _missing(request: Request, tools: set[str]) -> list[str]:
    return sorted({call.name for calls in request.rounds for call in calls} - tools)


def _rounds_done(request: Request, results: Sequence[PromptResult]) -> int:
    """How many rounds have their results. Results of getting a workspace first do not count."""
    left = len([result for result in results if not _is_preparation(result, results)])
    for index, calls in enumerate(request.rounds):
        if left < len(calls):
            return index
        left -= len(calls)
    return len(request.rounds)


def _is_preparation(result: PromptResult, results: Sequence[PromptResult]) -> bool:
    """Whether this came of getting a workspace, which a tool has asked for, and not of the request itself."""
    if _needs_workspace(result):
        return True
    return result.name in ("list_templates", "create_workspace") and any(map(_needs_workspace, results))


def _needs_workspace(result: PromptResult) -> bool:
    return result.is_error and NEEDS_WORKSPACE.search(result.text) is not None


def _get_workspace(results: Sequence[PromptResult], tools: set[str]) -> Sequence[Step]:
    """The tools need a workspace: list the templates, make one. Nothing when it is there and the turn can go on."""
    last = results[-1]
    if last.name == "create_workspace":
        return (Say(f"No workspace could be made: {_shown(last.text)}"),) if last.is_error else ()
    tried = any(result.name == "create_workspace" for result in results)
    if tried or not {"list_templates", "create_workspace"} <= tools:
        return (Say("There is no workspace that I could use. Attach one to this chat, then ask again."),)
    if last.name != "list_templates":
        return (Say("There is no workspace yet, so I make one first."), CallTool("list_templates"))
    template = _field(last, "recommended_template_id") or _first_template(last)
    if not template:
        return (Say("There is no template that I could make a workspace from. An administrator has to add one."),)
    return (CallTool("create_workspace", {"template_id": template}),)


class _Template(msgspec.Struct, frozen=True):
    id: str


class _Templates(msgspec.Struct, frozen=True):
    templates: tuple[_Template, ...] = ()


def _first_template(result: PromptResult) -> str:
    try:
        templates = msgspec.json.decode(result.text, type=_Templates).templates
    except msgspec.DecodeError:
        return ""
    return templates[0].id if templates else ""


def _account(results: Sequence[PromptResult]) -> str:
    """What the tools gave, in words, with the output that matters."""
    lines = [_said(result) for result in results if not _is_preparation(result, results)]
    return "\n\n".join(lines)


def _said(result: PromptResult) -> str:
    if result.is_error:
        return f"{result.name} failed: {_shown(_field(result, 'error') or result.text)}"
    match result.name:
        case "execute":
            output = _field(result, "output").rstrip()
            head = _how_it_ended(result)
            return f"{head}:\n\n```\n{_shown(output)}\n```" if output else f"{head}. It printed nothing."
        case "read_file":
            return f"It reads:\n\n```\n{_shown(_field(result, 'content'))}\n```"
        case "write_file":
            return "The file is written."
        case "edit_files":
            return "The file is changed."
        case "wait_agent":
            return _reported(result)
        case "spawn_agent":
            return "The agent has started."
        case _:
            return f"{result.name} is done:\n\n```\n{_shown(result.text)}\n```" if result.text else "It is done."


def _how_it_ended(result: PromptResult) -> str:
    process, code = _field(result, "background_process_id"), _field(result, "exit_code")
    if error := _field(result, "error"):
        return f"The command {error}" + (f", and goes on as process {process}" if process else "")
    if process:
        return f"The command runs in the background as process {process}"
    return "The command finished" + (f" with exit code {code}" if code not in ("", "0") else "")


def _reported(result: PromptResult) -> str:
    if error := _field(result, "last_error"):
        return f"The agent failed: {_shown(error)}"
    if _field(result, "timed_out"):
        return "The agent is still at work. Ask me to list agents to see how it is doing."
    return f"The agent reports:\n\n{_shown(_field(result, 'report')) or '(nothing)'}"


def _shown(text: str) -> str:
    return text if len(text) <= MAX_SHOWN else f"{text[:MAX_SHOWN]}\n... ({len(text) - MAX_SHOWN} more characters)"


def _field(result: PromptResult | None, name: str) -> str:
    """A member of a result that is a JSON object; empty when there is none."""
    try:
        value = msgspec.json.decode(result.text) if result else None
    except msgspec.DecodeError:
        return ""
    found = value.get(name) if isinstance(value, dict) else None
    return "" if found is None else str(found)


def _summary(prompt: Prompt) -> str:
    """What a summary has to keep, without understanding any of it: what was asked for, in the user's own words."""
    asked = [text_of(message) for message in prompt.messages if message.role is Role.USER][:-1]
    lines = [f"- {' '.join(text.split())[:MAX_QUOTE]}" for text in asked[-MAX_QUOTES:] if text.strip()]
    used = sorted({part.name for part in all_parts(prompt) if isinstance(part, PromptResult)})
    tools = f"\n\nTools that were used: {', '.join(used)}." if used else ""
    return "The user asked, in this order:\n" + ("\n".join(lines) or "- (nothing)") + tools


def _names(calls: Sequence[CallTool]) -> str:
    return " and ".join(sorted({call.name for call in calls}))


def _object_for(call: Call) -> dict[str, object]:
    """An object of the asked-for shape, filled with words of the conversation: titles and labels work offline too."""
    assert call.format is not None
    words = re.sub(r"\s+", " ", last_user_text(call.prompt)).strip() or "New chat"
    properties = call.format.schema.get("properties", {})
    return {name: _value_for(schema, words) for name, schema in properties.items()}


def _value_for(schema: object, words: str) -> object:
    kind = schema.get("type") if isinstance(schema, dict) else None
    match kind:
        case "integer" | "number":
            return 0
        case "boolean":
            return False
        case "array":
            return []
        case "object":
            return {}
        case _:
            return " ".join(words.split()[:5]).strip(".,:;!?")
