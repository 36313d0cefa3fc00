-- min_schema: 9
-- What happened to an account without its user: who read its chats by stating a reason, who reset its password, and
-- since when it is disabled.

-- Whose account or chat an entry is about, where that is somebody else than who acted.
ALTER TABLE audit_log ADD COLUMN subject_id uuid;
ALTER TABLE audit_log DISABLE TRIGGER audit_log_is_append_only;
UPDATE audit_log a
   SET subject_id = c.owner_id
  FROM chats c
 WHERE a.action = 'chat.break_glass'
   AND a.resource_id = c.id::text
   AND a.actor_id IS DISTINCT FROM c.owner_id;
UPDATE audit_log a
   SET subject_id = u.id
  FROM users u
 WHERE a.action = 'user.reset_password'
   AND a.resource_id = u.id::text
   AND a.actor_id IS DISTINCT FROM u.id;
ALTER TABLE audit_log ENABLE TRIGGER audit_log_is_append_only;
CREATE INDEX audit_log_subject ON audit_log (subject_id, id) WHERE subject_id IS NOT NULL;

-- The newest entry about the user that the user was shown. What happened before this column existed counts as shown.
ALTER TABLE users ADD COLUMN accesses_seen bigint NOT NULL DEFAULT 0;
UPDATE users SET accesses_seen = coalesce((SELECT max(id) FROM audit_log), 0);

ALTER TABLE users ADD COLUMN disabled_at timestamptz;
CREATE INDEX users_disabled_at ON users (disabled_at) WHERE status = 'disabled';

ALTER TABLE workspace_operations
  DROP CONSTRAINT workspace_operations_reason_check,
  ADD CONSTRAINT workspace_operations_reason_check
      CHECK (reason IN ('user', 'chat', 'idle', 'quota', 'recovery', 'disabled'));
