"""The agent loop: one model step, one tool batch, one summary.

It uses no database and makes no retries. Start with `model_step` and `tool_batch`.
"""
