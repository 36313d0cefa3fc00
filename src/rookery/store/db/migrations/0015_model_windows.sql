-- min_schema: 14
-- How much a model really reads, as far as it is not what an administrator configured: what its provider reports, and
-- what was learned from requests that were refused as too long. Without it every replica, after every start, sends the
-- same request that is too long again.

CREATE TABLE model_windows (
  model_config_id uuid PRIMARY KEY REFERENCES model_configs ON DELETE CASCADE,
  reported_tokens bigint CHECK (reported_tokens > 0),
  reported_at timestamptz,
  learned_tokens bigint CHECK (learned_tokens > 0),
  learned_from text CHECK (learned_from IN ('provider', 'halving')),
  learned_at timestamptz,
  CONSTRAINT model_windows_reported CHECK ((reported_tokens IS NULL) = (reported_at IS NULL)),
  CONSTRAINT model_windows_learned CHECK (
    (learned_tokens IS NULL) = (learned_at IS NULL) AND (learned_tokens IS NULL) = (learned_from IS NULL))
);

ALTER TABLE chats
  -- The estimated size of the smallest request that was refused as too long, and the history it was made from. Another
  -- replica must not send that request again.
  ADD COLUMN refused_tokens bigint CHECK (refused_tokens > 0),
  ADD COLUMN refused_history_version bigint,
  -- Whether labels of turns and summaries of the chat are made. NULL: as its client is one for people or a program.
  ADD COLUMN generate_summaries boolean,
  -- How often a model was asked to name the chat. Chats of earlier versions were tried once.
  ADD COLUMN title_tries smallint NOT NULL DEFAULT 1,
  ADD COLUMN title_asked_at timestamptz;
ALTER TABLE chats ALTER COLUMN title_tries SET DEFAULT 0;
