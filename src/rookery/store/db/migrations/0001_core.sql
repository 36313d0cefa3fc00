-- min_schema: 1
-- Chats, their messages and queues, leases and replicas, and the triggers that guard them. Without the
-- triggers, code that bypasses the state machine would silently break the fence of a running worker.
--
-- Errors raised here: RK001 = the chat is not open for this transaction (no version was allocated),
--                     RK002 = the change is never allowed.
-- Values are text + CHECK, not enum types: a new one is a single ALTER inside a transaction.

-- What other parts own; here as far as chats refer to them.

CREATE TABLE users (
  id uuid PRIMARY KEY DEFAULT gen_random_uuid(),
  username text NOT NULL,
  email text,
  created_at timestamptz NOT NULL DEFAULT clock_timestamp()
);
CREATE UNIQUE INDEX users_username ON users (lower(username));
CREATE UNIQUE INDEX users_email ON users (lower(email));

CREATE TABLE model_providers (
  id uuid PRIMARY KEY DEFAULT gen_random_uuid(),
  type text NOT NULL,
  name text NOT NULL,
  deleted boolean NOT NULL DEFAULT false,
  created_at timestamptz NOT NULL DEFAULT clock_timestamp()
);
CREATE UNIQUE INDEX model_providers_name ON model_providers (name) WHERE NOT deleted;

-- Soft-deleted, never removed: messages refer to the model that wrote them.
CREATE TABLE model_configs (
  id uuid PRIMARY KEY DEFAULT gen_random_uuid(),
  provider_id uuid NOT NULL REFERENCES model_providers,
  model text NOT NULL,
  context_limit bigint NOT NULL CHECK (context_limit > 0),
  deleted boolean NOT NULL DEFAULT false,
  created_at timestamptz NOT NULL DEFAULT clock_timestamp()
);

CREATE TABLE workspaces (
  id uuid PRIMARY KEY DEFAULT gen_random_uuid(),
  owner_id uuid NOT NULL REFERENCES users ON DELETE CASCADE,
  name text NOT NULL,
  created_at timestamptz NOT NULL DEFAULT clock_timestamp(),
  deleted_at timestamptz
);

CREATE TABLE chat_files (
  id uuid PRIMARY KEY DEFAULT gen_random_uuid(),
  owner_id uuid NOT NULL REFERENCES users ON DELETE CASCADE,
  name text NOT NULL,
  mime_type text NOT NULL,
  size_bytes bigint NOT NULL CHECK (size_bytes >= 0),
  created_at timestamptz NOT NULL DEFAULT clock_timestamp()
);

-- One row per live process. `id` is new at every start and is the worker id of chats.
CREATE TABLE replicas (
  id uuid PRIMARY KEY,
  host_id text NOT NULL,
  hostname text NOT NULL,
  pid integer NOT NULL,
  index integer NOT NULL DEFAULT 0,
  relay_unix text,
  relay_url text,
  version text NOT NULL,
  schema_version integer NOT NULL,
  started_at timestamptz NOT NULL DEFAULT clock_timestamp(),
  heartbeat_at timestamptz NOT NULL DEFAULT clock_timestamp(),
  stopping_at timestamptz
);

-- Chats.

