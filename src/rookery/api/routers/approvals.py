"""Tool approvals: answers to a chat's questions about tool calls, and its rules for them."""

from __future__ import annotations

from typing import Annotated, Any
from uuid import UUID

import msgspec
from pydantic import Field
from starlette.responses import Response

from rookery.api import headers
from rookery.api.caller import Caller
from rookery.api.request_bodies import Body
from rookery.api.routes import Routes, answer, nothing
from rookery.api.services import ApiServices
from rookery.domain.access.rights import Action
from rookery.domain.chat import approvals, open_tool_calls
from rookery.domain.chat.approvals import Answer, Decision, Rule, RuleAction, Scope
from rookery.domain.chat.errors import InvalidInput
from rookery.domain.chat.messages import ChatId, MessageId
from rookery.tools import workspace_lifecycle

MatchBody = Annotated[
    dict[Annotated[str, Field(min_length=1, max_length=200)], Annotated[str, Field(max_length=approvals.MAX_PATTERN)]],
    Field(max_length=approvals.MAX_MATCHES),
]


class RuleBody(Body):
    """A rule. `tool` is a glob over the tool's name; the values in `match` are globs over arguments, by their path.

    A glob has at most 256 characters and 16 wildcards. Tools of MCP servers are named `mcp:SERVER/TOOL`.
    """

    tool: Annotated[str, Field(min_length=1, max_length=200)]
    action: RuleAction
    match: MatchBody = Field(default_factory=dict)
    reason: Annotated[str, Field(max_length=approvals.MAX_REASON)] = ""
    # Accepted, so that rules can be sent back as they were read. A rule that has a problem is refused.
    problem: None = None

    def rule(self) -> Rule:
        return Rule(tool=self.tool, action=self.action, match=dict(self.match), reason=self.reason)


RulesList = Annotated[list[RuleBody], Field(max_length=approvals.MAX_RULES)]


class RulesBody(Body):
    """All rules of the chat. They replace the earlier ones."""

    rules: RulesList


class RulesView(msgspec.Struct, frozen=True):
    rules: tuple[Rule, ...]


class AnswerInput(Body):
    """The answer to one question. `always` turns an approval into a rule: for this chat and its subagents, or for all
    chats of the user.

    `match` selects the calls that the rule covers; without it, the rule covers the calls that the question offered.

    `parameters` are values for a call of `create_workspace`: those of the template's parameters that the agent left
    out or that the user changed. They are stored with the workspace only, and secrets are encrypted there.

    `responses` are the values for the questions of an MCP server (`elicitation` of the call): for each question that is
    a form, its id and the values of its fields. An address needs no values: approve after it was opened.
    """

    tool_call_id: str
    decision: Decision
    reason: Annotated[str, Field(max_length=approvals.MAX_REASON)] = ""
    always: Scope | None = None
    match: MatchBody | None = None
    parameters: Annotated[dict[str, Any], Field(max_length=100)] | None = None
    responses: Annotated[dict[str, Annotated[dict[str, Any], Field(max_length=50)]], Field(max_length=10)] | None = None


class AnswersBody(Body):
    """The answers to all open questions of the chat."""

    answers: Annotated[list[AnswerInput], Field(min_length=1)]


def router(services: ApiServices) -> Routes:
    routes = Routes("approvals")

    async def create_workspace(caller: Caller, chat_id: ChatId, tool_call_id: str, values: dict[str, Any]) -> None:
        """Create the workspace of a call with the user's values. The call finds it. A repeat creates no second one."""
        question = await caller.store.approvals.find_question(chat_id, tool_call_id)
        if question is None:
            return  # `answer` refuses it
        if question.tool_name != workspace_lifecycle.CREATE:
            raise InvalidInput("answers.parameters", "Only a call of create_workspace takes parameters.")
        await workspace_lifecycle.create_asked(
            services.workspaces.service,
            caller.store,
            caller.user.id,
            chat_id=chat_id,
            token=open_tool_calls.replay_token(chat_id, MessageId(question.message_id), tool_call_id),
            args=question.args,
            values=values,
        )

    @routes.post("/chats/{chat}/approvals", "approvals.answer", body=AnswersBody, errors=(404, 409))
    async def answer_questions(caller: Caller, chat: UUID) -> Response:
        """Approve or deny all tool calls that the chat asks about, in one request.

        The model gets denials with their reasons.

        409 `not_waiting_for_approval` if the questions were already answered or closed.
        """
        body = await caller.read(AnswersBody, may=caller.may(chat, Action.DRIVE))
        answers = [
            Answer(
                tool_call_id=each.tool_call_id,
                decision=each.decision,
                reason=each.reason,
                always=each.always,
                match=each.match,
                responses=each.responses,
            )
            for each in body.answers
        ]
        for each in body.answers:
            if each.parameters is not None and each.decision is Decision.APPROVE:
                await create_workspace(caller, ChatId(chat), each.tool_call_id, each.parameters)
        await caller.store.approvals.answer(ChatId(chat), answers)
        services.stats.approvals.update(
            str(each.decision) if each.always is None else f"always_{each.always}" for each in answers
        )
        return nothing()

    @routes.get(
        "/chats/{chat}/approval-rules",
        "approvals.list_rules",
        returns=RulesView,
        errors=(404,),
        takes=[headers.BREAK_GLASS],
    )
    async def list_rules(caller: Caller, chat: UUID) -> Response:
        """List the rules of the chat's root, which apply to the root and all its subagents.

        The rules of the chat's owner and of the installation apply as well.
        """
        return answer(RulesView(approvals.with_problems(await caller.store.approvals.list_rules(ChatId(chat)))))

    @routes.put("/chats/{chat}/approval-rules", "approvals.put_rules", body=RulesBody, returns=RulesView, errors=(404,))
    async def put_rules(caller: Caller, chat: UUID) -> Response:
        """Replace the approval rules of a root chat. They apply to it and its subagents from the next tool call on."""
        body = await caller.read(RulesBody, may=caller.may(chat, Action.PATCH))
        written = await caller.store.approvals.write_rules(ChatId(chat), [each.rule() for each in body.rules])
        return answer(RulesView(written))

    return routes
