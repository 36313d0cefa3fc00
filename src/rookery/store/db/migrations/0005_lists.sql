-- min_schema: 1
-- The chats of an owner, subagents' ones included. Without it a search for a common word reads everybody's chats, and so
-- does removing a user.
CREATE INDEX chats_owner ON chats (owner_id);
