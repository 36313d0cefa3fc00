"""Build the prompt for a model from committed rows: convert rows, pair calls with results, insert system blocks.

Rows have everything that a provider sent. Data that the target model must not get is left out here. The same rows and
settings give the same prompt, and a prompt is a prefix of the next one. Provider caches depend on this, and so do
models that accept their stored reasoning only with the same prefix.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from uuid import UUID

import msgspec
from msgspec import UNSET, Raw, UnsetType

from rookery.domain.chat import agent_reports, parts, system_blocks, tool_call_pairing
from rookery.domain.chat.default_prompt import PLAN_PATH
from rookery.domain.chat.errors import ChatError
from rookery.domain.chat.messages import Message, MessageId, Role, StepFigures, Visibility
from rookery.domain.chat.model_prompt import (
    Meta,
    Prompt,
    PromptCall,
    PromptMedia,
    PromptMessage,
    PromptPart,
    PromptReasoning,
    PromptResult,
    PromptText,
    sum_sizes,
    with_figures,
)
from rookery.domain.chat.parts import ContentError, Part
from rookery.domain.content import attachments
from rookery.domain.content.attachments import FileRules, StoredFile

INTERRUPTED = "interrupted"

# Every provider accepts function names of this form.
MAX_TOOL_NAME = 64
_VALID_TOOL_NAME = re.compile(rf"[A-Za-z0-9_-]{{1,{MAX_TOOL_NAME}}}")
# Keys of data that a provider needs back, even if the reasoning has no text. `raw` is a block of an unknown kind, which
# is sent back unchanged.
_PROOFS = ("signature", "redacted_data", "encrypted_content", "reasoning_details", "raw")
# The keys of a provider's tool output that have readable text. The others have numbers, marks and encrypted text.
_READABLE_KEYS = ("error", "query", "title", "url", "snippet", "text", "output")
_NESTED_KEYS = ("action", "content", "results", "sources")
_MAYBE_PLAIN = (b'"', b'{"output":', b'{"error":')


class PromptRow(msgspec.Struct, frozen=True, gc=False):
    """A row of the history with the figures of its step."""

    message: Message
    figures: StepFigures = StepFigures()


class ModelIdentity(msgspec.Struct, frozen=True, kw_only=True):
    """A model that wrote a row or gets a prompt. Models of one `thinking_family` accept each other's thinking."""

    provider_id: UUID
    model: str
    wire: str
    thinking_family: str | None = None

    def can_replay_thinking_of(self, writer: ModelIdentity) -> bool:
        """Return whether this model accepts the thinking of `writer`. Without a family, only the same model does."""
        if self.provider_id != writer.provider_id or self.wire != writer.wire:
            return False
        return self.model == writer.model or (
            self.thinking_family is not None and self.thinking_family == writer.thinking_family
        )


class UnreadableRow(ChatError):
    """Raised if a row cannot be decoded. A prompt without it would differ from the chat."""

    def __init__(self, message_id: MessageId, reason: str) -> None:
        self.message_id = message_id
        self.reason = reason
        super().__init__(f"Message {message_id} of this chat cannot be read: {reason}")


def build_prompt(
    rows: Sequence[PromptRow],
    *,
    target: ModelIdentity,
    writers: Mapping[UUID, ModelIdentity],
    files: Mapping[UUID, StoredFile],
    rules: FileRules,
    step_blocks: Sequence[str] = (),
    plan_path: str | None = None,
) -> Prompt:
    """Return the prompt of the rows of `store.chats.messages.list_prompt`.

    `writers` maps the model configs of the rows, also deleted ones, to models. A row of an unknown config counts as
    written by another provider. `files` has those of `list_files` that still exist. Raises `UnreadableRow`, and
    `ImageTooLarge` for an image in the newest user message.
    """
    builder = PromptBuilder(target, rules)
    builder.add(rows, writers=writers, files=files)
    return builder.prompt(step_blocks, plan_path=plan_path)


