"""The arguments of the admin commands for secrets, providers, models, templates, debug records, and running a prompt.

`main` passes in functions that add common flags and run a command. The modules of a command are imported when the
command is chosen.
"""

from __future__ import annotations

import argparse
import os
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

from rookery.cli.parser import rare
from rookery.settings.settings import Loaded

if TYPE_CHECKING:
    from rookery.cli.output import Output

Add: TypeAlias = Callable[..., argparse.ArgumentParser]
# The values are repeated here, because `--help` loads no database driver. A test compares them with those of the store.
PROVIDER_TYPES = (
    "anthropic",
    "openai",
    "azure_openai",
    "openai_compat",
    "openrouter",
    "google",
    "bedrock",
    "bridge",
    "scripted",
)
MCP_AUTH = ("none", "api_key", "oauth2")
MCP_AVAILABILITY = ("force_on", "default_on", "default_off")
MCP_TRANSPORTS = ("auto", "streamable_http", "sse")
RUN_KINDS = ("chat_turn", "compaction", "advisor", "title_generation", "quickgen")
RUN_STATUSES = ("in_progress", "completed", "interrupted", "error")
EFFORTS = ("none", "minimal", "low", "medium", "high", "xhigh", "max")
PRICES = ("input", "output", "cache_read", "cache_write", "cache_write_1h")

Run: TypeAlias = "Callable[[Coroutine[Any, Any, int], Loaded, Output], int]"


def add_to(tasks: Any, add: Add, run: Run) -> None:
    """Add the commands below `rookery admin`."""
    _add_run(tasks, add, run)
    _add_secrets(tasks, add, run)
    _add_providers(_group(tasks, "provider", "manage model providers and their keys"), add, run)
    _add_models(_group(tasks, "model", "manage the models that chats can use"), add, run)
    _add_mcp(_group(tasks, "mcp", "the MCP servers that chats can use"), add, run)
    _add_templates(_group(tasks, "template", "manage the templates of workspaces"), add, run)
    _add_debug(_group(tasks, "debug", "read, compare and export debug records"), add, run)


def _group(tasks: Any, name: str, summary: str) -> Any:
    group = tasks.add_parser(name, help=summary, description=f"{summary[0].upper()}{summary[1:]}.", allow_abbrev=False)
    return group.add_subparsers(title="commands", metavar="COMMAND", required=True)


def _add_run(tasks: Any, add: Add, run: Run) -> None:
    def run_prompt(arguments: argparse.Namespace, loaded: Loaded, out: Output) -> int:
        from rookery.cli.admin import provider_input
        from rookery.cli.admin.run import run as runner
        from rookery.cli.admin.run.run_arguments import read_request

        with provider_input.refusals(out) as outcome:
            request = read_request(
                arguments.prompt,
                model=arguments.model,
                chat=arguments.chat,
                system=arguments.system,
                timeout=arguments.timeout,
                quiet=arguments.quiet,
                has_workspace=arguments.workspace,
                agreed=arguments.agree,
            )
            return run(runner.run(loaded.settings, out, request=request, environ=os.environ), loaded, out)
        return outcome.code

    command = add(tasks, "run", run_prompt, "run one prompt in a chat; the answer is on stdout")
    command.add_argument("prompt", metavar="PROMPT", help="the prompt; - reads it from stdin")
    command.add_argument("--model", metavar="MODEL", help="the model: its name, PROVIDER/NAME, or its id")
    command.add_argument("--chat", metavar="ID", help="continue this chat instead of starting one")
    rare(command.add_argument("--system", metavar="TEXT", help="instructions for a new chat, added to the usual ones"))
    command.add_argument("--timeout", metavar="DURATION", help="stop after this time, such as 30m, with exit code 1")
    command.add_argument("--quiet", action="store_true", help="show the answer and errors only")
    command.add_argument(
        "--workspace", action="store_true", help="give the agent its tools; a workspace it starts is stopped at the end"
    )
    rare(
        command.add_argument(
            "--agree",
            metavar="HASH",
            action="append",
            default=[],
            help="allow the MCP server whose entry has this hash to run; a run with --workspace shows the hashes",
        )
    )


