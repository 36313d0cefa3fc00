"""The worker: acquires runnable chats and runs their turns.

Every commit goes through `store.machine` behind a fence, so the result of a stale runner is never stored. Start with
`worker.py`, which builds all parts. The live parts that clients see are in `rookery.live`.
"""
