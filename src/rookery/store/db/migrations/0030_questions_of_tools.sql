-- min_schema: 10
-- What a call of a tool has to remember to be continued by another process, and the question that it waits for. Without
-- it, a call that was begun elsewhere could only be repeated or given up. Older servers end such a call as unknown.

-- `state` is what the tool has kept. `question` is open until the user answers; then `answer` is set, for the next run.
ALTER TABLE chat_tool_runs ADD COLUMN state jsonb;
ALTER TABLE chat_tool_runs ADD COLUMN question jsonb;
ALTER TABLE chat_tool_runs ADD COLUMN answer jsonb;
ALTER TABLE chat_tool_runs ADD CONSTRAINT chat_tool_runs_question CHECK (question IS NULL OR answer IS NULL);
CREATE INDEX chat_tool_runs_asked ON chat_tool_runs (chat_id) WHERE question IS NOT NULL;
