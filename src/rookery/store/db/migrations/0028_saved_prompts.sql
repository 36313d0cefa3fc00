-- min_schema: 10
-- Saved prompts of users, and those that administrators share with everyone (owner_id is null). `summary` is the
-- beginning of the text: a search reads it and not the texts, which may be long. Older servers of a deployment neither
-- write nor read them.

CREATE TABLE saved_prompts (
  owner_id uuid REFERENCES users ON DELETE CASCADE,
  name text NOT NULL CHECK (char_length(name) BETWEEN 1 AND 64),
  summary text NOT NULL CHECK (char_length(summary) <= 200),
  text text NOT NULL CHECK (octet_length(text) BETWEEN 1 AND 65536),
  updated_at timestamptz NOT NULL DEFAULT clock_timestamp()
);
CREATE UNIQUE INDEX saved_prompts_name ON saved_prompts (owner_id, name) NULLS NOT DISTINCT;
