-- min_schema: 10
-- Ends of subagents that will not resume their parent: the parent was archived, or was resumed too often. Without this,
-- every replica looks at the untold ends of all archived chats every few seconds. Older servers of a deployment do not
-- set the mark; they resume an unarchived chat once more.

ALTER TABLE subagent_ends ADD COLUMN is_set_aside boolean NOT NULL DEFAULT false;
UPDATE subagent_ends e
   SET is_set_aside = true
  FROM chats p
 WHERE p.id = e.parent_chat_id AND p.archived AND e.told_at IS NULL;
CREATE INDEX subagent_ends_waking ON subagent_ends (parent_chat_id)
  WHERE told_at IS NULL AND NOT is_set_aside AND outcome <> 'interrupted';
