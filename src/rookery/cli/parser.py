"""The argument parser of all commands: a `--help` that fits a screen, `--help-all`, and errors in one plain line."""

from __future__ import annotations

import argparse
import difflib
import re
from collections.abc import Collection, Iterable, Sequence
from typing import Any, NoReturn, TypeVar

from rookery.cli.exit_codes import Exit

_Action = TypeVar("_Action", bound=argparse.Action)
_RARE = "rookery_rare"
ALL = "--help-all shows the rest"

# What argparse reports, and the sentence for it.
_SENTENCES = (
    (r"the following arguments are required: (.*)", r"\1 is missing"),
    (r"one of the arguments (.*) is required", r"one of these is missing: \1"),
    (r"argument (?:\S+/)?(\S+): expected .*", r"\1 needs a value"),
    (r"argument (?:\S+/)?(\S+): not allowed with argument (?:\S+/)?(\S+)", r"\1 and \2 cannot be used together"),
    (r"argument (?:\S+/)?(\S+): invalid int value: '(.*)'", r"\1 must be a whole number, not \2"),
    (r"argument (?:\S+/)?(\S+): ignored explicit argument .*", r"\1 takes no value"),
)


def rare(action: _Action) -> _Action:
    """Show this argument only in `--help-all`."""
    vars(action)[_RARE] = True
    return action


def rare_command(commands: Any, name: str) -> None:
    """Show this command only in `--help-all`."""
    rare(next(each for each in commands._choices_actions if each.dest == name))


class Parser(argparse.ArgumentParser):
    """Adds `--help-all`, and reports errors in one line without the usage."""

    def __init__(self, **options: Any) -> None:
        super().__init__(**{"formatter_class": _Formatter, **options, "add_help": False})
        self._positionals.title = "arguments"
        self._help = self.add_argument("-h", "--help", action=_ShowHelp)
        rare(self.add_argument("--help-all", action=_ShowHelp, help="show every command and option"))

    def parse_known_args(self, args: Any = None, namespace: Any = None) -> Any:
        """Report unknown options here, where their command is known."""
        found, extra = super().parse_known_args(args, namespace)
        if extra:
            self.error(f"there is no {'option' if extra[0].startswith('-') else 'argument'} {extra[0]}")
        return found, extra

    def _check_value(self, action: argparse.Action, value: Any) -> None:
        choices: Collection[Any] | None = action.choices  # type: ignore[assignment]
        if choices is None or value in choices:
            return
        close = difflib.get_close_matches(str(value), [str(each) for each in choices], n=1)
        if isinstance(action, argparse._SubParsersAction):
            hint = f" Did you mean {close[0]}?" if close else ""
            self.exit(Exit.USAGE, f"rookery: There is no command {value}.{hint} Try: {self.prog} --help\n")
        name = action.option_strings[-1] if action.option_strings else str(action.metavar)
        self.error(f"{name} must be one of {', '.join(map(str, choices))}; not {value}")

    def error(self, message: str) -> NoReturn:
        for pattern, sentence in _SENTENCES:
            if re.fullmatch(pattern, message):
                message = re.sub(pattern, sentence, message)
                break
        if message == "COMMAND is missing":
            self.exit(Exit.USAGE, self.format_help())
        self.exit(Exit.USAGE, f"rookery: {message[0].upper()}{message[1:]}. Try: {self.prog} --help\n")

    def exit(self, status: int = 0, message: str | None = None) -> NoReturn:
        super().exit(status, message)
        raise AssertionError

    def format_help(self, *, is_full: bool = False) -> str:
        formatter = self._get_formatter()
        assert isinstance(formatter, _Formatter)
        # One of them is --help-all itself.
        formatter.is_full = is_full or sum(bool(vars(each).get(_RARE)) for each in self._everything()) == 1
        self._help.help = "show this help" if formatter.is_full else f"show this help; {ALL}"
        formatter.add_usage(self.usage, self._actions, self._mutually_exclusive_groups)
        formatter.add_text(self.description)
        for group in self._action_groups:
            shown = [action for action in group._group_actions if formatter.shows(action)]
            if shown:
                formatter.start_section(group.title)
                if formatter.is_full:
                    formatter.add_text(group.description)
                formatter.add_arguments(shown)
                formatter.end_section()
        return formatter.format_help()

    def _everything(self) -> Iterable[argparse.Action]:
        for action in self._actions:
            yield action
            if isinstance(action, argparse._SubParsersAction):
                yield from action._choices_actions


class _ShowHelp(argparse.Action):
    def __init__(self, option_strings: Sequence[str], dest: str, **options: Any) -> None:
        super().__init__(
            option_strings, argparse.SUPPRESS, nargs=0, default=argparse.SUPPRESS, help=options.get("help")
        )

    def __call__(self, parser: argparse.ArgumentParser, *_: Any) -> None:
        assert isinstance(parser, Parser)
        print(parser.format_help(is_full="--help-all" in self.option_strings), end="")
        parser.exit()


class _Formatter(argparse.HelpFormatter):
    """Leaves out rare arguments unless `is_full`. The usage line names only the kinds of arguments."""

    is_full = False

    def shows(self, action: argparse.Action) -> bool:
        return self.is_full or not vars(action).get(_RARE)

    def add_usage(
        self,
        usage: str | None,
        actions: Iterable[argparse.Action],
        groups: Iterable[Any],
        prefix: str | None = None,
    ) -> None:
        named = [action for action in actions if not action.option_strings or action.required]
        has_options = any(action.option_strings for action in actions)
        words = f"%(prog)s{' [OPTIONS]' if has_options else ''}"
        for action in named:
            word = str(action.metavar or action.dest)
            word = f"{action.option_strings[-1]} {word}" if action.option_strings else word
            word = f"{word} ..." if isinstance(action, argparse._SubParsersAction) else word
            words += f" {word}" if action.required else f" [{word}]"
        super().add_usage(usage or words, [], [], prefix)

    def _expand_help(self, action: argparse.Action) -> str:
        """Return the help of an argument. Of a setting, `--help` has only the first sentence."""
        text = super()._expand_help(action)
        return text if self.is_full else re.sub(r"(?<=\w)\. .*", "", text)

    def _format_action(self, action: argparse.Action) -> str:
        if isinstance(action, argparse._SubParsersAction):
            shown = [each for each in action._choices_actions if self.shows(each)]
            return "".join(super(_Formatter, self)._format_action(each) for each in shown)
        return super()._format_action(action)