CREATE TABLE chats (
  id uuid PRIMARY KEY DEFAULT gen_random_uuid(),
  owner_id uuid NOT NULL REFERENCES users ON DELETE CASCADE,
  parent_chat_id uuid REFERENCES chats ON DELETE CASCADE,
  root_chat_id uuid REFERENCES chats ON DELETE CASCADE,
  -- execution state
  status text NOT NULL,
  archived boolean NOT NULL DEFAULT false,
  archived_at timestamptz,
  worker_id uuid,
  runner_id uuid,
  last_error jsonb,
  retry_state jsonb,
  requires_action_deadline_at timestamptz,
  compaction_requested_at timestamptz,
  compaction_resume boolean NOT NULL DEFAULT false,
  runnable_since timestamptz,
  snapshot_version bigint NOT NULL DEFAULT 1,
  history_version bigint NOT NULL DEFAULT 0,
  queue_version bigint NOT NULL DEFAULT 0,
  retry_state_version bigint NOT NULL DEFAULT 0,
  generation_attempt bigint NOT NULL DEFAULT 0,
  queue_len smallint NOT NULL DEFAULT 0,
  -- metadata
  meta_version bigint NOT NULL DEFAULT 0,
  title text NOT NULL,
  labels jsonb NOT NULL DEFAULT '{}',
  workspace_id uuid REFERENCES workspaces ON DELETE SET NULL,
  last_model_config_id uuid NOT NULL REFERENCES model_configs,
  last_reasoning_effort text,
  mode text,
  plan_mode boolean NOT NULL DEFAULT false,
  mcp_server_ids uuid[] NOT NULL DEFAULT '{}',
  dynamic_tools jsonb,
  client_type text NOT NULL DEFAULT 'api',
  summary text,
  summary_generated_at timestamptz,
  last_turn_summary text,
  created_at timestamptz NOT NULL DEFAULT clock_timestamp(),
  updated_at timestamptz NOT NULL DEFAULT clock_timestamp(),
  CONSTRAINT chats_status CHECK (status IN ('waiting', 'running', 'interrupting', 'requires_action', 'error')),
  CONSTRAINT chats_archived_idle CHECK (NOT archived OR status IN ('waiting', 'error')),
  CONSTRAINT chats_archived_at CHECK (archived = (archived_at IS NOT NULL)),
  CONSTRAINT chats_waiting_no_queue CHECK (status <> 'waiting' OR queue_len = 0),
  CONSTRAINT chats_queue_cap CHECK (queue_len BETWEEN 0 AND 20),
  CONSTRAINT chats_error_payload CHECK ((status = 'error') = (last_error IS NOT NULL)),
  CONSTRAINT chats_deadline CHECK ((status = 'requires_action') = (requires_action_deadline_at IS NOT NULL)),
  CONSTRAINT chats_compaction CHECK (
    (compaction_requested_at IS NULL OR status = 'running')
    AND (compaction_requested_at IS NOT NULL OR NOT compaction_resume)),
  CONSTRAINT chats_runnable CHECK (
    (status IN ('running', 'interrupting', 'requires_action')) = (runnable_since IS NOT NULL)),
  CONSTRAINT chats_owner_pair CHECK ((worker_id IS NULL) = (runner_id IS NULL)),
  CONSTRAINT chats_versions CHECK (
    history_version <= snapshot_version AND queue_version <= snapshot_version
    AND retry_state_version <= snapshot_version AND generation_attempt >= 0),
  CONSTRAINT chats_family CHECK ((parent_chat_id IS NULL) = (root_chat_id IS NULL)),
  CONSTRAINT chats_labels CHECK (jsonb_typeof(labels) = 'object'),
  CONSTRAINT chats_effort CHECK (
    last_reasoning_effort IN ('none', 'minimal', 'low', 'medium', 'high', 'xhigh', 'max'))
) WITH (fillfactor = 70);  -- several HOT updates per transition

-- Only runnable rows: stays tiny however many chats there are.
CREATE INDEX chats_acquire ON chats ((parent_chat_id IS NULL), status, runnable_since, id)
  WHERE status IN ('running', 'interrupting', 'requires_action');
CREATE INDEX chats_list ON chats (owner_id, archived, updated_at DESC, id DESC) WHERE parent_chat_id IS NULL;
CREATE INDEX chats_root ON chats (root_chat_id, created_at, id) WHERE root_chat_id IS NOT NULL;
CREATE INDEX chats_parent ON chats (parent_chat_id) WHERE parent_chat_id IS NOT NULL;
CREATE INDEX chats_purge ON chats (archived_at) WHERE archived AND parent_chat_id IS NULL;
CREATE INDEX chats_workspace ON chats (workspace_id) WHERE workspace_id IS NOT NULL;
CREATE INDEX chats_label ON chats USING gin (labels jsonb_path_ops);
CREATE INDEX chats_title ON chats USING gin (to_tsvector('simple', title));

