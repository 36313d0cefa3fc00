"""Subagents and the advisor. Start with `tools` (the tools that a model can call), then read
`subagent_operations` (their implementation).

A subagent is a separate chat, so it survives crashes like any other. This package keeps no state in memory. The ends of
children are rows (`store.chats.subagents`), and `subagent_monitor` completes the work of a replica that has died.
"""
