from __future__ import annotations

import pytest
from msgspec import Raw

from rookery.domain.chat import parts
from rookery.domain.chat.messages import Effort, StepFigures
from rookery.domain.chat.parts import ToolResult
from rookery.domain.chat.states import State
from rookery.store import machine
from tests.store.machine import shared_rig
from tests.store.machine.machine_rig import Rig, assistant, call, calling, closure_of, result, told, words

rig = shared_rig.rig

# Asking to stop


@pytest.mark.parametrize(("state", "target"), [(State.R0, State.I0), (State.R1, State.I1)])
async def test_interrupt_of_work_only_asks_the_worker_to_stop(rig: Rig, state: State, target: State) -> None:
    chat_id = await rig.chat(state)
    fence = await rig.acquire(chat_id)
    await rig.commit(chat_id, calling(call("a"), call("b", "run")))
    before, history, queue = await rig.load(chat_id), await rig.history(chat_id), await rig.queue(chat_id)

    interrupted = await rig.update(chat_id, machine.interrupt)

    after = await rig.load(chat_id)
    assert interrupted == machine.Interrupted()
    assert after.state is target
    assert (await rig.history(chat_id), await rig.queue(chat_id)) == (history, queue)
    assert (after.history_version, after.queue_version) == (before.history_version, before.queue_version)
    assert after.runner_id == fence.runner_id


async def test_interrupt_while_a_client_is_waited_for_ends_at_rest_with_every_call_answered(rig: Rig) -> None:
    chat_id = await rig.create()
    await rig.commit(chat_id, calling(call("a"), call("b", "run")))
    await rig.update(chat_id, machine.enter_requires_action)
    rig.published.clear()

    interrupted = await rig.update(chat_id, machine.interrupt)

    assert [closure_of(message) for message in interrupted.inserted] == [
        ("a", "interrupted_by_user"),
        ("b", "interrupted_by_user"),
    ]
    assert interrupted.promoted is None
    chat = await rig.load(chat_id)
    assert (chat.state, chat.requires_action_deadline_at) == (State.W, None)
    assert chat.history_version == chat.snapshot_version
    # Nobody is asked to go on: the model does not talk any more.
    assert rig.published.ownership() == []


async def test_interrupt_while_a_client_is_waited_for_lets_the_queue_head_run_next(rig: Rig) -> None:
    for queued, target in ((1, State.R0), (2, State.R1)):
        chat_id = await rig.chat(State.A1, queued=queued)

        interrupted = await rig.update(chat_id, machine.interrupt)

        closing, head = interrupted.inserted
        assert closure_of(closing) == ("call-1", "interrupted_by_user")
        assert (words(head), interrupted.promoted) == ("queued 0", head)
        assert told(interrupted.inserted) == told((await rig.history(chat_id))[-2:])
        chat = await rig.load(chat_id)
        assert (chat.state, chat.requires_action_deadline_at) == (target, None)
        assert chat.history_version == chat.queue_version == chat.snapshot_version


async def test_reason_given_with_an_interrupt_reaches_the_model(rig: Rig) -> None:
    chat_id = await rig.chat(State.A0)

    interrupted = await rig.run(chat_id, machine.interrupt, note="Wrong file.")

    (part,) = interrupted.inserted[0].parts()
    assert isinstance(part, ToolResult)
    assert isinstance(part.result, Raw)
    assert parts.json_value(part.result) == {"error": "Wrong file.", "reason": "interrupted_by_user"}


# Having stopped


async def test_finished_interruption_stores_partials_then_closures_then_the_head(rig: Rig) -> None:
    chat_id = await rig.chat(State.R1, queued=2)
    await rig.commit(chat_id, calling(call("old", "run")))
    await rig.update(chat_id, machine.interrupt)

    stopped = await rig.run(
        chat_id, machine.finish_interruption, [assistant("I was going"), calling(call("new", "run"))]
    )

    history = await rig.history(chat_id)
    assert told(stopped.inserted) == told(history[2:])
    assert words(history[2]) == "I was going"
    assert [closure_of(message) for message in history[4:6]] == [("old", "interrupted"), ("new", "interrupted")]
    assert words(history[6]) == "queued 0"
    assert stopped.promoted is not None
    assert stopped.promoted.id == history[6].id
    chat = await rig.load(chat_id)
    assert chat.state is State.R1
    assert chat.history_version == chat.queue_version == chat.snapshot_version
    assert {message.revision for message in history[2:]} == {chat.snapshot_version}


