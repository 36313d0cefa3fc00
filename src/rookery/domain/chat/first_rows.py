"""The hidden instruction rows that a new chat starts with.

They are stored with the chat, so that later changes by an administrator do not affect existing chats.
"""

from __future__ import annotations

from rookery.domain.chat import system_blocks
from rookery.domain.chat.messages import NewMessage, Role, Visibility
from rookery.domain.chat.parts import Text
from rookery.domain.chat.system_blocks import Awareness

# The group of runtime settings that holds the deployment's prompt.
SETTING = "prompts"


def system_rows(
    stored: object, *, system_prompt: str | None = None, awareness: Awareness = Awareness.DETACHED
) -> tuple[NewMessage, ...]:
    """Return the deployment's instructions, those given for this chat, and the description of its workspace.

    `stored` is the group `prompts` as stored; a group that cannot be read counts as not set.
    """
    group = stored if isinstance(stored, dict) else {}
    custom, include = group.get("system_prompt"), group.get("include_default")
    deployment = system_blocks.deployment_prompt(
        custom if isinstance(custom, str) else None, include_default=include if isinstance(include, bool) else None
    )
    texts = system_blocks.chat_blocks(deployment_prompt=deployment, system_prompt=system_prompt, awareness=awareness)
    return tuple(NewMessage(role=Role.SYSTEM, visibility=Visibility.MODEL, content=(Text(text),)) for text in texts)
