"""The members of bodies that are about accounts, with their rules: all that is wrong is told at once."""

from __future__ import annotations

from typing import Annotated

from pydantic import AfterValidator, Field, ValidationInfo

from rookery.api.request_bodies import faults, rule
from rookery.domain.chat.errors import InvalidInput
from rookery.store.people import passwords, users

# Beyond any password that is taken, and short of what would keep the server busy.
MAX_TYPED_CHARS = 1024


def _check_password(password: str, others: ValidationInfo) -> str:
    """The names are members of the same body, declared before the password."""
    names = [others.data[name] for name in ("email", "username") if others.data.get(name)]
    try:
        passwords.check(password, names=names)
    except InvalidInput as error:
        raise faults((error.field, str(error))) from None
    return password


Email = Annotated[str, AfterValidator(str.strip), rule(users.check_email)]
Username = Annotated[str, rule(users.check_username)]
Name = Annotated[str, rule(users.check_name)]
NewPassword = Annotated[str, Field(max_length=MAX_TYPED_CHARS), AfterValidator(_check_password)]
# One that is compared, not chosen: no rule, so that nothing is told about what passwords were taken once.
TypedPassword = Annotated[str, Field(max_length=MAX_TYPED_CHARS)]