class PromptBuilder:
    """Builds the prompts of successive steps of a chat for one model. Rows that were added are not converted again.

    Use it from one thread at a time, and as long as `can_continue` returns True. Do not use it after `add` has raised.
    """

    def __init__(self, target: ModelIdentity, rules: FileRules) -> None:
        self._target = target
        self._rules = rules
        self._rows: tuple[PromptRow, ...] = ()
        self._repair = tool_call_pairing.IncrementalRepair()
        self._system_count = 0
        # The inputs that the converted rows depend on.
        self._writers: dict[UUID, ModelIdentity | None] = {}
        self._files: dict[UUID, StoredFile | None] = {}

    def __len__(self) -> int:
        return len(self._rows)

    def can_continue(
        self,
        rows: Sequence[PromptRow],
        *,
        target: ModelIdentity,
        writers: Mapping[UUID, ModelIdentity],
        files: Mapping[UUID, StoredFile],
        rules: FileRules,
    ) -> bool:
        """Return whether the rows begin with those added before, and those would be converted in the same way."""
        # Steps share row objects, so the comparison is fast.
        return (
            (target, rules) == (self._target, self._rules)
            and tuple(rows[: len(self._rows)]) == self._rows
            and all(writers.get(config_id) == known for config_id, known in self._writers.items())
            and all(files.get(file_id) == known for file_id, known in self._files.items())
        )

    def add(
        self,
        rows: Sequence[PromptRow],
        *,
        writers: Mapping[UUID, ModelIdentity],
        files: Mapping[UUID, StoredFile],
    ) -> None:
        """Add the new rows. `rows` are all rows, including those that were added before."""
        newest = _newest_user_message(rows)
        added = rows[len(self._rows) :]
        converted: list[PromptMessage] = []
        for row in added:
            is_newest = row.message is newest
            message = _convert(
                row,
                _writer(row, writers),
                target=self._target,
                files=files,
                rules=self._rules,
                is_newest=is_newest,
            )
            if message.parts:
                converted.append(message)
                self._system_count += message.role is Role.SYSTEM
        self._repair.add(converted)
        self._rows = tuple(rows)
        self._files |= {file_id: files.get(file_id) for file_id in list_files(added)}
        self._writers |= {config_id: writers.get(config_id) for config_id in model_config_ids(added)}

    def prompt(
        self,
        step_blocks: Sequence[str] = (),
        *,
        plan_path: str | None = None,
        tools: Collection[str] | None = None,
    ) -> Prompt:
        """Return the prompt of all added rows. If `tools` is given, built-in texts about other tools are left out."""
        repaired = self._repair.result()
        leading = _count_leading_system(repaired.messages)
        own = repaired.messages[:leading] if tools is None else _for_tools(repaired.messages[:leading], tools)
        head = _with_blocks(own, step_blocks, plan_path=plan_path)
        rest = repaired.messages[leading:]
        if self._system_count > leading:
            rest = _with_plan_paths(rest, plan_path)
        size_bytes = repaired.size_bytes + sum_sizes(head) - sum_sizes(repaired.messages[:leading])
        return with_figures(Prompt((*head, *rest)), size_bytes=size_bytes, call_ids=repaired.call_ids)


def with_notice(prompt: Prompt, notice: str) -> Prompt:
    """Return the prompt with a notice of the server at its end, where it does not change the prefix."""
    added = PromptMessage(role=Role.USER, parts=(PromptText(f"<notice>\n{notice}\n</notice>"),))
    size_bytes = prompt.size_bytes + sum_sizes((added,))
    return with_figures(Prompt((*prompt.messages, added)), size_bytes=size_bytes, call_ids=prompt.call_ids)


def list_files(rows: Iterable[PromptRow]) -> frozenset[UUID]:
    """Return the ids of files in user rows, whose bytes `build_prompt` needs. Unreadable rows are skipped."""
    named: set[UUID] = set()
    for row in rows:
        # Most rows have no file, and the search for the key is much faster than parsing.
        if row.message.role is Role.USER and '"file"' in row.message.content:
            try:
                named |= parts.file_ids(row.message.parts())
            except ContentError:
                continue
    return frozenset(named)


def model_config_ids(rows: Iterable[PromptRow]) -> frozenset[UUID]:
    """Return the model configs that wrote the answers in these rows."""
    named = {row.message.model_config_id for row in rows if row.message.role is Role.ASSISTANT}
    return frozenset(config_id for config_id in named if config_id is not None)


def _newest_user_message(rows: Sequence[PromptRow]) -> Message | None:
    """Return the newest message of a user. Rows that are visible to the model only are skipped."""
    for row in reversed(rows):
        if row.message.role is Role.USER and row.message.visibility is Visibility.BOTH:
            return row.message
    return None


def _writer(row: PromptRow, writers: Mapping[UUID, ModelIdentity]) -> ModelIdentity | None:
    config_id = row.message.model_config_id
    return None if config_id is None else writers.get(config_id)


def _convert(
    row: PromptRow,
    writer: ModelIdentity | None,
    *,
    target: ModelIdentity,
    files: Mapping[UUID, StoredFile],
    rules: FileRules,
    is_newest: bool,
) -> PromptMessage:
    message = row.message
    try:
        content = message.parts()
    except ContentError as error:
        raise UnreadableRow(message.id, str(error)) from error
    match message.role:
        case Role.SYSTEM:
            return PromptMessage(role=Role.SYSTEM, parts=tuple(_texts(content)))
        case Role.USER:
            said = _user_parts(content, files, rules=rules, is_newest=is_newest)
            return PromptMessage(role=Role.USER, parts=tuple(said))
        case Role.TOOL:
            return PromptMessage(role=Role.TOOL, parts=tuple(_results(content, rules)))
        case Role.ASSISTANT:
            return _assistant_message(row, content, writer, target=target, rules=rules)


