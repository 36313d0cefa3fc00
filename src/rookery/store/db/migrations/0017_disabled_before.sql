-- min_schema: 10
-- Accounts that were disabled before `disabled_at` existed have none, and replicas never looked at what still runs for
-- them. They count as disabled now, so that their chats and workspaces are stopped once.

UPDATE users SET disabled_at = clock_timestamp() WHERE status = 'disabled' AND disabled_at IS NULL;
