"""The worker: finds runnable chats and drives them through acquisition, runners, tasks and generation steps.

Every commit goes through `store.machine` under a fence, so stale work can never be committed. Start with `worker.py`,
which wires the pieces together; the live parts that clients see are in `rookery.live`.
"""
