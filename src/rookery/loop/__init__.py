"""One model step, one tool batch, one summary: no database, no retries. Start with `model_step` and `tool_batch`."""