def _add_secrets(tasks: Any, add: Add, run: Run) -> None:
    def rotate(arguments: argparse.Namespace, loaded: Loaded, out: Output) -> int:
        from rookery.cli.admin import secrets

        if arguments.status:
            return run(secrets.status(loaded.settings, out), loaded, out)
        return run(secrets.rotate(loaded.settings, out, full=arguments.full), loaded, out)

    command = add(tasks, "rotate-secrets", rotate, "seal every stored key with the active key of the ring")
    what = command.add_mutually_exclusive_group()
    what.add_argument("--status", action="store_true", help="only show the number of values that each key encrypts")
    what.add_argument("--full", action="store_true", help="also encrypt the values again, not only their data keys")


def _add_providers(tasks: Any, add: Add, run: Run) -> None:
    def list_all(_: argparse.Namespace, loaded: Loaded, out: Output) -> int:
        from rookery.cli.admin import providers

        return run(providers.list_all(loaded.settings, out), loaded, out)

    def add_one(arguments: argparse.Namespace, loaded: Loaded, out: Output) -> int:
        from rookery.cli.admin import provider_input, providers

        new = providers.NewProvider(
            type=arguments.type,
            name=arguments.name,
            display_name=arguments.display_name,
            base_url=arguments.base_url,
            options=arguments.option,
            key_stdin=arguments.key_stdin,
            no_key=arguments.no_key,
            no_central_key=arguments.no_central_key,
            allow_user_key=arguments.allow_user_key,
            no_fallback=arguments.no_fallback,
            send_correlation=arguments.send_correlation,
        )
        # The user is prompted before the event loop runs, because Ctrl-C would not end a prompt inside of the loop.
        with provider_input.refusals(out) as outcome:
            key = providers.ask_key(new)
            return run(providers.add(loaded.settings, out, new=new, key=key), loaded, out)
        return outcome.code

    def set_key(arguments: argparse.Namespace, loaded: Loaded, out: Output) -> int:
        from rookery.cli.admin import provider_input, providers

        with provider_input.refusals(out) as outcome:
            key = providers.ask_new_key(arguments.name, from_stdin=arguments.key_stdin)
            return run(providers.set_key(loaded.settings, out, name=arguments.name, key=key), loaded, out)
        return outcome.code

    def remove(arguments: argparse.Namespace, loaded: Loaded, out: Output) -> int:
        from rookery.cli.admin import providers

        return run(providers.remove(loaded.settings, out, name=arguments.name, yes=arguments.yes), loaded, out)

    add(tasks, "list", list_all, "show the providers")
    new = add(tasks, "add", add_one, "add a provider; its key is asked for, or read from stdin")
    new.add_argument("type", metavar="TYPE", choices=PROVIDER_TYPES, help=", ".join(PROVIDER_TYPES))
    new.add_argument("name", metavar="NAME", help="the name of the provider: a-z, 0-9 and hyphens")
    new.add_argument("--display-name", default="", metavar="TEXT", help="the name that users see")
    new.add_argument("--base-url", metavar="URL", help="its address; known for anthropic, openai, openrouter, google")
    key = new.add_mutually_exclusive_group()
    key.add_argument("--key-stdin", action="store_true", help="read the key from stdin instead of asking for it")
    key.add_argument("--no-key", action="store_true", help="do not ask for a key that is not needed")
    rare(
        new.add_argument(
            "--no-central-key", action="store_true", help="users bring their own keys; there is no shared one"
        )
    )
    new.add_argument("--allow-user-key", action="store_true", help="users may save their own keys")
    rare(
        new.add_argument(
            "--no-fallback", action="store_true", help="users without their own key cannot use the shared one"
        )
    )
    rare(
        new.add_argument(
            "--send-correlation", action="store_true", help="tell the provider which chat a call belongs to"
        )
    )
    _add_option(new)
    changed = add(tasks, "set-key", set_key, "change the key of a provider; it is asked for, or read from stdin")
    changed.add_argument("name", metavar="NAME")
    changed.add_argument("--key-stdin", action="store_true", help="read the key from stdin instead of asking for it")
    gone = add(tasks, "remove", remove, "remove a provider, its models and every key for it")
    gone.add_argument("name", metavar="NAME")
    gone.add_argument("--yes", action="store_true", help="remove its models and the keys of users too")


