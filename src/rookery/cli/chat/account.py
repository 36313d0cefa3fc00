"""Commands for the user's own account: the password, and the actions of administrators on the account."""

from __future__ import annotations

import getpass
import sys

import msgspec

from rookery.cli.chat.chat_actions import Terminal
from rookery.cli.exit_codes import Exit, Refused
from rookery.client.models import Access

MAX_PAGE = 200


class PasswordChange(msgspec.Struct, frozen=True, kw_only=True):
    current: str
    new: str
    revoke_tokens: bool


def ask_password(*, revoke_tokens: bool | None) -> PasswordChange:
    """Prompt for the passwords. If `revoke_tokens` is None, also ask whether to revoke tokens.

    Call this before the event loop starts.
    """
    if sys.stdin is None or not sys.stdin.isatty():
        raise Refused("There is no terminal to ask for the passwords.", code=Exit.USAGE)
    current = getpass.getpass("Current password: ")
    new = getpass.getpass("New password: ")
    if getpass.getpass("Repeat the password: ") != new:
        raise Refused("The two new passwords differ.", code=Exit.USAGE)
    if revoke_tokens is None:
        answer = input("Revoke all your other API tokens, too? [Y/n] ").strip().lower()
        if answer not in ("", "y", "yes", "n", "no"):
            raise Refused("Answer y or n.", code=Exit.USAGE)
        revoke_tokens = answer not in ("n", "no")
    return PasswordChange(current=current, new=new, revoke_tokens=revoke_tokens)


async def change_password(at: Terminal, change: PasswordChange) -> int:
    """Change the password. The token of this terminal stays valid."""
    await at.client.account.change_password(change.current, change.new, revoke_tokens=change.revoke_tokens)
    ended = "sessions and API tokens" if change.revoke_tokens else "sessions"
    at.out.line(f"The password was changed. All your other {ended} have ended.")
    at.out.result({"changed": True, "tokens_revoked": change.revoke_tokens})
    return Exit.OK


async def list_accesses(at: Terminal, *, limit: int) -> int:
    """Show the accesses, and dismiss the notice about them."""
    if not 1 <= limit <= MAX_PAGE:
        raise Refused(f"--limit is a number from 1 to {MAX_PAGE}.", code=Exit.USAGE)
    notice = (await at.client.me()).access_notice
    page = await at.client.account.accesses(limit=limit)
    if page.items:
        at.out.table(["when", "who", "what"], [_row(each) for each in page.items])
    else:
        at.out.line("No administrator has read your chats by stating a reason, or reset your password.")
    at.out.result({"accesses": page.items, "has_more": page.next_cursor is not None})
    if notice is not None:
        await at.client.account.dismiss_access_notice(notice)
    return Exit.OK


def _row(access: Access) -> list[str]:
    who = "-" if access.user is None else access.user.username
    is_reset = access.kind == "password_reset"
    what = "reset your password" if is_reset else f"read chat {access.chat_id}: {access.reason}"
    return [f"{access.at:%Y-%m-%d %H:%M}", who, what]
