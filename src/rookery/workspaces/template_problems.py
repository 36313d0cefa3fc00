"""What is wrong with a template or with the parameters somebody gave: everything at once, each with its place."""

from __future__ import annotations

from collections.abc import Iterable

import msgspec


class Problem(msgspec.Struct, frozen=True):
    """`field` is the place: the path of a key in the manifest, or `parameters.NAME`. `detail` is a sentence."""

    field: str
    detail: str

    def __str__(self) -> str:
        return f"{self.field}: {self.detail}"


class Invalid(Exception):
    """`problems` is everything that is wrong, never only the first thing."""

    def __init__(self, problems: Iterable[Problem]) -> None:
        self.problems = tuple(problems)
        super().__init__("\n".join(str(problem) for problem in self.problems))


class TemplateInvalid(Invalid):
    """A template cannot be used as it is."""


class ParametersInvalid(Invalid):
    """A workspace cannot be made or started with these parameters. `template` is whose rules they break."""

    def __init__(self, problems: Iterable[Problem], *, template: str) -> None:
        self.template = template
        super().__init__(problems)
