-- min_schema: 10
-- Workspaces may define kinds of subagents in files. Without this, a snapshot of such a workspace cannot be stored.

ALTER TABLE chat_context_resources DROP CONSTRAINT chat_context_resources_kind_check;
ALTER TABLE chat_context_resources ADD CONSTRAINT chat_context_resources_kind_check
  CHECK (kind IN ('instruction_file', 'skill', 'mcp_config', 'mcp_server', 'agent_kind'));
