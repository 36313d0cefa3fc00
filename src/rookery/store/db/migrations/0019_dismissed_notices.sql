-- min_schema: 16
-- The notice about accesses that a session or API token dismissed for itself. For some time after a password reset, a
-- dismissal counts for nothing more: the reset link may have been used by a person who is not the owner. Older code
-- ignores the columns and dismisses the notice for all logins.
ALTER TABLE sessions ADD COLUMN accesses_seen bigint NOT NULL DEFAULT 0;
ALTER TABLE api_tokens ADD COLUMN accesses_seen bigint NOT NULL DEFAULT 0;
