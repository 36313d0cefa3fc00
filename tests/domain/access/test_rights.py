"""The access rules: the combination of several roles, and properties of every pair of actor and action."""

from __future__ import annotations

from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rookery.domain.access import rights
from rookery.domain.access.rights import (
    CHAT_RIGHTS,
    GRANTS,
    RULES,
    Action,
    AdminAccess,
    ChatFacts,
    OwnerActor,
    Relation,
    Resource,
    Role,
    Scope,
    SystemActor,
    SystemName,
    UserActor,
    Verdict,
)

ADA, BOB = UUID(int=1), UUID(int=2)
ACTIONS = st.sampled_from(sorted(CHAT_RIGHTS))
FACTS = st.builds(ChatFacts, st.sampled_from([ADA, BOB]), st.booleans(), st.sampled_from(AdminAccess))
ACTORS = st.one_of(
    st.builds(UserActor, st.just(ADA), st.sampled_from(Role)),
    st.builds(OwnerActor, st.just(ADA)),
)


def judged(actor: UserActor, action: Action, *, shared: bool = True, reason: bool = False) -> Verdict:
    facts = ChatFacts(BOB, shared)
    return rights.judge_chat(actor, action, facts=facts, has_reason=reason)


@pytest.mark.parametrize("role", Role)
def test_reader_may_read_in_any_role(role: Role) -> None:
    reader = UserActor(ADA, role)

    assert judged(reader, Action.READ) is Verdict.ALLOWED
    assert judged(reader, Action.MARK) is Verdict.ALLOWED
    assert judged(reader, Action.DRIVE) is Verdict.OWNER_ONLY
    assert not rights.uses_break_glass(reader, Action.READ, facts=ChatFacts(BOB, True))


def test_reader_does_not_see_debug_records() -> None:
    assert judged(UserActor(ADA), Action.INSPECT) is Verdict.OWNER_ONLY
    assert judged(UserActor(ADA, Role.AUDITOR), Action.INSPECT) is Verdict.OWNER_ONLY
    assert judged(UserActor(ADA), Action.INSPECT, shared=False) is Verdict.NOT_FOUND
    assert judged(UserActor(ADA, Role.AUDITOR), Action.INSPECT, shared=False, reason=True) is Verdict.NOT_FOUND


@pytest.mark.parametrize("is_shared", [True, False])
def test_administrator_sees_debug_records_only_as_the_setting_allows_reading(is_shared: bool) -> None:
    admin = UserActor(ADA, Role.ADMIN)
    verdicts = {
        access: tuple(
            rights.judge_chat(admin, Action.INSPECT, facts=ChatFacts(BOB, is_shared, access), has_reason=reason)
            for reason in (False, True)
        )
        for access in AdminAccess
    }

    refusal = Verdict.OWNER_ONLY if is_shared else Verdict.NOT_FOUND
    assert verdicts == {
        AdminAccess.NONE: (refusal, refusal),
        AdminAccess.BREAK_GLASS: (Verdict.NEEDS_REASON, Verdict.ALLOWED),
        AdminAccess.FULL: (Verdict.ALLOWED, Verdict.ALLOWED),
    }
    assert rights.uses_break_glass(admin, Action.INSPECT, facts=ChatFacts(BOB, is_shared))


def test_share_takes_no_right_from_an_administrator() -> None:
    admin = UserActor(ADA, Role.ADMIN)

    assert judged(admin, Action.ARCHIVE) is Verdict.ALLOWED
    assert rights.relation(admin, ChatFacts(BOB, True)) is Relation.ADMIN


@given(ACTORS, ACTIONS, FACTS, st.booleans())
def test_user_who_may_not_read_learns_nothing(
    actor: UserActor | OwnerActor, action: Action, facts: ChatFacts, reason: bool
) -> None:
    reads = rights.judge_chat(actor, Action.READ, facts=facts, has_reason=reason)
    verdict = rights.judge_chat(actor, action, facts=facts, has_reason=reason)

    if reads is Verdict.NOT_FOUND:
        is_staff = rights.role_of(actor) is Role.ADMIN
        assert verdict is Verdict.NOT_FOUND or (is_staff and verdict is Verdict.ALLOWED)
    assert verdict is not Verdict.NEEDS_REASON or action in (Action.READ, Action.INSPECT)


@given(ACTIONS, FACTS, st.booleans())
def test_agent_can_do_what_its_owner_can_as_a_member_and_no_more(
    action: Action, facts: ChatFacts, reason: bool
) -> None:
    agent = rights.judge_chat(OwnerActor(ADA), action, facts=facts, has_reason=reason)

    assert agent is rights.judge_chat(UserActor(ADA, Role.MEMBER), action, facts=facts, has_reason=reason)


@given(ACTORS, ACTIONS, FACTS)
def test_reason_only_ever_opens_reading(actor: UserActor | OwnerActor, action: Action, facts: ChatFacts) -> None:
    without, with_reason = (
        rights.judge_chat(actor, action, facts=facts, has_reason=reason) for reason in (False, True)
    )

    if action not in (Action.READ, Action.INSPECT):
        assert (without is Verdict.ALLOWED) == (with_reason is Verdict.ALLOWED)


def test_owner_may_do_everything_but_leave() -> None:
    facts = ChatFacts(ADA, False)

    refused = [
        action for action in CHAT_RIGHTS if rights.judge_chat(UserActor(ADA), action, facts=facts) != Verdict.ALLOWED
    ]
    assert refused == [Action.LEAVE]


@pytest.mark.parametrize("key", sorted(RULES))
def test_token_for_everything_has_every_scope_and_one_for_usage_few(key: tuple[Resource, Action]) -> None:
    scopes = rights.scopes_for(*key)

    assert Scope.ALL in scopes
    if Scope.USAGE_READ in scopes:
        assert key[0] in (Resource.USAGE, Resource.AUDIT)


def test_parts_of_rookery_are_a_closed_list() -> None:
    assert set(GRANTS) == set(SystemName)
    with pytest.raises(ValueError):
        SystemActor("root")  # type: ignore[arg-type]
