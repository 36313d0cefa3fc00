"""Rows for tests of prompts: numbered, with defaults for everything that a test does not set."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime, timedelta
from uuid import UUID

from rookery.domain.chat import parts
from rookery.domain.chat.messages import ChatId, Message, MessageId, Role, StepFigures, Visibility
from rookery.domain.chat.model_prompt import Prompt
from rookery.domain.chat.parts import CONTENT_VERSION, Part, Text
from rookery.domain.chat.prompt import ModelIdentity, PromptRow, build_prompt
from rookery.domain.content.attachments import FileRules, StoredFile

CHAT = ChatId(UUID(int=1))
CLAUDE, CLAUDE_NEXT, GPT = UUID(int=11), UUID(int=12), UUID(int=13)
ANTHROPIC, OPENAI = UUID(int=21), UUID(int=22)
AT = datetime(2030, 1, 2, 3, 4, 5, tzinfo=UTC)

WRITERS = {
    CLAUDE: ModelIdentity(provider_id=ANTHROPIC, model="claude", wire="anthropic", thinking_family="claude-5"),
    CLAUDE_NEXT: ModelIdentity(
        provider_id=ANTHROPIC, model="claude-next", wire="anthropic", thinking_family="claude-6"
    ),
    GPT: ModelIdentity(provider_id=OPENAI, model="gpt", wire="responses", thinking_family="gpt"),
}
EVERYTHING = FileRules(accepts=lambda media_type: True)


def row(
    message_id: int,
    role: Role,
    content: Sequence[Part] | str,
    *,
    visibility: Visibility = Visibility.BOTH,
    compressed: bool = False,
    config: UUID | None = CLAUDE,
    figures: StepFigures | None = None,
    version: int = CONTENT_VERSION,
) -> PromptRow:
    """Return a row. A string is stored content. Later ids have earlier creation times, because only ids may determine
    the order.
    """
    message = Message(
        id=MessageId(message_id),
        chat_id=CHAT,
        revision=message_id,
        role=role,
        visibility=visibility,
        compressed=compressed,
        deleted=False,
        content=content if isinstance(content, str) else parts.encode(content),
        content_version=version,
        created_by=None,
        model_config_id=config,
        reasoning_effort=None,
        client_id=None,
        created_at=AT - timedelta(seconds=message_id),
    )
    return PromptRow(message, figures or StepFigures())


def user(message_id: int, *content: Part | str) -> PromptRow:
    return row(message_id, Role.USER, _parts(content), config=None)


def hook(message_id: int, text: str) -> PromptRow:
    return row(message_id, Role.USER, (parts.HookContext(text),), visibility=Visibility.MODEL, config=None)


def system(message_id: int, text: str) -> PromptRow:
    return row(message_id, Role.SYSTEM, (Text(text),), visibility=Visibility.MODEL, config=None)


def assistant(
    message_id: int, *content: Part | str, config: UUID | None = CLAUDE, figures: StepFigures | None = None
) -> PromptRow:
    return row(message_id, Role.ASSISTANT, _parts(content), config=config, figures=figures)


def tool(message_id: int, *content: Part) -> PromptRow:
    return row(message_id, Role.TOOL, content)


def boundary(message_id: int, *content: Part | str) -> PromptRow:
    return row(message_id, Role.USER, _parts(content), visibility=Visibility.MODEL, compressed=True, config=None)


def call(call_id: str, args: object = None, *, name: str = "read_file") -> parts.ToolCall:
    return parts.ToolCall(call_id, name, args=parts.json_raw({} if args is None else args))


def result(call_id: str, output: object = "done", *, name: str = "read_file") -> parts.ToolResult:
    return parts.ToolResult(call_id, name, result=parts.json_raw({"output": output}))


def prompt_of(
    rows: Sequence[PromptRow],
    *,
    target: UUID = CLAUDE,
    files: Mapping[UUID, StoredFile] | None = None,
    rules: FileRules = EVERYTHING,
    step_blocks: Sequence[str] = (),
    plan_path: str | None = None,
) -> Prompt:
    return build_prompt(
        rows,
        target=WRITERS[target],
        writers=WRITERS,
        files=files or {},
        rules=rules,
        step_blocks=step_blocks,
        plan_path=plan_path,
    )


def _parts(content: Sequence[Part | str]) -> tuple[Part, ...]:
    return tuple(Text(part) if isinstance(part, str) else part for part in content)
