-- min_schema: 10
-- A tool call has one result. The transitions take results only for open calls, under the chat's lock or behind a fence;
-- this trigger refuses a second result of a call for every other writer, and for a bundle that answers a call twice.
--
-- The latest live row that names the call decides. An assistant row makes the call again: servers may repeat call ids. A
-- tool row that cannot be read counts as no result (domain/chat/tool_calls.py), so that its call can still be closed.

CREATE FUNCTION messages_answer_once() RETURNS trigger LANGUAGE plpgsql AS $$
DECLARE
  answered text;
BEGIN
  SELECT p.part ->> 'tool_call_id'
    INTO answered
    FROM jsonb_array_elements(NEW.content) AS p (part)
   CROSS JOIN LATERAL (
         SELECT m.role, m.content, m.content_version
           FROM chat_messages m
          WHERE m.chat_id >= NEW.chat_id AND m.chat_id <= NEW.chat_id
            AND NOT m.deleted
            AND NOT m.compressed
            AND m.role <> 'user' AND m.role <> 'system'
            AND m.content @> jsonb_build_array(jsonb_build_object('tool_call_id', p.part -> 'tool_call_id'))
          ORDER BY m.chat_id DESC, m.id DESC
          LIMIT 1) AS latest
   WHERE p.part ->> 'type' = 'tool-result'
     AND jsonb_typeof(p.part -> 'tool_call_id') = 'string'
     AND latest.role = 'tool'
     AND latest.content @> jsonb_build_array(
         jsonb_build_object('type', 'tool-result', 'tool_call_id', p.part -> 'tool_call_id'))
     AND latest.content_version = NEW.content_version
     AND NOT EXISTS (
         SELECT FROM jsonb_array_elements(latest.content) AS q (part)
          WHERE q.part ->> 'type' IN ('tool-call', 'tool-result')
            AND (jsonb_typeof(q.part -> 'tool_call_id') IS DISTINCT FROM 'string'
                 OR jsonb_typeof(q.part -> 'tool_name') IS DISTINCT FROM 'string'
                 OR coalesce(jsonb_typeof(q.part -> 'provider_executed'), 'boolean') <> 'boolean'))
   LIMIT 1;
  IF FOUND THEN
    RAISE EXCEPTION 'call % of chat % has a result', left(answered, 64), NEW.chat_id USING ERRCODE = 'RK002';
  END IF;
  RETURN NEW;
END $$;
CREATE TRIGGER messages_answer_once
  BEFORE INSERT ON chat_messages FOR EACH ROW
  WHEN (NEW.role = 'tool')
  EXECUTE FUNCTION messages_answer_once();