def _add_mcp(tasks: Any, add: Add, run: Run) -> None:
    def list_all(_: argparse.Namespace, loaded: Loaded, out: Output) -> int:
        from rookery.cli.admin import mcp

        return run(mcp.list_all(loaded.settings, out), loaded, out)

    def add_one(arguments: argparse.Namespace, loaded: Loaded, out: Output) -> int:
        from rookery.cli.admin import mcp, provider_input

        new = mcp.NewServer(
            slug=arguments.slug,
            url=arguments.url,
            display_name=arguments.display_name,
            auth=arguments.auth,
            header=arguments.header,
            key_stdin=arguments.key_stdin,
            availability=arguments.availability,
            transport=arguments.transport,
            call_timeout=arguments.call_timeout,
        )
        with provider_input.refusals(out) as outcome:
            key = mcp.ask_key(new)
            return run(mcp.add(loaded.settings, out, new=new, key=key), loaded, out)
        return outcome.code

    def test(arguments: argparse.Namespace, loaded: Loaded, out: Output) -> int:
        from rookery.cli.admin import mcp

        return run(mcp.test(loaded.settings, out, slug=arguments.slug), loaded, out)

    def remove(arguments: argparse.Namespace, loaded: Loaded, out: Output) -> int:
        from rookery.cli.admin import mcp

        return run(mcp.remove(loaded.settings, out, slug=arguments.slug, yes=arguments.yes), loaded, out)

    add(tasks, "list", list_all, "show the servers")
    new = add(tasks, "add", add_one, "add a server; without a URL, that of the catalog")
    new.add_argument("slug", metavar="SLUG", help="the short name in names of tools: a-z, 0-9 and hyphens")
    new.add_argument("url", metavar="URL", nargs="?", help="its address (default: that of the catalog)")
    new.add_argument("--display-name", default="", metavar="TEXT", help="the name that users see")
    new.add_argument("--auth", choices=MCP_AUTH, help="the authentication (default: none, or that of the catalog)")
    new.add_argument("--header", metavar="NAME", help="the header of the key (default: Authorization)")
    new.add_argument("--key-stdin", action="store_true", help="read the key from stdin instead of asking for it")
    new.add_argument("--availability", choices=MCP_AVAILABILITY, default="default_off", help="when new chats use it")
    rare(new.add_argument("--transport", choices=MCP_TRANSPORTS, default="auto", help="the transport (default: auto)"))
    rare(
        new.add_argument(
            "--call-timeout", type=int, default=60, metavar="SECONDS", help="the time limit of a call (default: 60)"
        )
    )
    tested = add(tasks, "test", test, "connect to a server and list its tools")
    tested.add_argument("slug", metavar="SLUG")
    gone = add(tasks, "remove", remove, "remove a server and end every login at it")
    gone.add_argument("slug", metavar="SLUG")
    gone.add_argument("--yes", action="store_true", help="remove it without asking")


