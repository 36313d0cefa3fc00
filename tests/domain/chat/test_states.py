from __future__ import annotations

from itertools import product

import pytest

from rookery.domain.chat.states import ARCHIVED, HAS_QUEUE, RUNNABLE, STATUS_OF, State, Status, classify

TUPLES = list(product(Status, (False, True), (0, 3)))


def test_classify_maps_exactly_twelve_of_the_twenty_tuples_to_valid_states() -> None:
    states = [classify(status, archived=archived, queue_len=queue) for status, archived, queue in TUPLES]

    assert len(TUPLES) == 20
    valid = [state for state in states if state is not State.INVALID]
    assert len(valid) == len(set(valid)) == 12


def test_classify_calls_an_unknown_status_invalid_and_a_missing_row_n() -> None:
    assert classify("dreaming") is State.INVALID
    assert classify(None) is State.N


@pytest.mark.parametrize(("status", "archived", "queue"), TUPLES)
def test_state_agrees_with_the_tuple_it_came_from(status: Status, archived: bool, queue: int) -> None:
    state = classify(status, archived=archived, queue_len=queue)

    if state is State.INVALID:
        waiting_with_backlog = status is Status.WAITING and queue > 0
        archived_while_busy = archived and status not in (Status.WAITING, Status.ERROR)
        assert waiting_with_backlog or archived_while_busy
        return
    assert STATUS_OF[state] is status
    assert (state in ARCHIVED) is archived
    assert (state in HAS_QUEUE) is (queue > 0)
    busy = status in (Status.RUNNING, Status.INTERRUPTING, Status.REQUIRES_ACTION)
    assert (state in RUNNABLE) is busy
