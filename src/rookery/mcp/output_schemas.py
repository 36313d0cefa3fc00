"""Validation of structured results against the output schema of the tool, with a bounded amount of work.

The server supplies both the schema and the result, and both are untrusted: a schema or a pattern can require
exponential work. Therefore evaluated keywords are counted, and patterns are not checked.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

from jsonschema import exceptions, validators
from jsonschema.protocols import Validator
from referencing import Registry
from referencing.exceptions import Unresolvable

MAX_KEYWORDS = 20_000
MAX_PROBLEM_CHARS = 300
# Expensive for some values, and rarely what a server means to promise.
_UNCHECKED = ("pattern", "patternProperties", "uniqueItems", "format")


class _TooMuch(Exception):
    pass


class OutputSchema:
    """The compiled schema of one tool."""

    def __init__(self, schema: Mapping[str, Any]) -> None:
        base: Any = validators.validator_for(dict(schema), default=validators.validator_for({}))
        self._count = 0
        counted = {name: self._counted(check) for name, check in base.VALIDATORS.items() if name not in _UNCHECKED}
        made: Any = validators.extend(base, {**counted, **dict.fromkeys(_UNCHECKED, _no_check)})
        self._validator: Validator = made(dict(schema), registry=Registry())

    def problem_with(self, value: object) -> str | None:
        """Return a description of the mismatch; None if the value matches, or if the check cannot decide."""
        self._count = 0
        try:
            for error in self._validator.iter_errors(value):
                where = "/".join(str(each) for each in error.absolute_path)
                return f"{where or 'the result'}: {error.message}"[:MAX_PROBLEM_CHARS]
        except _TooMuch:
            return None
        except (Unresolvable, exceptions.UnknownType, RecursionError, TypeError, ValueError, AttributeError, KeyError):
            return None  # the schema itself is invalid
        return None

    def _counted(self, check: Callable[..., Iterator[Any] | None]) -> Callable[..., Iterator[Any] | None]:
        def counting(*args: Any) -> Iterator[Any] | None:
            self._count += 1
            if self._count > MAX_KEYWORDS:
                raise _TooMuch
            return check(*args)

        return counting


def _no_check(*args: object) -> None:
    return None
