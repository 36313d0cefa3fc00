-- min_schema: 8
-- What owners have answered about MCP servers that files of a workspace name: one answer for each name, about one entry.
CREATE TABLE workspace_mcp_consents (
  workspace_id uuid NOT NULL REFERENCES workspaces ON DELETE CASCADE,
  name text NOT NULL,
  entry_hash text NOT NULL,
  decision text NOT NULL CHECK (decision IN ('agree', 'deny')),
  decided_by uuid REFERENCES users ON DELETE SET NULL,
  decided_at timestamptz NOT NULL DEFAULT clock_timestamp(),
  PRIMARY KEY (workspace_id, name)
);

-- A server that nobody has agreed to yet; and the entry that is asked about.
ALTER TABLE chat_context_resources
  DROP CONSTRAINT chat_context_resources_status_check,
  ADD CONSTRAINT chat_context_resources_status_check
    CHECK (status IN ('ok', 'truncated', 'oversize', 'unreadable', 'invalid', 'excluded', 'pending')),
  ADD COLUMN entry jsonb;

-- How often something about the servers of the chat's workspace has changed: steps and pages look again by it.
ALTER TABLE chats ADD COLUMN context_servers bigint NOT NULL DEFAULT 0;
CREATE TRIGGER chats_meta_servers
  BEFORE UPDATE OF context_servers ON chats FOR EACH ROW
  WHEN (NEW.context_servers IS DISTINCT FROM OLD.context_servers)
  EXECUTE FUNCTION chats_meta();