async def test_finished_interruption_without_a_backlog_rests(rig: Rig) -> None:
    chat_id = await rig.chat(State.I0)

    stopped = await rig.run(chat_id, machine.finish_interruption, [assistant("I was")])

    assert [words(message) for message in stopped.inserted] == ["I was"]
    assert stopped.promoted is None
    chat = await rig.load(chat_id)
    assert (chat.state, chat.history_version) == (State.W, chat.snapshot_version)


async def test_finished_interruption_with_nothing_to_save_moves_no_history(rig: Rig) -> None:
    chat_id = await rig.chat(State.I0)
    before = await rig.load(chat_id)

    stopped = await rig.update(chat_id, machine.finish_interruption)

    after = await rig.load(chat_id)
    assert stopped == machine.Interrupted([], None)
    assert (after.state, after.history_version, after.queue_version) == (
        State.W,
        before.history_version,
        before.queue_version,
    )


async def test_call_that_the_partials_answer_is_not_answered_again(rig: Rig) -> None:
    chat_id = await rig.create()
    await rig.commit(chat_id, calling(call("a", "run"), call("b", "run")))
    await rig.update(chat_id, machine.interrupt)

    stopped = await rig.run(chat_id, machine.finish_interruption, [result("a", "run")])

    assert [closure_of(message) for message in stopped.inserted[1:]] == [("b", "interrupted")]


async def test_interrupt_between_a_client_call_and_waiting_for_it_ends_at_rest_with_the_call_answered(rig: Rig) -> None:
    chat_id = await rig.create()
    await rig.commit(chat_id, calling(call("a")))
    await rig.update(chat_id, machine.interrupt)

    stopped = await rig.update(chat_id, machine.finish_interruption)

    assert [closure_of(message) for message in stopped.inserted] == [("a", "interrupted")]
    assert await rig.state(chat_id) is State.W
    assert await rig.update(chat_id, machine.open_calls.turn_calls) == ()


async def test_partial_output_keeps_its_figures_and_sets_the_model(rig: Rig) -> None:
    model = await rig.add_model()
    for queued in (0, 1):
        chat_id = await rig.chat(State.I1 if queued else State.I0)
        partial = assistant(
            "I was",
            model_config_id=model,
            reasoning_effort=Effort.HIGH,
            figures=StepFigures(runtime_ms=700, output_tokens=0),
        )

        stopped = await rig.run(chat_id, machine.finish_interruption, [partial, calling(call("a", "run"))])

        saved = stopped.inserted[0].id
        assert await rig.value("SELECT runtime_ms FROM chat_messages WHERE id = $1", saved) == 700
        assert await rig.value("SELECT output_tokens FROM chat_messages WHERE id = $1", saved) is None
        assert stopped.inserted[2].model_config_id == model
        chat = await rig.load(chat_id)
        assert (chat.last_model_config_id, chat.last_reasoning_effort) == (model, "high")


async def test_model_of_the_promoted_head_wins_over_that_of_the_partial_output(rig: Rig) -> None:
    model = await rig.add_model()
    chat_id = await rig.chat(State.I0)
    await rig.send(chat_id, "next", model_config_id=rig.model, reasoning_effort=Effort.LOW)

    partial = assistant("I was", model_config_id=model, reasoning_effort=Effort.HIGH)
    await rig.run(chat_id, machine.finish_interruption, [partial])

    chat = await rig.load(chat_id)
    assert (chat.last_model_config_id, chat.last_reasoning_effort) == (rig.model, "low")