CREATE TABLE chat_messages (
  id bigint GENERATED ALWAYS AS IDENTITY (CACHE 1) PRIMARY KEY,  -- allocated under the chat lock: id order = commit order
  chat_id uuid NOT NULL REFERENCES chats ON DELETE CASCADE,
  revision bigint NOT NULL,
  role text NOT NULL CHECK (role IN ('system', 'user', 'assistant', 'tool')),
  visibility text NOT NULL CHECK (visibility IN ('user', 'model', 'both')),
  compressed boolean NOT NULL DEFAULT false,
  deleted boolean NOT NULL DEFAULT false,
  content jsonb NOT NULL CHECK (jsonb_typeof(content) = 'array'),
  content_version smallint NOT NULL,
  -- No foreign key: deleting a user must not rewrite history.
  created_by uuid,
  model_config_id uuid REFERENCES model_configs,
  reasoning_effort text CHECK (reasoning_effort IN ('none', 'minimal', 'low', 'medium', 'high', 'xhigh', 'max')),
  client_id text CHECK (char_length(client_id) BETWEEN 1 AND 64),
  input_tokens bigint,
  output_tokens bigint,
  total_tokens bigint,
  reasoning_tokens bigint,
  cache_read_tokens bigint,
  cache_write_tokens bigint,
  context_tokens bigint,
  context_limit bigint,
  cost_micros bigint,
  runtime_ms bigint,
  finish_reason text,
  prefix_fp bytea,
  request_id text,
  response_id text,
  created_at timestamptz NOT NULL DEFAULT clock_timestamp()
);
CREATE INDEX messages_live ON chat_messages (chat_id, id) WHERE NOT deleted;
CREATE INDEX messages_revision ON chat_messages (chat_id, revision);
CREATE INDEX messages_role ON chat_messages (chat_id, role, id DESC) WHERE NOT deleted;
CREATE INDEX messages_boundary ON chat_messages (chat_id, id DESC)
  WHERE compressed AND visibility = 'model' AND NOT deleted;
CREATE INDEX messages_created ON chat_messages USING brin (created_at);
CREATE UNIQUE INDEX messages_client ON chat_messages (chat_id, client_id) WHERE client_id IS NOT NULL;

CREATE TABLE chat_queued_messages (
  id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
  chat_id uuid NOT NULL REFERENCES chats ON DELETE CASCADE,
  position bigint NOT NULL,
  content jsonb NOT NULL CHECK (jsonb_typeof(content) = 'array'),
  content_version smallint NOT NULL,
  created_by uuid NOT NULL,
  model_config_id uuid REFERENCES model_configs,
  reasoning_effort text CHECK (reasoning_effort IN ('none', 'minimal', 'low', 'medium', 'high', 'xhigh', 'max')),
  steer boolean NOT NULL DEFAULT false,
  client_id text CHECK (char_length(client_id) BETWEEN 1 AND 64),
  created_at timestamptz NOT NULL DEFAULT clock_timestamp(),
  UNIQUE (chat_id, position) DEFERRABLE INITIALLY DEFERRED
);

-- An ordinary, logged table: an unlogged one is emptied by a crash, and every live chat could be stolen at once.
-- No index on heartbeat_at: every beat stays HOT.
CREATE TABLE chat_heartbeats (
  chat_id uuid NOT NULL REFERENCES chats ON DELETE CASCADE,
  runner_id uuid NOT NULL,
  heartbeat_at timestamptz NOT NULL,
  PRIMARY KEY (chat_id, runner_id)
) WITH (fillfactor = 50);

CREATE TABLE chat_read_cursors (
  chat_id uuid NOT NULL REFERENCES chats ON DELETE CASCADE,
  user_id uuid NOT NULL REFERENCES users ON DELETE CASCADE,
  last_read_message_id bigint NOT NULL,
  PRIMARY KEY (chat_id, user_id)
);