def _add_models(tasks: Any, add: Add, run: Run) -> None:
    def list_all(_: argparse.Namespace, loaded: Loaded, out: Output) -> int:
        from rookery.cli.admin import models

        return run(models.list_all(loaded.settings, out), loaded, out)

    def add_one(arguments: argparse.Namespace, loaded: Loaded, out: Output) -> int:
        from rookery.cli.admin import models

        new = models.NewModel(
            provider=arguments.provider,
            model=arguments.model,
            context_limit=arguments.context_limit,
            display_name=arguments.display_name,
            is_default=arguments.default,
            disabled=arguments.disabled,
            compression_threshold=arguments.compression_threshold,
            options=arguments.option,
            prices={f"price_{name}": getattr(arguments, f"price_{name}") for name in PRICES},
        )
        return run(models.add(loaded.settings, out, new=new), loaded, out)

    def make_default(arguments: argparse.Namespace, loaded: Loaded, out: Output) -> int:
        from rookery.cli.admin import models

        return run(models.make_default(loaded.settings, out, reference=arguments.model), loaded, out)

    def remove(arguments: argparse.Namespace, loaded: Loaded, out: Output) -> int:
        from rookery.cli.admin import models

        return run(models.remove(loaded.settings, out, reference=arguments.model), loaded, out)

    def show(arguments: argparse.Namespace, loaded: Loaded, out: Output) -> int:
        from rookery.cli.admin import models

        return run(models.show(loaded.settings, out, reference=arguments.model), loaded, out)

    def forget_window(arguments: argparse.Namespace, loaded: Loaded, out: Output) -> int:
        from rookery.cli.admin import models

        return run(models.forget_window(loaded.settings, out, reference=arguments.model), loaded, out)

    add(tasks, "list", list_all, "show the models, with their current prices")
    new = add(tasks, "add", add_one, "add a model of a provider")
    new.add_argument("provider", metavar="PROVIDER", help="the name of its provider")
    new.add_argument("model", metavar="MODEL", help="the model's id, exactly as the provider writes it")
    new.add_argument("--context-limit", required=True, type=int, metavar="TOKENS", help="its context window")
    new.add_argument("--display-name", default="", metavar="TEXT", help="the name that users see")
    new.add_argument("--default", action="store_true", help="make it the default")
    new.add_argument("--disabled", action="store_true", help="add it without offering it to users")
    rare(
        new.add_argument(
            "--compression-threshold",
            type=int,
            default=70,
            metavar="PERCENT",
            help="percentage of the window at which chats are summarized; 100 means never",
        )
    )
    for name in PRICES:
        words = name.replace("_", " ").replace("cache write 1h", "cache writes for an hour")
        flag = f"--price-{name.replace('_', '-')}"
        price = new.add_argument(flag, metavar="USD", help=f"price of {words}, per million tokens")
        if name.startswith("cache"):
            rare(price)
    _add_option(new)
    for name, command, summary in (
        ("show", show, "show one model and the sources of its context window"),
        ("forget-window", forget_window, "remove a context window learned from refused requests"),
        ("default", make_default, "make a model the default"),
        ("remove", remove, "remove a model; chats that used it continue with the default"),
    ):
        one = add(tasks, name, command, summary)
        one.add_argument("model", metavar="MODEL", help="the model: its name, PROVIDER/NAME, or its id")


def _add_templates(tasks: Any, add: Add, run: Run) -> None:
    def list_all(_: argparse.Namespace, loaded: Loaded, out: Output) -> int:
        from rookery.cli.admin import templates

        return run(templates.list_all(loaded.settings, out), loaded, out)

    def show(arguments: argparse.Namespace, loaded: Loaded, out: Output) -> int:
        from rookery.cli.admin import templates

        return run(templates.show(loaded.settings, out, name=arguments.name), loaded, out)

    def push(arguments: argparse.Namespace, loaded: Loaded, out: Output) -> int:
        from rookery.cli.admin import templates

        return run(templates.push(loaded.settings, out, folder=Path(arguments.folder)), loaded, out)

    def remove(arguments: argparse.Namespace, loaded: Loaded, out: Output) -> int:
        from rookery.cli.admin import templates

        return run(templates.remove(loaded.settings, out, name=arguments.name), loaded, out)

    def switch(*, enabled: bool) -> Callable[[argparse.Namespace, Loaded, Output], int]:
        def change(arguments: argparse.Namespace, loaded: Loaded, out: Output) -> int:
            from rookery.cli.admin import templates
            from rookery.store.workspaces.templates import TemplatePatch

            told = "enabled" if enabled else "disabled; existing workspaces can still be started"
            patch = TemplatePatch(enabled=enabled)
            changing = templates.change(loaded.settings, out, name=arguments.name, patch=patch, told=told)
            return run(changing, loaded, out)

        return change

    add(tasks, "list", list_all, "show the templates")
    pushed = add(tasks, "push", push, "check a template folder and publish it for new workspaces")
    pushed.add_argument("folder", metavar="DIR", help="the folder with template.toml")
    for name, command, summary in (
        ("show", show, "show a template with its parameters"),
        ("enable", switch(enabled=True), "offer a template again"),
        ("disable", switch(enabled=False), "stop offering a template"),
        ("remove", remove, "remove a template that no workspace uses"),
    ):
        one = add(tasks, name, command, summary)
        one.add_argument("name", metavar="NAME")


