-- min_schema: 10
-- Subagents: what the spawning call decided about each child chat, and an outbox of ended child turns. Without it a
-- parent could miss the end of a child, or hear of it twice, when a replica dies between the two. Older servers of a
-- deployment ignore all of it: they create no child chats.

-- One row per child chat. `tools` is an allow list (NULL: every tool of a child). `deadline_at` belongs to the running
-- turn and is set by trigger. `stopped_by` says why the server stopped the newest turn.
CREATE TABLE subagents (
  chat_id uuid PRIMARY KEY REFERENCES chats ON DELETE CASCADE,
  parent_chat_id uuid NOT NULL REFERENCES chats ON DELETE CASCADE,
  tool_call_id text NOT NULL,
  kind text NOT NULL CHECK (char_length(kind) BETWEEN 1 AND 64),
  kind_source text NOT NULL CHECK (kind_source IN ('builtin', 'deployment', 'user', 'workspace')),
  tools text[],
  max_minutes integer NOT NULL CHECK (max_minutes > 0),
  budget_micros bigint CHECK (budget_micros > 0),
  deadline_at timestamptz,
  stopped_by text CHECK (stopped_by IN ('deadline')),
  created_at timestamptz NOT NULL DEFAULT clock_timestamp()
);
CREATE INDEX subagents_parent ON subagents (parent_chat_id, created_at);
CREATE INDEX subagents_deadline ON subagents (deadline_at) WHERE deadline_at IS NOT NULL;

-- One row per end of a child's turn, written in the transaction that ends it. `told_at` is set in the transaction that
-- adds it to the parent's history: as a result of wait_agent, or as a notice. Both hold the parent's row lock.
CREATE TABLE subagent_ends (
  id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
  chat_id uuid NOT NULL REFERENCES chats ON DELETE CASCADE,
  parent_chat_id uuid NOT NULL REFERENCES chats ON DELETE CASCADE,
  outcome text NOT NULL CHECK (outcome IN ('finished', 'error', 'interrupted', 'deadline')),
  ended_at timestamptz NOT NULL DEFAULT clock_timestamp(),
  told_at timestamptz,
  told_by text CHECK (told_by IN ('wait', 'notice')),
  notice_id bigint,
  woke_parent boolean NOT NULL DEFAULT false,
  CONSTRAINT subagent_ends_told CHECK ((told_at IS NULL) = (told_by IS NULL)),
  CONSTRAINT subagent_ends_notice CHECK ((told_by = 'notice') = (notice_id IS NOT NULL) OR told_by IS NULL)
);
CREATE INDEX subagent_ends_untold ON subagent_ends (parent_chat_id, id) WHERE told_at IS NULL;
CREATE INDEX subagent_ends_chat ON subagent_ends (chat_id, id DESC);
CREATE INDEX subagent_ends_woke ON subagent_ends (parent_chat_id, notice_id) WHERE woke_parent;

-- A parent that a user stopped is not woken by the children that end with it. The next start of a turn clears this.
ALTER TABLE chats ADD COLUMN wake_held boolean NOT NULL DEFAULT false;

CREATE FUNCTION chats_wake_held() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
  IF NEW.status = 'running' THEN
    NEW.wake_held := false;
  ELSIF NEW.status = 'interrupting' OR (OLD.status = 'requires_action' AND NEW.status = 'waiting') THEN
    NEW.wake_held := true;
  END IF;
  RETURN NEW;
END $$;
CREATE TRIGGER chats_wake_held BEFORE UPDATE OF status ON chats FOR EACH ROW
  WHEN (NEW.parent_chat_id IS NULL AND NEW.status <> OLD.status)
  EXECUTE FUNCTION chats_wake_held();

-- Every path that starts or ends a child's turn changes its status, so the database keeps the deadline and the outbox.
CREATE FUNCTION subagent_turn() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
  IF NEW.status IN ('waiting', 'error') THEN
    INSERT INTO subagent_ends (chat_id, parent_chat_id, outcome)
    SELECT NEW.id, NEW.parent_chat_id,
           CASE WHEN NEW.status = 'error' THEN 'error'
                WHEN OLD.status = 'running' THEN 'finished'
                ELSE coalesce((SELECT s.stopped_by FROM subagents s WHERE s.chat_id = NEW.id), 'interrupted') END;
    UPDATE subagents SET deadline_at = NULL WHERE chat_id = NEW.id;
  ELSIF NEW.status = 'running' AND OLD.status IN ('waiting', 'error', 'interrupting') THEN
    UPDATE subagents
       SET deadline_at = clock_timestamp() + make_interval(mins => max_minutes), stopped_by = NULL
     WHERE chat_id = NEW.id;
  END IF;
  RETURN NULL;
END $$;
CREATE TRIGGER subagent_turn AFTER UPDATE OF status ON chats FOR EACH ROW
  WHEN (NEW.parent_chat_id IS NOT NULL AND NEW.status <> OLD.status)
  EXECUTE FUNCTION subagent_turn();

-- The last sign of life of a running chat (a streamed part, the output of a tool), as its worker saw it, and its phase.
ALTER TABLE chat_heartbeats
  ADD COLUMN progress_at timestamptz,
  ADD COLUMN phase text;

-- Kinds of subagents that administrators (owner_id NULL) and users define. Kinds of a workspace are files in it.
CREATE TABLE agent_kinds (
  id uuid PRIMARY KEY DEFAULT gen_random_uuid(),
  owner_id uuid REFERENCES users ON DELETE CASCADE,
  name text NOT NULL CHECK (name ~ '^[a-z][a-z0-9_-]{0,63}$'),
  description text NOT NULL CHECK (char_length(description) BETWEEN 1 AND 1000),
  prompt text NOT NULL CHECK (octet_length(prompt) <= 65536),
  model_config_id uuid REFERENCES model_configs,
  reasoning_effort text CHECK (reasoning_effort IN ('none', 'minimal', 'low', 'medium', 'high', 'xhigh', 'max')),
  tools text[],
  read_only boolean NOT NULL DEFAULT false,
  max_minutes integer CHECK (max_minutes BETWEEN 1 AND 1440),
  created_at timestamptz NOT NULL DEFAULT clock_timestamp(),
  updated_at timestamptz NOT NULL DEFAULT clock_timestamp()
);
CREATE UNIQUE INDEX agent_kinds_name ON agent_kinds (owner_id, name) NULLS NOT DISTINCT;
