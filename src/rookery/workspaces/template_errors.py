"""The errors for invalid templates and invalid parameters. They contain all problems, each with its field."""

from __future__ import annotations

from collections.abc import Iterable

import msgspec


class Problem(msgspec.Struct, frozen=True):
    """One problem. `field` is the path of a key in the manifest, or `parameters.NAME`. `detail` is a sentence."""

    field: str
    detail: str

    def __str__(self) -> str:
        return f"{self.field}: {self.detail}"


class Invalid(Exception):
    """The base class. `problems` are all problems that a check has found."""

    def __init__(self, problems: Iterable[Problem]) -> None:
        self.problems = tuple(problems)
        super().__init__("\n".join(str(problem) for problem in self.problems))


class TemplateInvalid(Invalid):
    """Raised when a template is invalid, so that it cannot be stored or started."""


class ParametersInvalid(Invalid):
    """Raised when a workspace cannot be created or started with these parameters of `template`."""

    def __init__(self, problems: Iterable[Problem], *, template: str) -> None:
        self.template = template
        super().__init__(problems)