def _add_debug(tasks: Any, add: Add, run: Run) -> None:
    def list_runs(arguments: argparse.Namespace, loaded: Loaded, out: Output) -> int:
        from rookery.cli.admin import debug

        listing = debug.list_runs(
            loaded.settings,
            out,
            chat=arguments.chat,
            kind=arguments.kind,
            status=arguments.status,
            limit=arguments.limit,
        )
        return run(listing, loaded, out)

    def show(arguments: argparse.Namespace, loaded: Loaded, out: Output) -> int:
        from rookery.cli.admin import debug

        showing = debug.show(loaded.settings, out, run=arguments.run_id, step=arguments.step, attempt=arguments.attempt)
        return run(showing, loaded, out)

    def compare(arguments: argparse.Namespace, loaded: Loaded, out: Output) -> int:
        from rookery.cli.admin import debug

        comparing = debug.compare(loaded.settings, out, run=arguments.run_id, other=arguments.other_id)
        return run(comparing, loaded, out)

    def export(arguments: argparse.Namespace, loaded: Loaded, out: Output) -> int:
        from rookery.cli.admin import debug

        exporting = debug.export(
            loaded.settings, out, chat=arguments.chat, run=arguments.run_id, output=arguments.output
        )
        return run(exporting, loaded, out)

    def replay(arguments: argparse.Namespace, loaded: Loaded, out: Output) -> int:
        from rookery.cli.admin import debug

        replaying = debug.replay(
            loaded.settings,
            out,
            run=arguments.run_id,
            step=arguments.step,
            model=arguments.model,
            effort=arguments.effort,
            edits=arguments.edit,
        )
        return run(replaying, loaded, out)

    listed = add(tasks, "list", list_runs, "show the recorded runs of a chat, the newest first")
    listed.add_argument("chat", metavar="CHAT", help="the id of the chat")
    listed.add_argument("--kind", choices=RUN_KINDS, metavar="KIND", help=", ".join(RUN_KINDS))
    listed.add_argument("--status", choices=RUN_STATUSES, metavar="STATUS", help=", ".join(RUN_STATUSES))
    listed.add_argument("--limit", type=int, default=20, metavar="N", help="show at most this many, up to 100")
    shown = add(tasks, "show", show, "show a run and its steps, or one step with its prompt and answer")
    shown.add_argument("run_id", metavar="RUN", help="the id of the run")
    shown.add_argument("--step", type=int, metavar="N", help="show the prompt and the answer of this step")
    shown.add_argument("--attempt", type=int, metavar="N", help="show this HTTP exchange of the step")
    compared = add(tasks, "compare", compare, "compare two runs: tokens, cost, time, and where their prompts differ")
    compared.add_argument("run_id", metavar="RUN", help="the id of the run")
    compared.add_argument("other_id", metavar="OTHER", help="the id of the other run")
    written = add(tasks, "export", export, "write the records of a chat to a file")
    written.add_argument("chat", metavar="CHAT", help="the id of the chat")
    written.add_argument("--run", dest="run_id", metavar="RUN", help="only this run")
    written.add_argument("--output", metavar="FILE", help="the file, which must not exist; else named by chat and time")
    again = add(tasks, "replay", replay, "make a recorded model call again and show both answers; no tool runs")
    again.add_argument("run_id", metavar="RUN", help="the id of the run")
    again.add_argument("--step", type=int, required=True, metavar="N", help="the step whose call is made again")
    again.add_argument("--model", metavar="MODEL", help="its name, PROVIDER/NAME, or its id; else the recorded one")
    again.add_argument("--effort", choices=EFFORTS, metavar="EFFORT", help=", ".join(EFFORTS))
    again.add_argument(
        "--edit", action="append", default=[], metavar="N=TEXT", help="the new text of message N of the prompt, from 0"
    )


def _add_option(command: argparse.ArgumentParser) -> None:
    rare(
        command.add_argument(
            "--option", action="append", default=[], metavar="NAME=VALUE", help="an option; VALUE is JSON or plain text"
        )
    )
