-- min_schema: 1
-- Workspaces: the templates they are made from, their state, the operations that change it, and what they tell chats.
-- Without it nothing but talk is possible. Everything added to existing tables has a default, and code of schema 1 never
-- makes a workspace.

CREATE TABLE templates (
  name text PRIMARY KEY,
  revision text NOT NULL,  -- what the next workspace is made from
  enabled boolean NOT NULL DEFAULT true,
  deprecated boolean NOT NULL DEFAULT false,
  agents_allowed boolean NOT NULL DEFAULT true,  -- whether tools may choose it
  -- Empty lists allow everybody; otherwise whoever is in one of them.
  allowed_users uuid[] NOT NULL DEFAULT '{}',
  allowed_roles text[] NOT NULL DEFAULT '{}',
  shipped boolean NOT NULL DEFAULT false,  -- comes with Rookery, and is pushed again when a new version changed it
  created_at timestamptz NOT NULL DEFAULT clock_timestamp(),
  updated_at timestamptz NOT NULL DEFAULT clock_timestamp(),
  CONSTRAINT templates_name CHECK (name ~ '^[a-z0-9]+(-[a-z0-9]+)*$' AND char_length(name) <= 64),
  CONSTRAINT templates_roles CHECK (allowed_roles <@ ARRAY['member', 'admin', 'auditor'])
);

-- Never changed; those that a workspace was made from are kept with it.
CREATE TABLE template_revisions (
  template text NOT NULL REFERENCES templates ON DELETE CASCADE,
  revision text NOT NULL CHECK (revision ~ '^[0-9a-f]{64}$'),
  manifest jsonb NOT NULL CHECK (jsonb_typeof(manifest) = 'object'),
  readme text NOT NULL DEFAULT '',
  archive bytea NOT NULL CHECK (octet_length(archive) <= 8388608),
  pushed_by uuid,
  created_at timestamptz NOT NULL DEFAULT clock_timestamp(),
  PRIMARY KEY (template, revision)
);
ALTER TABLE template_revisions ALTER COLUMN archive SET STORAGE EXTERNAL;
-- Checked at the commit: the first revision of a template refers to a row that refers to it.
ALTER TABLE templates
  ADD CONSTRAINT templates_current FOREIGN KEY (name, revision) REFERENCES template_revisions (template, revision)
    DEFERRABLE INITIALLY DEFERRED;

-- `generation` and `token_enc` are written before a driver acts: an agent that knows others is never used.
ALTER TABLE workspaces
  ADD COLUMN template text,
  ADD COLUMN template_revision text,
  ADD COLUMN driver text NOT NULL DEFAULT 'local',
  ADD COLUMN node text,  -- the host its files are on; NULL when every node reaches it
  ADD COLUMN parameters jsonb NOT NULL DEFAULT '{}',
  ADD COLUMN status text NOT NULL DEFAULT 'stopped',
  ADD COLUMN error text,
  ADD COLUMN error_code text,
  ADD COLUMN warning text,
  ADD COLUMN generation bigint NOT NULL DEFAULT 0,
  ADD COLUMN endpoint text,
  ADD COLUMN token_enc text,
  ADD COLUMN agent_state text NOT NULL DEFAULT 'connecting',
  ADD COLUMN startup_exit_code integer,
  ADD COLUMN os text,
  ADD COLUMN arch text,
  ADD COLUMN home text,
  ADD COLUMN directory text,
  ADD COLUMN last_seen_at timestamptz,
  ADD COLUMN last_used_at timestamptz NOT NULL DEFAULT clock_timestamp(),
  ADD COLUMN started_at timestamptz,  -- the first answer of this generation's agent
  ADD COLUMN stopped_at timestamptz,
  ADD COLUMN idle_stop_after interval NOT NULL DEFAULT interval '0',
  ADD COLUMN updated_at timestamptz NOT NULL DEFAULT clock_timestamp(),
  ADD CONSTRAINT workspaces_name_form CHECK (name ~ '^[a-z0-9]+(-[a-z0-9]+)*$' AND char_length(name) <= 32),
  ADD CONSTRAINT workspaces_status CHECK (
    status IN ('pending', 'starting', 'running', 'stopping', 'stopped', 'failed', 'deleting', 'deleted')),
  ADD CONSTRAINT workspaces_agent_state CHECK (
    agent_state IN ('connecting', 'starting', 'ready', 'script_failed', 'script_timeout', 'unreachable')),
  ADD CONSTRAINT workspaces_parameters CHECK (jsonb_typeof(parameters) = 'object'),
  ADD CONSTRAINT workspaces_deleted CHECK ((status = 'deleted') = (deleted_at IS NOT NULL)),
  ADD CONSTRAINT workspaces_error CHECK (error IS NOT NULL OR error_code IS NULL),
  ADD CONSTRAINT workspaces_revision FOREIGN KEY (template, template_revision)
    REFERENCES template_revisions (template, revision);
