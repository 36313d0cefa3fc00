-- min_schema: 1
-- Who may do what: accounts, sessions, tokens, shares of chats, the audit log, and keys that make repeats harmless.
-- Without it nobody can log in. Everything added to existing tables has a default, so code of schema 1 goes on working.

-- Name and email are unique without case since schema 1 (users_username, users_email).
ALTER TABLE users
  ADD COLUMN name text NOT NULL DEFAULT '',
  ADD COLUMN role text NOT NULL DEFAULT 'member',
  ADD COLUMN status text NOT NULL DEFAULT 'active',
  ADD COLUMN password_hash text,  -- PHC form; NULL until the user has chosen a password
  ADD COLUMN last_seen_at timestamptz,
  ADD CONSTRAINT users_role CHECK (role IN ('member', 'admin', 'auditor')),
  ADD CONSTRAINT users_status CHECK (status IN ('active', 'disabled')),
  ADD CONSTRAINT users_password_hash CHECK (password_hash LIKE '$argon2id$%');
CREATE INDEX users_admins ON users (id) WHERE role = 'admin' AND status = 'active';

-- Secrets are here as their SHA-256 only: a dump of the database logs nobody in.
CREATE TABLE sessions (
  id uuid PRIMARY KEY,
  user_id uuid NOT NULL REFERENCES users ON DELETE CASCADE,
  secret_hash bytea NOT NULL CHECK (octet_length(secret_hash) = 32),
  created_at timestamptz NOT NULL,
  last_seen_at timestamptz NOT NULL,
  expires_at timestamptz NOT NULL,
  ip text,
  user_agent text
);
CREATE INDEX sessions_user ON sessions (user_id);
CREATE INDEX sessions_expiry ON sessions (expires_at);

CREATE TABLE api_tokens (
  id uuid PRIMARY KEY,
  user_id uuid NOT NULL REFERENCES users ON DELETE CASCADE,
  name text NOT NULL CHECK (char_length(name) BETWEEN 1 AND 64),
  scopes text[] NOT NULL,
  secret_hash bytea NOT NULL CHECK (octet_length(secret_hash) = 32),
  created_at timestamptz NOT NULL,
  expires_at timestamptz NOT NULL,
  last_used_at timestamptz,
  CONSTRAINT api_tokens_scopes CHECK (
    cardinality(scopes) > 0 AND scopes <@ ARRAY['all', 'chat:read', 'chat:write', 'usage:read', 'admin'])
);
CREATE UNIQUE INDEX api_tokens_name ON api_tokens (user_id, name);

-- For choosing a password without having one. One per user: a new link ends the one before it.
CREATE TABLE one_time_links (
  id uuid PRIMARY KEY,
  user_id uuid NOT NULL UNIQUE REFERENCES users ON DELETE CASCADE,
  kind text NOT NULL CHECK (kind IN ('invite', 'reset')),
  secret_hash bytea NOT NULL CHECK (octet_length(secret_hash) = 32),
  created_by uuid,
  created_at timestamptz NOT NULL,
  expires_at timestamptz NOT NULL
);

-- By a hash of what was typed, whether or not there is such an account: then nothing here tells them apart, and what
-- somebody typed into the wrong field is not kept.
CREATE TABLE login_failures (
  login_hash bytea PRIMARY KEY CHECK (octet_length(login_hash) = 32),
  failures integer NOT NULL CHECK (failures >= 0),
  last_at timestamptz NOT NULL,
  blocked_until timestamptz NOT NULL
);
CREATE INDEX login_failures_age ON login_failures (last_at);

-- Only while there is no user. Each data directory has a token of its own, and any of them will do.
CREATE TABLE setup_tokens (
  token_hash bytea PRIMARY KEY CHECK (octet_length(token_hash) = 32),
  created_at timestamptz NOT NULL
);

