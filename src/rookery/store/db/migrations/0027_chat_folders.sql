-- min_schema: 10
-- Folders, in which a user orders own chats. A subagent's chat has the folder of its root, so only roots have a row.
-- The rows are separate from chats: moving a chat changes no version of it, and deleting a folder locks no chat. Older
-- servers of a deployment neither write nor read them.

CREATE TABLE chat_folders (
  id uuid PRIMARY KEY DEFAULT gen_random_uuid(),
  owner_id uuid NOT NULL REFERENCES users ON DELETE CASCADE,
  name text NOT NULL CHECK (char_length(name) BETWEEN 1 AND 60),
  color text NOT NULL DEFAULT 'gray' CHECK (color IN ('gray', 'blue', 'green', 'yellow', 'red', 'purple')),
  created_at timestamptz NOT NULL DEFAULT clock_timestamp()
);
CREATE UNIQUE INDEX chat_folders_name ON chat_folders (owner_id, lower(name));

CREATE TABLE chat_folder_items (
  chat_id uuid PRIMARY KEY REFERENCES chats ON DELETE CASCADE,
  folder_id uuid NOT NULL REFERENCES chat_folders ON DELETE CASCADE
);
CREATE INDEX chat_folder_items_folder ON chat_folder_items (folder_id);