CREATE TABLE chat_pins (
  chat_id uuid NOT NULL REFERENCES chats ON DELETE CASCADE,
  user_id uuid NOT NULL REFERENCES users ON DELETE CASCADE,
  pin_order integer NOT NULL CHECK (pin_order > 0),
  PRIMARY KEY (chat_id, user_id),
  UNIQUE (user_id, pin_order) DEFERRABLE INITIALLY DEFERRED
);

CREATE TABLE chat_message_search (
  message_id bigint PRIMARY KEY REFERENCES chat_messages ON DELETE CASCADE,
  chat_id uuid NOT NULL,
  tsv tsvector  -- NULL: pending, filled by a sweep
);
CREATE INDEX search_tsv ON chat_message_search USING gin (tsv) WHERE tsv IS NOT NULL;
CREATE INDEX search_pending ON chat_message_search (message_id DESC) WHERE tsv IS NULL;
CREATE INDEX search_chat ON chat_message_search (chat_id);

CREATE TABLE chat_file_links (
  chat_id uuid NOT NULL REFERENCES chats ON DELETE CASCADE,
  file_id uuid NOT NULL REFERENCES chat_files ON DELETE CASCADE,
  PRIMARY KEY (chat_id, file_id)
);
CREATE INDEX file_links_file ON chat_file_links (file_id);

-- The one home of the lease time: queries use it, and the worker reads it.
CREATE FUNCTION lease_ttl() RETURNS interval LANGUAGE sql IMMUTABLE PARALLEL SAFE AS $$ SELECT interval '30 seconds' $$;

-- Which chats are open for this transaction. A transaction-local setting dies with the transaction, is undone
-- by a savepoint rollback and, unlike a stored xid, survives dump and restore into another cluster.
CREATE FUNCTION in_transition(chat uuid) RETURNS boolean LANGUAGE sql STABLE AS $$
  SELECT strpos(coalesce(current_setting('rookery.chats', true), ''), chat::text) > 0
$$;

CREATE FUNCTION open_transition(chat uuid) RETURNS void LANGUAGE sql VOLATILE AS $$
  SELECT set_config('rookery.chats', coalesce(current_setting('rookery.chats', true), '') || ' ' || chat::text, true)
$$;

CREATE FUNCTION chats_guard() RETURNS trigger LANGUAGE plpgsql AS $$
DECLARE
  is_open boolean;
  is_runnable constant boolean := NEW.status IN ('running', 'interrupting', 'requires_action');
BEGIN
  IF TG_OP = 'INSERT' THEN
    NEW.runnable_since := CASE WHEN is_runnable THEN clock_timestamp() END;
    RETURN NEW;
  END IF;

  IF NEW.id <> OLD.id OR NEW.owner_id <> OLD.owner_id
     OR NEW.parent_chat_id IS DISTINCT FROM OLD.parent_chat_id OR NEW.root_chat_id IS DISTINCT FROM OLD.root_chat_id THEN
    RAISE EXCEPTION 'id, owner and family of chat % never change', OLD.id USING ERRCODE = 'RK002';
  END IF;
  IF NEW.retry_state_version <> OLD.retry_state_version OR NEW.meta_version <> OLD.meta_version THEN
    RAISE EXCEPTION 'retry_state_version and meta_version of chat % are kept by trigger', OLD.id USING ERRCODE = 'RK002';
  END IF;

  is_open := in_transition(OLD.id);
  IF NEW.snapshot_version <> OLD.snapshot_version THEN
    IF is_open OR NEW.snapshot_version <> OLD.snapshot_version + 1 THEN
      RAISE EXCEPTION 'snapshot_version of chat % grows by one, once per transaction', OLD.id USING ERRCODE = 'RK002';
    END IF;
    PERFORM open_transition(OLD.id);
    is_open := true;
  END IF;

  IF NEW.generation_attempt <> OLD.generation_attempt OR NEW.history_version <> OLD.history_version THEN
    NEW.retry_state := NULL;
  END IF;
  IF NEW.retry_state IS DISTINCT FROM OLD.retry_state THEN
    NEW.retry_state_version := NEW.snapshot_version;
  END IF;

  IF NOT is_runnable THEN
    NEW.runnable_since := NULL;
  ELSIF OLD.runnable_since IS NULL THEN
    NEW.runnable_since := clock_timestamp();
  ELSE
    NEW.runnable_since := OLD.runnable_since;
  END IF;

  IF NOT is_open AND (
     (NEW.status, NEW.archived, NEW.archived_at, NEW.worker_id, NEW.runner_id, NEW.last_error, NEW.retry_state,
      NEW.requires_action_deadline_at, NEW.compaction_requested_at, NEW.compaction_resume, NEW.runnable_since,
      NEW.history_version, NEW.queue_version, NEW.generation_attempt, NEW.queue_len)
     IS DISTINCT FROM
     (OLD.status, OLD.archived, OLD.archived_at, OLD.worker_id, OLD.runner_id, OLD.last_error, OLD.retry_state,
      OLD.requires_action_deadline_at, OLD.compaction_requested_at, OLD.compaction_resume, OLD.runnable_since,
      OLD.history_version, OLD.queue_version, OLD.generation_attempt, OLD.queue_len)) THEN
    RAISE EXCEPTION 'chat % is changed outside a transition', OLD.id USING ERRCODE = 'RK001';
  END IF;
  RETURN NEW;