CREATE UNIQUE INDEX workspaces_name ON workspaces (owner_id, name) WHERE deleted_at IS NULL;
CREATE INDEX workspaces_template ON workspaces (template, template_revision);
-- What reconcilers, quotas and the idle stop look at: never more than what is up.
CREATE INDEX workspaces_up ON workspaces (node, status)
  WHERE status IN ('pending', 'starting', 'running', 'stopping');

CREATE TABLE workspace_operations (
  id uuid PRIMARY KEY DEFAULT gen_random_uuid(),
  workspace_id uuid NOT NULL REFERENCES workspaces ON DELETE CASCADE,
  kind text NOT NULL CHECK (kind IN ('create', 'start', 'stop', 'delete')),
  state text NOT NULL DEFAULT 'queued' CHECK (state IN ('queued', 'running', 'succeeded', 'failed', 'canceled')),
  reason text NOT NULL CHECK (reason IN ('user', 'chat', 'idle', 'quota', 'recovery')),
  parameters jsonb NOT NULL DEFAULT '{}' CHECK (jsonb_typeof(parameters) = 'object'),  -- of one start only; emptied at its end
  generation bigint,  -- the one it brings up; set once, so that whoever takes over goes on with it
  error text,
  error_code text,
  claimed_by uuid,  -- a replica; kept by a canceled start until its replica has let go
  lease_until timestamptz,
  log text NOT NULL DEFAULT '',
  log_dropped bigint NOT NULL DEFAULT 0,  -- bytes that are gone from the beginning of `log`
  created_at timestamptz NOT NULL DEFAULT clock_timestamp(),
  started_at timestamptz,
  finished_at timestamptz,
  CONSTRAINT workspace_operations_finished CHECK ((state IN ('queued', 'running')) = (finished_at IS NULL)),
  CONSTRAINT workspace_operations_claim CHECK ((claimed_by IS NULL) = (lease_until IS NULL)),
  CONSTRAINT workspace_operations_running CHECK (state <> 'running' OR claimed_by IS NOT NULL)
);
CREATE UNIQUE INDEX workspace_operations_open ON workspace_operations (workspace_id) WHERE state IN ('queued', 'running');
CREATE INDEX workspace_operations_workspace ON workspace_operations (workspace_id, created_at DESC);
CREATE INDEX workspace_operations_let_go ON workspace_operations (workspace_id)
  WHERE state = 'canceled' AND claimed_by IS NOT NULL;

-- What the agent of a workspace found: instruction files, skills, MCP servers.
CREATE TABLE workspace_context (
  workspace_id uuid PRIMARY KEY REFERENCES workspaces ON DELETE CASCADE,
  generation bigint NOT NULL,
  version bigint NOT NULL,
  hash text NOT NULL,
  error text,
  resources jsonb NOT NULL DEFAULT '[]' CHECK (jsonb_typeof(resources) = 'array'),
  updated_at timestamptz NOT NULL DEFAULT clock_timestamp()
);

-- The copy a chat keeps, so that it has its instructions while the workspace is down.
CREATE TABLE chat_context_resources (
  chat_id uuid NOT NULL REFERENCES chats ON DELETE CASCADE,
  ordinal integer NOT NULL,
  kind text NOT NULL CHECK (kind IN ('instruction_file', 'skill', 'mcp_config', 'mcp_server')),
  source text NOT NULL,
  name text,
  description text,
  body text,
  hash text NOT NULL DEFAULT '',
  size bigint NOT NULL DEFAULT 0,
  status text NOT NULL CHECK (status IN ('ok', 'truncated', 'oversize', 'unreadable', 'invalid', 'excluded')),
  error text,
  tools jsonb,
  PRIMARY KEY (chat_id, ordinal)
);

-- Metadata, all of it. No foreign key: the pin outlives the workspace it came from.
ALTER TABLE chats
  ADD COLUMN workspace_generation bigint,
  ADD COLUMN context_hash text,
  ADD COLUMN context_workspace_id uuid,
  ADD COLUMN context_generation bigint,
  ADD COLUMN context_dirty_since timestamptz,
  ADD COLUMN context_error text;
CREATE TRIGGER chats_meta_workspace
  BEFORE UPDATE OF workspace_generation, context_hash, context_workspace_id, context_generation, context_dirty_since,
    context_error
  ON chats FOR EACH ROW
  WHEN ((NEW.workspace_generation, NEW.context_hash, NEW.context_workspace_id, NEW.context_generation,
      NEW.context_dirty_since, NEW.context_error)
    IS DISTINCT FROM
     (OLD.workspace_generation, OLD.context_hash, OLD.context_workspace_id, OLD.context_generation,
      OLD.context_dirty_since, OLD.context_error))
  EXECUTE FUNCTION chats_meta();

-- The last scan of each repository a chat changed; lists and badges read only this.
CREATE TABLE chat_diff_status (
  chat_id uuid NOT NULL REFERENCES chats ON DELETE CASCADE,
  root text NOT NULL,
  branch text,
  remote_origin text,
  additions integer NOT NULL DEFAULT 0,
  deletions integer NOT NULL DEFAULT 0,
  changed_files integer NOT NULL DEFAULT 0,
  refreshed_at timestamptz NOT NULL,
  PRIMARY KEY (chat_id, root)
);
