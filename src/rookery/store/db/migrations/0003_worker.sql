-- min_schema: 1
-- What the worker needs: the bytes of files, the ledger of tool runs, candidates by owner, and usage by day. Without it
-- no file reaches a model, a tool may run twice after a crash, and one owner's backlog holds up everybody else's first
-- chat. Everything added has a default, so code of schema 1 goes on working.

-- Uncompressed: pictures do not shrink, and a range of a file is read without reading what stands before it. The hash is
-- the database's own work, so that it can never be wrong and no event loop computes it.
ALTER TABLE chat_files
  ADD COLUMN data bytea NOT NULL DEFAULT '',
  ADD COLUMN origin text NOT NULL DEFAULT 'upload',
  ADD COLUMN sha256 bytea GENERATED ALWAYS AS (sha256(data)) STORED,
  ADD CONSTRAINT chat_files_origin CHECK (origin IN ('upload', 'pasted', 'tool')),
  ADD CONSTRAINT chat_files_size CHECK (octet_length(data) <= 10485760);
ALTER TABLE chat_files ALTER COLUMN data SET STORAGE EXTERNAL;
CREATE INDEX chat_files_owner ON chat_files (owner_id, created_at);

-- One row per run of a tool that must not run twice. The token is made of chat, assistant message and call, so whoever
-- replays the call finds the row. No foreign key to the message: it lives as long as its chat.
CREATE TABLE chat_tool_runs (
  token uuid PRIMARY KEY,
  chat_id uuid NOT NULL REFERENCES chats ON DELETE CASCADE,
  message_id bigint NOT NULL,
  tool_call_id text NOT NULL,
  tool_name text NOT NULL,
  started_at timestamptz NOT NULL DEFAULT clock_timestamp(),
  finished_at timestamptz,
  result bytea,  -- as the worker encoded it; nobody here looks into it
  is_error boolean NOT NULL DEFAULT false,
  CONSTRAINT chat_tool_runs_result CHECK ((finished_at IS NULL) = (result IS NULL)),
  CONSTRAINT chat_tool_runs_error CHECK (finished_at IS NOT NULL OR NOT is_error)
);
CREATE INDEX chat_tool_runs_chat ON chat_tool_runs (chat_id);
CREATE INDEX chat_tool_runs_age ON chat_tool_runs (started_at);

-- By owner, then by age: candidates are ranked within each owner, and an owner's backlog is never walked to find what
-- stands behind it. Still runnable rows only. Older code reads the same index, and sorts what it finds.
DROP INDEX chats_acquire;
CREATE INDEX chats_acquire ON chats ((parent_chat_id IS NULL), status, owner_id, runnable_since, id)
  WHERE status IN ('running', 'interrupting', 'requires_action');

-- model_usage by day (UTC), recomputed while a day is young. No foreign keys: like the ledger it outlives users, models
-- and chats, so it names the provider as people knew it.
CREATE TABLE usage_daily (
  day date NOT NULL,
  user_id uuid NOT NULL,
  model_config_id uuid,
  provider text NOT NULL,
  model text NOT NULL,
  purpose text NOT NULL,
  key_source text NOT NULL,
  input_tokens bigint NOT NULL,
  cache_read_tokens bigint NOT NULL,
  cache_write_tokens bigint NOT NULL,
  output_tokens bigint NOT NULL,
  reasoning_tokens bigint NOT NULL,
  cost_micros bigint NOT NULL,
  unpriced_requests bigint NOT NULL,
  requests bigint NOT NULL,
  runtime_ms bigint NOT NULL,
  UNIQUE NULLS NOT DISTINCT (day, user_id, model_config_id, provider, model, purpose, key_source)
);
