-- min_schema: 10
-- Debug records: a run is one piece of model work, a step one logical model call in it, an attempt one HTTP exchange.
-- Without them nobody can see what a model was sent. Older servers of a deployment neither write nor read them.

-- The ids of other chats, runs and models are copies without foreign keys: a record outlives what it names. A record of
-- removed history is deleted by `chat_debug_state`, and every record with its chat.
CREATE TABLE chat_debug_runs (
  id uuid PRIMARY KEY,
  chat_id uuid NOT NULL REFERENCES chats ON DELETE CASCADE,
  parent_run_id uuid,
  root_chat_id uuid NOT NULL,
  parent_chat_id uuid,
  model_config_id uuid,
  replica_id uuid NOT NULL,
  trigger_message_id bigint,
  history_tip_message_id bigint,
  snapshot_version bigint NOT NULL,
  kind text NOT NULL CHECK (kind IN ('chat_turn', 'compaction', 'advisor', 'title_generation', 'quickgen')),
  status text NOT NULL CHECK (status IN ('in_progress', 'completed', 'interrupted', 'error')),
  provider text,
  model text,
  summary jsonb NOT NULL DEFAULT '{}',
  started_at timestamptz NOT NULL,
  -- The database's clock. Beats, the sweep of stale runs and the retention use it.
  updated_at timestamptz NOT NULL DEFAULT clock_timestamp(),
  finished_at timestamptz,
  UNIQUE (id, chat_id),
  CONSTRAINT chat_debug_runs_finished CHECK ((status = 'in_progress') = (finished_at IS NULL))
);
CREATE INDEX chat_debug_runs_list ON chat_debug_runs (chat_id, started_at DESC, id DESC);
CREATE INDEX chat_debug_runs_age ON chat_debug_runs (updated_at);
CREATE INDEX chat_debug_runs_silent ON chat_debug_runs (updated_at) WHERE finished_at IS NULL;
CREATE INDEX chat_debug_runs_replica ON chat_debug_runs (replica_id) WHERE finished_at IS NULL;

-- `step_key` is set for steps that a retry continues. `finish_epoch` is the number of the newest model call of the step.
-- A request stores only the messages after those that it shares with the previous step. The counts, the cost and the
-- finish reason are columns, because the list of a run's steps must not read requests and responses.
CREATE TABLE chat_debug_steps (
  id uuid PRIMARY KEY,
  run_id uuid NOT NULL,
  chat_id uuid NOT NULL,
  step_number integer NOT NULL CHECK (step_number > 0),
  step_key text,
  finish_epoch integer NOT NULL DEFAULT 0,
  operation text NOT NULL CHECK (operation IN ('stream', 'generate')),
  status text NOT NULL CHECK (status IN ('in_progress', 'interrupted', 'error', 'completed')),
  history_tip_message_id bigint,
  assistant_message_id bigint,
  model_config_id uuid,
  provider text,
  model text,
  message_count integer NOT NULL DEFAULT 0,
  shared_messages integer NOT NULL DEFAULT 0,
  tool_count integer NOT NULL DEFAULT 0,
  normalized_request jsonb NOT NULL DEFAULT '{}',
  normalized_response jsonb,
  usage jsonb,
  cost_micros bigint,
  finish_reason text,
  error jsonb,
  metadata jsonb NOT NULL DEFAULT '{}',
  cache jsonb,
  replay_form bytea,
  ttft_ms integer,
  started_at timestamptz NOT NULL,
  updated_at timestamptz NOT NULL DEFAULT clock_timestamp(),
  finished_at timestamptz,
  FOREIGN KEY (run_id, chat_id) REFERENCES chat_debug_runs (id, chat_id) ON DELETE CASCADE,
  UNIQUE (run_id, step_number),
  UNIQUE (run_id, step_key),
  CONSTRAINT chat_debug_steps_finished CHECK ((status = 'in_progress') = (finished_at IS NULL))
);
-- Already compressed.
ALTER TABLE chat_debug_steps ALTER COLUMN replay_form SET STORAGE EXTERNAL;
CREATE INDEX chat_debug_steps_tip ON chat_debug_steps (chat_id, history_tip_message_id);
CREATE INDEX chat_debug_steps_answer ON chat_debug_steps (chat_id, assistant_message_id)
  WHERE assistant_message_id IS NOT NULL;
CREATE INDEX chat_debug_steps_silent ON chat_debug_steps (updated_at) WHERE finished_at IS NULL;

-- Bodies are compressed with zlib. `body_meta` has their true sizes, encodings, and whether they were cut.
CREATE TABLE chat_debug_attempts (
  step_id uuid NOT NULL REFERENCES chat_debug_steps ON DELETE CASCADE,
  number integer NOT NULL CHECK (number > 0),
  chat_id uuid NOT NULL,
  status text NOT NULL CHECK (status IN ('completed', 'failed', 'aborted')),
  generation_attempt integer NOT NULL DEFAULT 0,
  method text NOT NULL,
  url text NOT NULL,
  path text NOT NULL,
  request_headers jsonb NOT NULL DEFAULT '{}',
  request_body bytea,
  response_status integer,
  response_headers jsonb NOT NULL DEFAULT '{}',
  response_body bytea,
  body_meta jsonb NOT NULL DEFAULT '{}',
  error text,
  ttfb_ms integer,
  duration_ms integer NOT NULL,
  retry_kind text,
  retry_delay_ms bigint,
  started_at timestamptz NOT NULL,
  finished_at timestamptz NOT NULL,
  PRIMARY KEY (step_id, number)
);
ALTER TABLE chat_debug_attempts
  ALTER COLUMN request_body SET STORAGE EXTERNAL,
  ALTER COLUMN response_body SET STORAGE EXTERNAL;

-- Whether the chat is recorded (of a root, for its family), and which records an edit or archive has removed: runs whose
-- snapshot_version is below `floor` and that touch a message at or after `delete_from`. A run is inserted under a SHARE
-- lock of this row and only from `floor` on, so a worker that was displaced cannot add one afterwards.
CREATE TABLE chat_debug_state (
  chat_id uuid PRIMARY KEY REFERENCES chats ON DELETE CASCADE,
  mode text NOT NULL DEFAULT 'inherit' CHECK (mode IN ('inherit', 'on', 'off')),
  floor bigint NOT NULL DEFAULT 0,
  delete_from bigint
);
CREATE INDEX chat_debug_state_deletes ON chat_debug_state (chat_id) WHERE delete_from IS NOT NULL;