def _texts(content: Iterable[Part]) -> Iterator[PromptText]:
    for part in content:
        if isinstance(part, parts.Text | parts.HookContext) and part.text.strip():
            yield PromptText(part.text)
        elif isinstance(part, parts.AgentNotice):
            yield PromptText(agent_reports.notice_text(part))


def _user_parts(
    content: Iterable[Part], files: Mapping[UUID, StoredFile], *, rules: FileRules, is_newest: bool
) -> Iterator[PromptPart]:
    for part in content:
        if isinstance(part, parts.FileReference):
            yield PromptText(attachments.quote(part))
        elif isinstance(part, parts.File):
            converted = attachments.convert(part, files, rules=rules, is_newest=is_newest)
            if converted is not None:
                yield converted
        else:
            yield from _texts((part,))


def _results(content: Iterable[Part], rules: FileRules) -> Iterator[PromptResult]:
    """Convert tool results. Files of tool rows are for users; the model received their content with the result."""
    return (_result(part, rules, meta=part.provider_meta) for part in content if isinstance(part, parts.ToolResult))


def _assistant_message(
    row: PromptRow,
    content: Iterable[Part],
    writer: ModelIdentity | None,
    *,
    target: ModelIdentity,
    rules: FileRules,
) -> PromptMessage:
    figures = row.figures
    is_whole = figures.finish_reason != INTERRUPTED
    is_native = writer is not None and target.can_replay_thinking_of(writer)
    if writer is None or writer.provider_id != target.provider_id:
        said = tuple(_foreign_parts(content, rules))
    else:
        # Interrupted reasoning has no valid signature.
        said = tuple(_own_parts(content, rules, keep_reasoning=is_native and is_whole))
    return PromptMessage(
        role=Role.ASSISTANT,
        parts=said,
        is_native=is_native,
        is_whole=is_whole,
        finish_reason=figures.finish_reason,
        prefix_fp=figures.prefix_fp,
    )


def _own_parts(content: Iterable[Part], rules: FileRules, *, keep_reasoning: bool) -> Iterator[PromptPart]:
    """Convert parts that the target's provider wrote. Its opaque data is sent back."""
    for part in content:
        match part:
            case parts.Text(text=text, provider_meta=meta) if text.strip():
                yield PromptText(text, meta)
            case parts.Reasoning(text=text, provider_meta=meta) if keep_reasoning and (text.strip() or _proves(meta)):
                yield PromptReasoning(text, meta)
            case parts.ToolCall():
                yield _call(part, meta=part.provider_meta)
            case parts.ToolResult():
                yield _result(part, rules, meta=part.provider_meta)
            case _:
                continue


def _foreign_parts(content: Iterable[Part], rules: FileRules) -> Iterator[PromptPart]:
    """Convert parts that another provider wrote. Its opaque data is dropped. The output of its tools becomes text."""
    for part in content:
        match part:
            case parts.Text(text=text) if text.strip():
                yield PromptText(text)
            case parts.ToolCall(provider_executed=False):
                yield _call(part, meta=None)
            case parts.ToolResult(provider_executed=True):
                if found := readable_output(part.result):
                    yield PromptText(tool_output_text(part.tool_name, found))
            case parts.ToolResult():
                yield _result(part, rules, meta=None)
            case _:
                continue


def _proves(meta: Meta | None) -> bool:
    return meta is not None and any(meta.get(key) for key in _PROOFS)


def _call(part: parts.ToolCall, *, meta: Meta | None) -> PromptCall:
    return PromptCall(
        id=part.tool_call_id,
        name=valid_tool_name(part.tool_name),
        input=_input(part.args),
        provider_executed=part.provider_executed,
        meta=meta,
    )


def valid_tool_name(name: str) -> str:
    """Return a tool's name in a form that every provider accepts.

    Models invent names. Every later request with an invalid name would be refused, so the chat could not continue.
    """
    if _VALID_TOOL_NAME.fullmatch(name):
        return name
    return re.sub(r"[^A-Za-z0-9_-]", "_", name)[:MAX_TOOL_NAME] or "unnamed"


def _input(args: Raw | UnsetType) -> Raw:
    """Return the arguments without the spaces that jsonb adds. A value that is not an object becomes `{}`."""
    if args is UNSET or not bytes(args).lstrip().startswith(b"{"):
        return Raw(b"{}")
    return Raw(msgspec.json.format(bytes(args), indent=-1))