END $$;
CREATE TRIGGER chats_guard BEFORE INSERT OR UPDATE ON chats FOR EACH ROW EXECUTE FUNCTION chats_guard();

-- A new chat is open for the transaction that makes it. After the insert, not before: ON CONFLICT discards rows that
-- the trigger above has seen already, and would leave a chat that was there before open without a version.
CREATE FUNCTION chats_opened() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
  PERFORM open_transition(NEW.id);
  RETURN NULL;
END $$;
CREATE TRIGGER chats_opened AFTER INSERT ON chats FOR EACH ROW EXECUTE FUNCTION chats_opened();

-- Metadata moves its own counter. Two triggers, both only for statements that assign such a column: transitions assign
-- the model choice, and must not read the tools a chat declared, which may be large.
CREATE FUNCTION chats_meta() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
  NEW.meta_version := OLD.meta_version + 1;
  RETURN NEW;
END $$;
CREATE TRIGGER chats_meta_choice
  BEFORE UPDATE OF last_model_config_id, last_reasoning_effort ON chats FOR EACH ROW
  WHEN ((NEW.last_model_config_id, NEW.last_reasoning_effort)
    IS DISTINCT FROM (OLD.last_model_config_id, OLD.last_reasoning_effort))
  EXECUTE FUNCTION chats_meta();
CREATE TRIGGER chats_meta_other
  BEFORE UPDATE OF title, labels, workspace_id, mode, plan_mode, mcp_server_ids, dynamic_tools, client_type, summary,
    summary_generated_at, last_turn_summary
  ON chats FOR EACH ROW
  WHEN ((NEW.title, NEW.labels, NEW.workspace_id, NEW.mode, NEW.plan_mode, NEW.mcp_server_ids, NEW.dynamic_tools,
      NEW.client_type, NEW.summary, NEW.summary_generated_at, NEW.last_turn_summary)
    IS DISTINCT FROM
     (OLD.title, OLD.labels, OLD.workspace_id, OLD.mode, OLD.plan_mode, OLD.mcp_server_ids, OLD.dynamic_tools,
      OLD.client_type, OLD.summary, OLD.summary_generated_at, OLD.last_turn_summary))
  EXECUTE FUNCTION chats_meta();

-- Messages are written once. The comparison runs only for statements that assign one of these columns, so a
-- soft delete never reads the content. (Triggers fire in the order of their names: this one before the next.)
CREATE FUNCTION messages_are_immutable() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
  RAISE EXCEPTION 'message % is written once; only `deleted` may change', OLD.id USING ERRCODE = 'RK002';
