"""Validated fields of request bodies about accounts: names, addresses and passwords."""

from __future__ import annotations

from typing import Annotated

from pydantic import AfterValidator, Field, ValidationInfo

from rookery.api.request_bodies import faults, rule
from rookery.domain.chat.errors import InvalidInput
from rookery.store.people import passwords, users

# Longer than any accepted password, and short enough that hashing it does not keep the server busy.
MAX_TYPED_CHARS = 1024


def _check_password(password: str, others: ValidationInfo) -> str:
    """Check the password against the user's names, which are fields declared before it in the same body."""
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
# A password that is compared, not chosen. No rule applies, so errors reveal nothing about earlier password rules.
TypedPassword = Annotated[str, Field(max_length=MAX_TYPED_CHARS)]
