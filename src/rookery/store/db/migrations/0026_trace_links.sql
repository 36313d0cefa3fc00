-- min_schema: 10
-- Links between traces. A message has the trace of the request that sent it, and a chat the trace of its last turn.
-- Without them, a turn that another replica runs or continues has no link to its request or to its beginning. Older
-- servers of a deployment neither write nor read them.

ALTER TABLE chat_messages ADD COLUMN traceparent text;
ALTER TABLE chat_messages ADD CONSTRAINT messages_traceparent CHECK (char_length(traceparent) = 55) NOT VALID;
ALTER TABLE chat_queued_messages ADD COLUMN traceparent text;
ALTER TABLE chat_queued_messages ADD CONSTRAINT queued_traceparent CHECK (char_length(traceparent) = 55) NOT VALID;

CREATE TABLE chat_turn_traces (
  chat_id uuid PRIMARY KEY REFERENCES chats ON DELETE CASCADE,
  -- The message that began the turn. No foreign key: a deleted message leaves a row that no turn asks for.
  message_id bigint NOT NULL,
  traceparent text NOT NULL CHECK (char_length(traceparent) = 55)
);