END $$;
CREATE TRIGGER messages_are_immutable
  BEFORE UPDATE OF id, chat_id, revision, role, visibility, compressed, content, content_version, created_by,
    model_config_id, reasoning_effort, client_id, input_tokens, output_tokens, total_tokens, reasoning_tokens,
    cache_read_tokens, cache_write_tokens, context_tokens, context_limit, cost_micros, runtime_ms, finish_reason,
    prefix_fp, request_id, response_id, created_at
  ON chat_messages FOR EACH ROW
  WHEN ((NEW.id, NEW.chat_id, NEW.revision, NEW.role, NEW.visibility, NEW.compressed, NEW.content, NEW.content_version,
      NEW.created_by, NEW.model_config_id, NEW.reasoning_effort, NEW.client_id, NEW.input_tokens, NEW.output_tokens,
      NEW.total_tokens, NEW.reasoning_tokens, NEW.cache_read_tokens, NEW.cache_write_tokens, NEW.context_tokens,
      NEW.context_limit, NEW.cost_micros, NEW.runtime_ms, NEW.finish_reason, NEW.prefix_fp, NEW.request_id,
      NEW.response_id, NEW.created_at)
    IS DISTINCT FROM
     (OLD.id, OLD.chat_id, OLD.revision, OLD.role, OLD.visibility, OLD.compressed, OLD.content, OLD.content_version,
      OLD.created_by, OLD.model_config_id, OLD.reasoning_effort, OLD.client_id, OLD.input_tokens, OLD.output_tokens,
      OLD.total_tokens, OLD.reasoning_tokens, OLD.cache_read_tokens, OLD.cache_write_tokens, OLD.context_tokens,
      OLD.context_limit, OLD.cost_micros, OLD.runtime_ms, OLD.finish_reason, OLD.prefix_fp, OLD.request_id,
      OLD.response_id, OLD.created_at))
  EXECUTE FUNCTION messages_are_immutable();

CREATE FUNCTION messages_before() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
  IF TG_OP = 'INSERT' THEN
    IF NEW.revision IS NOT NULL THEN
      RAISE EXCEPTION 'the revision of a message is given by the database' USING ERRCODE = 'RK002';
    END IF;
  ELSIF NEW.deleted = OLD.deleted THEN
    RETURN NULL;  -- nothing changes: no write, no revision
  ELSIF OLD.deleted THEN
    RAISE EXCEPTION 'message % is deleted for good', OLD.id USING ERRCODE = 'RK002';
  END IF;
  IF NOT in_transition(NEW.chat_id) THEN
    RAISE EXCEPTION 'messages of chat % are changed outside a transition', NEW.chat_id USING ERRCODE = 'RK001';
  END IF;
  NEW.revision := (SELECT snapshot_version FROM chats WHERE id = NEW.chat_id);
  RETURN NEW;
END $$;
CREATE TRIGGER messages_before BEFORE INSERT OR UPDATE ON chat_messages FOR EACH ROW EXECUTE FUNCTION messages_before();

-- One update of each touched chat per statement, and none when the bundle has moved the history already.
CREATE FUNCTION messages_after() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
  UPDATE chats c
     SET history_version = c.snapshot_version, generation_attempt = 0
    FROM (SELECT DISTINCT chat_id FROM changed) t
   WHERE c.id = t.chat_id
     AND (c.history_version <> c.snapshot_version OR c.generation_attempt <> 0);
  IF TG_OP = 'INSERT' THEN
    INSERT INTO chat_message_search (message_id, chat_id)
    SELECT id, chat_id
      FROM changed
     WHERE role IN ('user', 'assistant') AND visibility <> 'model' AND NOT compressed AND NOT deleted;
  ELSE
    DELETE FROM chat_message_search s USING changed m WHERE s.message_id = m.id;
  END IF;
  RETURN NULL;
END $$;
CREATE TRIGGER messages_after_insert AFTER INSERT ON chat_messages
  REFERENCING NEW TABLE AS changed FOR EACH STATEMENT EXECUTE FUNCTION messages_after();
