"""Whole turns with debug records, against fake providers on real sockets and a real database."""

from __future__ import annotations

from rookery.testing.fake_completions import Answer, FakeCompletions
from rookery.testing.fake_server import failure
from tests.debug import records
from tests.worker.worker_rig import Records, open_house


async def test_turn_is_recorded_with_its_step_and_attempt(database_url: str) -> None:
    fake = FakeCompletions()
    fake.enqueue(Answer(text="Here I am."))
    async with fake.listening() as url, open_house(database_url, server=url, records=Records()) as rig:
        chat_id = await rig.ask("hello   there")
        await rig.rested(chat_id)
        (run,) = await records.ended(rig, chat_id)
        (step,) = await records.steps(rig, run)
        (attempt,) = await records.attempts(rig, step)

    assert (run["status"], run["summary"]["first_message"], run["summary"]["step_count"]) == (
        "completed",
        "hello there",
        1,
    )
    assert (step["status"], step["step_key"][0], step["error"]) == ("completed", "h", None)
    assert step["normalized_response"]["content"][0]["text"] == "Here I am."
    assert step["assistant_message_id"] is not None
    assert (attempt["status"], attempt["response_status"], attempt["path"]) == (
        "completed",
        200,
        "/v1/chat/completions",
    )


async def test_retry_continues_the_step_and_its_success_clears_the_error(database_url: str) -> None:
    fake = FakeCompletions()
    fake.enqueue(failure(529, "Overloaded.", code="overloaded_error"), Answer(text="Here I am."))
    async with fake.listening() as url, open_house(database_url, server=url, records=Records()) as rig:
        chat_id = await rig.ask("hello")
        await rig.rested(chat_id)
        (run,) = await records.ended(rig, chat_id)
        (step,) = await records.steps(rig, run)
        first, second = await records.attempts(rig, step)

    assert (step["status"], step["error"], step["finish_epoch"]) == ("completed", None, 2)
    (prior,) = step["metadata"]["prior_errors"]
    assert (prior["kind"], prior["generation_attempt"]) == ("overloaded", 1)
    assert "retrying" not in step["metadata"]
    assert (first["retry_kind"], second["retry_kind"]) == ("overloaded", None)
    assert (first["generation_attempt"], second["generation_attempt"]) == (1, 2)
    assert (run["status"], run["summary"].get("has_error"), run["summary"]["retry_count"]) == ("completed", None, 1)
