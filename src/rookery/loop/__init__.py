"""One model step, one tool batch, one summary: no database, no retries. Start reading at `assistant` and `batch`."""
