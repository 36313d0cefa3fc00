"""Subagents and the advisor. Start with `tools` (what a model can call), then `family` (what the calls do).

A subagent is a chat of its own, so it survives crashes like any other. Nothing here keeps state in memory: the ends of
children are rows (`store.chats.subagents`), and `monitor` makes up for whatever a dead replica left undone.
"""