class _Media(msgspec.Struct, frozen=True):
    data: str
    mime_type: str
    text: str = ""


_media_decoder = msgspec.json.Decoder(_Media)


def _result(part: parts.ToolResult, rules: FileRules, *, meta: Meta | None) -> PromptResult:
    media = _media(part)
    if media is None:
        text, image = result_text(part.result), None
    else:
        text, image = _media_result(media, rules)
    return PromptResult(
        id=part.tool_call_id,
        name=valid_tool_name(part.tool_name),
        text=text,
        is_error=part.is_error,
        media=image,
        provider_executed=part.provider_executed,
        meta=meta,
    )


def _media(part: parts.ToolResult) -> _Media | None:
    if not part.is_media or part.result is UNSET:
        return None
    try:
        return _media_decoder.decode(part.result)
    except msgspec.DecodeError:
        return None


def _media_result(media: _Media, rules: FileRules) -> tuple[str, PromptMedia | None]:
    """Return the text and the image. If the target does not accept the image, a note in the text replaces it."""
    media_type = attachments.plain_type(media.mime_type)
    size = len(media.data) * 3 // 4
    if rules.accepts(media_type) and not attachments.is_too_large(media_type, size, rules=rules):
        return media.text, PromptMedia(media_type, media.data)
    note = f"[{media_type} of {size} bytes: this model cannot take it]"
    return f"{media.text}\n{note}" if media.text.strip() else note, None


def result_text(result: Raw | UnsetType) -> str:
    """Return the text of a stored result for a model: plain text if the tool returned text, otherwise JSON."""
    if result is UNSET:
        return ""
    compact = msgspec.json.format(bytes(result), indent=-1)
    # Results can be large, so they are decoded only if they may be one string.
    if compact.startswith(_MAYBE_PLAIN):
        value = parts.json_value(Raw(compact))
        match value:
            case {"output": str(text)} | {"error": str(text)} if len(value) == 1:
                return text
            case str(text):
                return text
    return compact.decode()


def readable_output(result: Raw | UnsetType) -> str:
    """Return the readable text in a provider's tool output (titles, addresses, texts), one item per line."""
    if result is UNSET:
        return ""
    return "\n".join(dict.fromkeys(_words(parts.json_value(result))))


def tool_output_text(tool_name: str, output: str) -> str:
    """Return a provider's tool output as text, for a model of another provider."""
    return f"[{tool_name} returned:\n{output}\n]"


def _words(value: parts.Json) -> Iterator[str]:
    match value:
        case str(text) if text.strip():
            yield text.strip()
        case list(items):
            for item in items:
                yield from _words(item)
        case dict():
            own = [value[key].strip() for key in _READABLE_KEYS if isinstance(value.get(key), str)]
            if line := " ".join(filter(None, own)):
                yield line
            for key in _NESTED_KEYS:
                yield from _words(value.get(key))


def _count_leading_system(messages: Sequence[PromptMessage]) -> int:
    return next((place for place, each in enumerate(messages) if each.role is not Role.SYSTEM), len(messages))


def _for_tools(leading: Sequence[PromptMessage], tools: Collection[str]) -> list[PromptMessage]:
    kept = []
    for message in leading:
        texts = [system_blocks.for_tools(part.text, tools) for part in message.parts if isinstance(part, PromptText)]
        if any(texts):
            kept.append(msgspec.structs.replace(message, parts=tuple(PromptText(text) for text in texts if text)))
    return kept


def _with_blocks(
    leading: Sequence[PromptMessage], step_blocks: Iterable[str], *, plan_path: str | None
) -> tuple[PromptMessage, ...]:
    """Return the chat's own system messages, then the blocks of the step, with the path of the plan file."""
    inserted = [PromptMessage(role=Role.SYSTEM, parts=(PromptText(block),)) for block in step_blocks if block.strip()]
    return _with_plan_paths((*leading, *inserted), plan_path)


def _with_plan_paths(messages: Iterable[PromptMessage], plan_path: str | None) -> tuple[PromptMessage, ...]:
    return tuple(
        with_path
        for message in messages
        if (with_path := _with_plan_path(message, plan_path) if message.role is Role.SYSTEM else message).parts
    )


def _with_plan_path(message: PromptMessage, plan_path: str | None) -> PromptMessage:
    if not any(isinstance(part, PromptText) and PLAN_PATH in part.text for part in message.parts):
        return message
    replaced = (
        PromptText(system_blocks.with_plan_path(part.text, plan_path))
        for part in message.parts
        if isinstance(part, PromptText)
    )
    return msgspec.structs.replace(message, parts=tuple(part for part in replaced if part.text.strip()))
