-- min_schema: 7
-- Questions about tool calls, their answers, and the rules of a chat. Without them an approval would live in one process,
-- and a crash would either lose the question or run what nobody has approved.

ALTER TABLE chats ADD COLUMN awaits_approval boolean NOT NULL DEFAULT false;

-- A question has no deadline unless it is given one; calls of a client always have one.
ALTER TABLE chats DROP CONSTRAINT chats_deadline;
ALTER TABLE chats ADD CONSTRAINT chats_deadline CHECK (
  CASE WHEN status = 'requires_action' THEN requires_action_deadline_at IS NOT NULL OR awaits_approval
       ELSE requires_action_deadline_at IS NULL AND NOT awaits_approval END);

-- By trigger, so that every way out of `requires_action` ends the question, also that of a replica of the version before.
CREATE FUNCTION chats_approval() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
  IF NEW.status <> 'requires_action' THEN
    NEW.awaits_approval := false;
  END IF;
  IF NEW.awaits_approval <> OLD.awaits_approval AND NOT in_transition(OLD.id) THEN
    RAISE EXCEPTION 'chat % is changed outside a transition', OLD.id USING ERRCODE = 'RK001';
  END IF;
  RETURN NEW;
END $$;
CREATE TRIGGER chats_approval BEFORE UPDATE OF status, awaits_approval ON chats FOR EACH ROW
  WHEN (OLD.awaits_approval OR NEW.awaits_approval)
  EXECUTE FUNCTION chats_approval();

-- One row per call that was asked about. `token` is the call's replay token: ids of calls repeat on some servers, and may
-- hold what no text column takes. `offers`: what "always" would permit.
CREATE TABLE chat_approvals (
  chat_id uuid NOT NULL REFERENCES chats ON DELETE CASCADE,
  token uuid NOT NULL,
  offers jsonb NOT NULL,
  asked_at timestamptz NOT NULL DEFAULT clock_timestamp(),
  approved_by uuid,  -- no foreign key: deleting a user must not unapprove what ran
  approved_at timestamptz,
  PRIMARY KEY (chat_id, token),
  CONSTRAINT chat_approvals_answer CHECK ((approved_by IS NULL) = (approved_at IS NULL))
);

CREATE FUNCTION chat_approvals_guard() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
  IF NOT in_transition(NEW.chat_id) THEN
    RAISE EXCEPTION 'chat % is changed outside a transition', NEW.chat_id USING ERRCODE = 'RK001';
  END IF;
  RETURN NEW;
END $$;
CREATE TRIGGER chat_approvals_guard BEFORE INSERT OR UPDATE ON chat_approvals FOR EACH ROW
  EXECUTE FUNCTION chat_approvals_guard();

CREATE FUNCTION chats_question_closed() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
  DELETE FROM chat_approvals WHERE chat_id = OLD.id AND approved_at IS NULL;
  RETURN NULL;
END $$;
CREATE TRIGGER chats_question_closed AFTER UPDATE OF status ON chats FOR EACH ROW
  WHEN (OLD.awaits_approval AND NOT NEW.awaits_approval)
  EXECUTE FUNCTION chats_question_closed();

-- Rules of a root chat, for its whole family. A table of its own: lists of chats need not read them.
CREATE TABLE chat_approval_rules (
  chat_id uuid PRIMARY KEY REFERENCES chats ON DELETE CASCADE,
  rules jsonb NOT NULL CHECK (jsonb_typeof(rules) = 'array'),
  updated_at timestamptz NOT NULL DEFAULT clock_timestamp()
);
