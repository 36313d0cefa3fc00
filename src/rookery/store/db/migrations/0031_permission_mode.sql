-- min_schema: 10
-- The permission mode of a chat: ask before every effect, let the rules decide, or only read. The value of a root applies
-- to its whole family. Older servers of a deployment ignore it and let the rules decide.

ALTER TABLE chats ADD COLUMN permission_mode text NOT NULL DEFAULT 'auto';
ALTER TABLE chats ADD CONSTRAINT chats_permission_mode
  CHECK (permission_mode IN ('ask', 'auto', 'read_only')) NOT VALID;

CREATE TRIGGER chats_meta_permission
  BEFORE UPDATE OF permission_mode ON chats FOR EACH ROW
  WHEN (NEW.permission_mode IS DISTINCT FROM OLD.permission_mode)
  EXECUTE FUNCTION chats_meta();