CREATE TRIGGER messages_after_update AFTER UPDATE ON chat_messages
  REFERENCING NEW TABLE AS changed FOR EACH STATEMENT EXECUTE FUNCTION messages_after();

-- A message is deleted by a mark; its row lives as long as the chat. Cascades pass: the chat is gone by then.
CREATE FUNCTION messages_after_delete() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
  IF EXISTS (SELECT FROM (SELECT DISTINCT chat_id FROM changed) t JOIN chats c ON c.id = t.chat_id) THEN
    RAISE EXCEPTION 'messages are removed only together with their chat' USING ERRCODE = 'RK002';
  END IF;
  RETURN NULL;
END $$;
CREATE TRIGGER messages_after_delete AFTER DELETE ON chat_messages
  REFERENCING OLD TABLE AS changed FOR EACH STATEMENT EXECUTE FUNCTION messages_after_delete();

-- The guard of `chats` cannot do this alone: when the last bundle touched the queue as well, queue_version stays what
-- it is and the row looks unchanged. A chat that is gone (cascades) has nothing to guard.
CREATE FUNCTION require_transition(chat_ids uuid[]) RETURNS void LANGUAGE plpgsql AS $$
DECLARE
  closed uuid;
BEGIN
  SELECT c.id INTO closed FROM chats c WHERE c.id = ANY (chat_ids) AND NOT in_transition(c.id) LIMIT 1;
  IF FOUND THEN
    RAISE EXCEPTION 'the queue of chat % is changed outside a transition', closed USING ERRCODE = 'RK001';
  END IF;
END $$;

CREATE FUNCTION queue_after() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
  PERFORM require_transition(array(SELECT DISTINCT chat_id FROM changed));
  UPDATE chats c
     SET queue_version = c.snapshot_version,
         queue_len = (SELECT count(*) FROM chat_queued_messages q WHERE q.chat_id = c.id)
    FROM (SELECT DISTINCT chat_id FROM changed) t
   WHERE c.id = t.chat_id;
  RETURN NULL;
END $$;
CREATE TRIGGER queue_after_insert AFTER INSERT ON chat_queued_messages
  REFERENCING NEW TABLE AS changed FOR EACH STATEMENT EXECUTE FUNCTION queue_after();
CREATE TRIGGER queue_after_delete AFTER DELETE ON chat_queued_messages
  REFERENCING OLD TABLE AS changed FOR EACH STATEMENT EXECUTE FUNCTION queue_after();

CREATE FUNCTION queue_after_update() RETURNS trigger LANGUAGE plpgsql AS $$
DECLARE
  moved constant uuid[] := array(
    SELECT DISTINCT n.chat_id FROM was o JOIN now n ON n.id = o.id WHERE (n.*) IS DISTINCT FROM (o.*));
BEGIN
  IF EXISTS (SELECT FROM was o JOIN now n ON n.id = o.id WHERE n.chat_id <> o.chat_id) THEN
    RAISE EXCEPTION 'a queued message never moves to another chat' USING ERRCODE = 'RK002';
  END IF;
  PERFORM require_transition(moved);
  UPDATE chats SET queue_version = snapshot_version WHERE id = ANY (moved);
  RETURN NULL;
END $$;
CREATE TRIGGER queue_after_update AFTER UPDATE ON chat_queued_messages
  REFERENCING OLD TABLE AS was NEW TABLE AS now FOR EACH STATEMENT EXECUTE FUNCTION queue_after_update();

-- Pins are for the chats people see in their list: unarchived roots.
CREATE FUNCTION pins_guard() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
  PERFORM FROM chats WHERE id = NEW.chat_id AND (parent_chat_id IS NOT NULL OR archived);
  IF FOUND THEN
    RAISE EXCEPTION 'chat % is archived or not a root and cannot be pinned', NEW.chat_id USING ERRCODE = 'RK002';
  END IF;
  RETURN NEW;
END $$;
CREATE TRIGGER pins_guard BEFORE INSERT ON chat_pins FOR EACH ROW EXECUTE FUNCTION pins_guard();
