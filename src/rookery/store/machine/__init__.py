"""The transitions, applied in SQL. Only this package writes the execution state of a chat.

`Machine` runs bundles. The functions listed here are the operations of a bundle. Start with `bundle_runner`, then read
`send`.
"""

from rookery.store.machine.approvals import Question, answer_approvals, ask_approvals
from rookery.store.machine.archive import delete_family, set_archived, set_family_archived
from rookery.store.machine.bundle import Bundle, Tx
from rookery.store.machine.bundle_runner import ChatMachine, Machine, Publisher, View
from rookery.store.machine.capacity import (
    Limits,
    Pool,
    PoolCounts,
    Slot,
    admit,
    count_pools,
    find_donors,
    find_receiver,
    give_way,
    is_queued_for_capacity,
)
from rookery.store.machine.create import ChatSpec, Created, create_chat
from rookery.store.machine.edit import Edited, edit_message
from rookery.store.machine.interrupt import (
    Interrupted,
    cancel_requires_action,
    complete_requires_action,
    enter_requires_action,
    finish_interruption,
    interrupt,
)
from rookery.store.machine.leases import (
    ChatState,
    delete_leases,
    leave,
    release_leases,
    states_of,
    sweep_leases,
    try_abandon,
)
from rookery.store.machine.message_rows import MAX_FILES_PER_CHAT
from rookery.store.machine.ownership import (
    Candidate,
    LeaseKey,
    abandon,
    acquire,
    list_candidates,
    renew_leases,
    try_acquire,
)
from rookery.store.machine.queue import (
    Promoted,
    clear_queue,
    delete_queued_message,
    edit_queued_message,
    promote_queued_message,
    reorder_queue,
)
from rookery.store.machine.queue_rows import MAX_QUEUE
from rookery.store.machine.send import Sent, find_sent, send_message
from rookery.store.machine.subagent_notices import MAX_WAKES, Woken, keep_at_rest, tell_ends, try_wake, wake_parent
from rookery.store.machine.turn_transitions import (
    StepCommitted,
    TurnFinished,
    commit_step,
    finish_error,
    finish_turn,
    reconcile_invalid_state,
    record_generation_attempt,
    record_retry_state,
    request_compaction,
    require_compactable,
    retry_turn,
)

__all__ = [
    "MAX_FILES_PER_CHAT",
    "MAX_QUEUE",
    "MAX_WAKES",
    "Bundle",
    "Candidate",
    "ChatMachine",
    "ChatSpec",
    "ChatState",
    "Created",
    "Edited",
    "Interrupted",
    "LeaseKey",
    "Limits",
    "Machine",
    "Pool",
    "PoolCounts",
    "Promoted",
    "Publisher",
    "Question",
    "Sent",
    "Slot",
    "StepCommitted",
    "TurnFinished",
    "Tx",
    "View",
    "Woken",
    "abandon",
    "acquire",
    "admit",
    "answer_approvals",
    "ask_approvals",
    "cancel_requires_action",
    "clear_queue",
    "commit_step",
    "complete_requires_action",
    "count_pools",
    "create_chat",
    "delete_family",
    "delete_leases",
    "delete_queued_message",
    "edit_message",
    "edit_queued_message",
    "enter_requires_action",
    "find_donors",
    "find_receiver",
    "find_sent",
    "finish_error",
    "finish_interruption",
    "finish_turn",
    "give_way",
    "interrupt",
    "is_queued_for_capacity",
    "keep_at_rest",
    "leave",
    "list_candidates",
    "promote_queued_message",
    "reconcile_invalid_state",
    "record_generation_attempt",
    "record_retry_state",
    "release_leases",
    "renew_leases",
    "reorder_queue",
    "request_compaction",
    "require_compactable",
    "retry_turn",
    "send_message",
    "set_archived",
    "set_family_archived",
    "states_of",
    "sweep_leases",
    "tell_ends",
    "try_abandon",
    "try_acquire",
    "try_wake",
    "wake_parent",
]
