"""Subagents and the advisor. Start with `subagent_tools` (the tools of the model) and `subagent_operations` (what they
do).

A subagent is a separate chat, so it survives crashes like any other chat. This package keeps no state in memory. Ends
of subagents' turns are rows (`store.chats.subagents`), and `subagent_monitor` completes the work of a replica that has
died.
"""