-- Who may read a family of chats besides its owner; no user is everyone.
CREATE TABLE chat_shares (
  chat_id uuid NOT NULL REFERENCES chats ON DELETE CASCADE,
  user_id uuid REFERENCES users ON DELETE CASCADE,
  role text NOT NULL DEFAULT 'read' CHECK (role = 'read'),
  granted_by uuid,
  created_at timestamptz NOT NULL DEFAULT clock_timestamp(),
  UNIQUE NULLS NOT DISTINCT (chat_id, user_id)
);
CREATE INDEX chat_shares_user ON chat_shares (user_id, chat_id);

-- Children follow their root, so an entry of their own would have no effect; and the owner needs none.
CREATE FUNCTION chat_shares_guard() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
  PERFORM FROM chats WHERE id = NEW.chat_id AND (parent_chat_id IS NOT NULL OR owner_id = NEW.user_id);
  IF FOUND THEN
    RAISE EXCEPTION 'chat % is not a root, or belongs to user %', NEW.chat_id, NEW.user_id USING ERRCODE = 'RK002';
  END IF;
  RETURN NEW;
END $$;
CREATE TRIGGER chat_shares_guard BEFORE INSERT OR UPDATE ON chat_shares
  FOR EACH ROW EXECUTE FUNCTION chat_shares_guard();

-- No foreign keys: what happened stays written when those it speaks of are gone.
CREATE TABLE audit_log (
  id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
  at timestamptz NOT NULL,
  actor_id uuid,
  actor_kind text NOT NULL CHECK (actor_kind IN ('user', 'system', 'cli')),
  actor_label text NOT NULL,
  ip text,
  user_agent text,
  request_id text,
  action text NOT NULL,
  resource_type text NOT NULL,
  resource_id text,
  outcome text NOT NULL CHECK (outcome IN ('done', 'refused')),
  diff jsonb NOT NULL DEFAULT '{}' CHECK (jsonb_typeof(diff) = 'object'),
  extra jsonb NOT NULL DEFAULT '{}' CHECK (jsonb_typeof(extra) = 'object')
);
CREATE INDEX audit_log_resource ON audit_log (resource_type, resource_id, id);
CREATE INDEX audit_log_actor ON audit_log (actor_id, id) WHERE actor_id IS NOT NULL;
CREATE INDEX audit_log_age ON audit_log (at);

-- Written once. Old entries go through the one function that says how old they have to be.
CREATE FUNCTION audit_log_is_append_only() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
  IF TG_OP = 'DELETE' AND current_setting('rookery.purging', true) = 'audit_log' THEN
    RETURN OLD;
  END IF;
  RAISE EXCEPTION 'entries of the audit log are never changed, and removed only by purge_audit' USING ERRCODE = 'RK002';
END $$;
CREATE TRIGGER audit_log_is_append_only BEFORE UPDATE OR DELETE ON audit_log
  FOR EACH ROW EXECUTE FUNCTION audit_log_is_append_only();

CREATE FUNCTION purge_audit(before timestamptz, batch integer) RETURNS integer LANGUAGE plpgsql AS $$
DECLARE
  removed integer;
BEGIN
  PERFORM set_config('rookery.purging', 'audit_log', true);
  DELETE FROM audit_log
   WHERE id IN (SELECT id FROM audit_log WHERE at < before ORDER BY at LIMIT batch);
  GET DIAGNOSTICS removed = ROW_COUNT;
  PERFORM set_config('rookery.purging', '', true);
  RETURN removed;
END $$;

-- The answers to requests that may come again. A row appears together with what the request did; while that is under
-- way there is only a lock, so that a crash leaves nothing that would refuse the next try.
CREATE TABLE idempotency_keys (
  user_id uuid NOT NULL REFERENCES users ON DELETE CASCADE,
  key text NOT NULL CHECK (char_length(key) BETWEEN 1 AND 255),
  request_hash bytea NOT NULL CHECK (octet_length(request_hash) = 32),
  answer bytea NOT NULL,  -- as its owner encoded it
  created_at timestamptz NOT NULL,
  PRIMARY KEY (user_id, key)
);
CREATE INDEX idempotency_keys_age ON idempotency_keys (created_at);
