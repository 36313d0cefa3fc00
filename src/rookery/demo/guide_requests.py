"""The requests that the guide recognizes, and the tool calls of each.

A request is parsed again at each step of its turn, from the message and the prompt alone.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

import msgspec

from rookery.domain.chat.messages import Role
from rookery.domain.chat.model_prompt import Prompt, PromptResult
from rookery.llm.scripted import CallTool, text_of

HOME = "/home/agent"
DEFAULT_PLAN_PATH = "/home/agent/plan.md"
PLAN_PATH = re.compile(r"<plan-file-path>\s*(\S+)\s*</plan-file-path>")
DIRECTORY = re.compile(r"^Working directory: (/\S+)$", re.MULTILINE)
# The time of the patterns grows with the square of the length: 30 ms for this one, minutes for the longest message.
MAX_REQUEST_CHARS = 4096
MAX_AGENTS = 4
MAX_GOAL = 300
TESTS = "if [ -f Makefile ]; then make test; else python3 -m unittest discover -v; fi 2>&1"
# Commands that are recognized without a verb such as "run".
COMMANDS = frozenset(
    {
        *("ls", "pwd", "date", "uname", "whoami", "id", "df", "du", "free", "ps", "env", "echo", "cat", "head", "tail"),
        *("wc", "find", "grep", "git", "python", "python3", "pip", "node", "npm", "make", "hostname", "uptime", "tree"),
    }
)
SCRIPT = """\
for number in range(1, 6):
    print("and", number)
"""


REVIEW = """\
I cannot think for myself, but these steps help in any review:

1. Read the description, and find out which problem the change solves.
2. Read the tests first: they show what the author expects.
3. Read the change file by file, and note what you do not understand.
4. Run it, and try what the tests leave out.
5. Say what must change, what could be better, and what is good.

In a chat with a language model, this gets you an answer about your own pull request."""


class Request(msgspec.Struct, frozen=True):
    """The calls of a request in rounds. The calls of one round run in parallel. `outro` is the end of the report.

    `needs_workspace`: a workspace is created first, for the subagents. The calls themselves do not need it.
    """

    intro: str
    rounds: tuple[tuple[CallTool, ...], ...]
    outro: str = ""
    needs_workspace: bool = False


def understand(asked: str, prompt: Prompt, results: Sequence[PromptResult]) -> Request | None:
    """Return the request in the text; None if no pattern matches, or if the text is too long for a request."""
    if len(asked) > MAX_REQUEST_CHARS:
        return None
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
    return plan_for(found["what"], prompt)


def plan_for(wish: str, prompt: Prompt) -> Request:
    goal = " ".join(wish.split()).strip(" .")[:MAX_GOAL]
    marked = PLAN_PATH.search(system_text(prompt))
    path = marked[1] if marked else DEFAULT_PLAN_PATH
    steps = ("Look at what is there", f"Do the work: {goal}", "Check the result", "Report what changed")
    text = f"# Plan: {goal}\n\n" + "".join(f"{number}. {step}\n" for number, step in enumerate(steps, 1))
    write = CallTool("write_file", {"path": path, "content": text})
    return Request("I will write a plan and propose it.", ((write,), (CallTool("propose_plan", {"path": path}),)))


def _spawn(found: re.Match[str], _: Prompt, results: Sequence[PromptResult]) -> Request:
    tasks = _tasks(found["what"]) if found["several"] else []
    tasks = tasks or [found["what"].strip()]
    spawns = [CallTool("spawn_agent", {"type": "general", "prompt": task, "title": task[:60]}) for task in tasks]
    started = [result for result in results if result.name == "spawn_agent"]
    waits = [
        CallTool("wait_agent", {"chat_id": field_of(started[place] if place < len(started) else None, "chat_id")})
        for place in range(len(tasks))
    ]
    whom = "an agent and wait for its report" if len(tasks) == 1 else "agents and wait for their reports"
    return Request(f"I will hand that to {whom}.", (tuple(spawns), tuple(waits)), needs_workspace=True)


def _tasks(what: str) -> list[str]:
    """Return the tasks between semicolons. A semicolon in a command between backticks belongs to the command."""
    found = re.findall(r"(?:`[^`]*`|[^;])+", what)
    return [task.strip() for task in found if task.strip()][:MAX_AGENTS]


def _delegate(found: re.Match[str], prompt: Prompt, results: Sequence[PromptResult]) -> Request:
    """Return calls that start subagents in parallel, for the named tasks or for two tasks of the guide."""
    what = " ".join(found["what"].split())[:MAX_GOAL]
    tasks = _tasks(what)
    if len(tasks) < 2:
        tasks = ["list the files", f"write {_folder(prompt)}/delegated.md with {what}"]
    spawns = [CallTool("spawn_agent", {"type": "general", "prompt": task, "title": task[:60]}) for task in tasks]
    started = [field_of(result, "chat_id") for result in results if result.name == "spawn_agent"]
    wait = CallTool("wait_agent", {"chat_ids": started})
    return Request(
        f"I will hand that to {len(tasks)} subagents, which work side by side, and wait for their reports.",
        (tuple(spawns), (wait,)),
        needs_workspace=True,
    )


def _ask_advisor(found: re.Match[str], _: Prompt, __: Sequence[PromptResult]) -> Request:
    return Request("I will ask the advisor.", ((CallTool("advisor", {"question": found["what"].strip()}),),))


def _use(found: re.Match[str], _: Prompt, __: Sequence[PromptResult]) -> Request | None:
    """Return a call of any tool by its name, with the arguments as JSON."""
    try:
        args = msgspec.json.decode(found["args"] or "{}", type=dict[str, Any])
    except msgspec.DecodeError:
        return None
    return Request(f"I will use {found['tool']}.", ((CallTool(found["tool"], args),),))


def _named_tool(name: str) -> Maker:
    return lambda _, __, ___: Request(f"I will use {name}.", ((CallTool(name),),))


def _take_tour(_: re.Match[str], prompt: Prompt, __: Sequence[PromptResult]) -> Request:
    return make_tour(prompt)


def make_tour(prompt: Prompt, intro: str = "", outro: str = "") -> Request:
    rounds = tuple((CallTool(name, args),) for name, args in _tour_calls(_folder(prompt)))
    return Request(intro or "A short tour: I write a file, read it, edit it, and run a command on it.", rounds, outro)


def _write_script(found: re.Match[str], prompt: Prompt, _: Sequence[PromptResult]) -> Request:
    """Return calls that write and run a script. It is always the same, because the guide cannot program."""
    path = f"{_folder(prompt)}/count.py"
    write = CallTool("write_file", {"path": path, "content": SCRIPT})
    run = CallTool("execute", {"command": f"python3 {path}", "timeout": "30s", "model_intent": "Run the script"})
    return Request(
        "I cannot program, but I have a script at hand that counts. I write it, and run it.", ((write,), (run,))
    )


def _list_files(found: re.Match[str], prompt: Prompt, _: Sequence[PromptResult]) -> Request:
    where = shlex.quote(found["path"] or _folder(prompt))
    return Request("I will look.", ((CallTool("execute", {"command": f"ls -la {where}", "timeout": "30s"}),),))


def _count_files(found: re.Match[str], prompt: Prompt, _: Sequence[PromptResult]) -> Request:
    command = f"find {shlex.quote(found['path'] or _folder(prompt))} -type f | wc -l"
    return Request("I will count them.", ((CallTool("execute", {"command": command, "timeout": "30s"}),),))


def _ready_made(intro: str, command: str) -> Maker:
    return lambda _, __, ___: Request(intro, ((CallTool("execute", {"command": command, "timeout": "2m"}),),))


def _said(text: str) -> Maker:
    """Return a request that needs no tool."""
    return lambda _, __, ___: Request("", (), text)


def _bare(found: re.Match[str], _: Prompt, __: Sequence[PromptResult]) -> Request | None:
    """Return a call that runs the line if it begins with a well-known command."""
    if found["what"].split()[0] not in COMMANDS:
        return None
    return Request("I will run that.", ((CallTool("execute", {"command": found["what"], "timeout": "30s"}),),))


def _create(found: re.Match[str], _: Prompt, __: Sequence[PromptResult]) -> Request | None:
    args: dict[str, Any] = {"template_id": found["template"]}
    try:
        if found["args"]:
            args["parameters"] = msgspec.json.decode(found["args"], type=dict[str, Any])
    except msgspec.DecodeError:
        return None
    return Request("I will make it.", ((CallTool("create_workspace", args),),))


_PLEASE = r"(?:please[, ]+|can you |could you |now )?"
_PATH = r"[`\"']?(?P<path>/[^\s`\"']+)[`\"']?"
_WITH = r"(?: with| containing| saying)(?: the text)?:?"
_OLD, _NEW = (rf"[`\"'](?P<{name}>.*?)[`\"']" for name in ("old", "new"))
_PATTERNS: tuple[tuple[re.Pattern[str], Maker], ...] = tuple(
    (re.compile(_PLEASE + pattern + r"[.!?]*", re.IGNORECASE | re.DOTALL), make)
    for pattern, make in (
        (r"(?:(?:take|give me|show me|start) (?:the|a) )?tour", _take_tour),
        (r"(?:show me )?(?:a )?demo", _take_tour),
        (r"explain how to review a pull request", _said(REVIEW)),
        (
            r"(?:create|make)(?: me)? a(?: new)? workspace from(?: the)?(?: template)? `?(?P<template>[a-z0-9-]+)`?"
            r"(?: template)?(?: with:? (?P<args>\{.*\}))?",
            _create,
        ),
        (
            r"(?:list|show)(?: me)?(?: the| my| all)? files(?: here| (?:in|of) [`\"']?(?P<path>/[^\s`\"']+)[`\"']?)?",
            _list_files,
        ),
        (
            r"(?:count|how many)(?: the| my| all)? files(?: are)?"
            r"(?: (?:(?:in|of) (?:[`\"']?(?P<path>/[^\s`\"']+)[`\"']?|(?:the|my) workspace)|there))?",
            _count_files,
        ),
        (
            r"(?:write|create|make)(?: me)?(?: a| some)?(?: small| short| simple)? (?:python |shell )?"
            r"(?:script|program)\b.*",
            _write_script,
        ),
        (r"what(?:'s| is) the (?:time|date)|what time is it", _ready_made("I will look.", "date")),
        (r"run (?:the|its|my|all) tests", _ready_made("I will run them.", TESTS)),
        (r"show(?: me)? (?:the|my) (?:diff|changes)", _ready_made("I will look.", "git status --short && git diff")),
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
        (r"delegate(?: to (?:two )?(?:sub)?agents)?:? (?P<what>.+?)", _delegate),
        (r"ask the advisor:? (?P<what>.+)", _ask_advisor),
        (r"ask me (?P<what>[^:]+?)(?:: (?P<options>.+?))?", _ask),
        (r"(?:make|write|propose|draft) (?:a|the) plan (?:to|for) (?P<what>.+?)", _plan),
        (r"plan (?P<what>an? .+?)(?: with me)?", _plan),
        (r"(?P<what>[a-z0-9]+(?: .+)?)", _bare),
    )
)


def _tour_calls(folder: str) -> tuple[tuple[str, dict[str, Any]], ...]:
    path = f"{folder}/tour.md"
    edit = {"old_text": "for real", "new_text": "for real, in a sandbox"}
    return (
        ("write_file", {"path": path, "content": "# A tour\n\nEverything here happened for real.\n"}),
        ("read_file", {"path": path}),
        ("edit_files", {"files": [{"path": path, "edits": [edit]}]}),
        ("execute", {"command": f"cat {path} && uname -sm && date -u", "model_intent": "Look at the result"}),
    )


def system_text(prompt: Prompt) -> str:
    return "\n".join(text_of(message) for message in prompt.messages if message.role is Role.SYSTEM)


def _folder(prompt: Prompt) -> str:
    """Return the folder for files: the working directory of the workspace if it is known, else the home directory."""
    found = DIRECTORY.search(system_text(prompt))
    return found[1] if found else HOME


def field_of(result: PromptResult | None, name: str) -> str:
    """Return a field of a result that is a JSON object; empty if there is none."""
    try:
        value = msgspec.json.decode(result.text) if result else None
    except msgspec.DecodeError:
        return ""
    found = value.get(name) if isinstance(value, dict) else None
    return "" if found is None else str(found)
