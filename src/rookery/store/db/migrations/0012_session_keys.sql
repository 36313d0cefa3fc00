-- min_schema: 10
-- A cookie alone is no session any more: it takes the session key as well, which is here as its SHA-256. Sessions from
-- before have no key, so that they end here. Older code may go on making sessions without one during a rolling
-- update; newer code takes those for ended. `stays` says that the cookie outlives the browser.

DELETE FROM sessions;
ALTER TABLE sessions
  ADD COLUMN key_hash bytea CHECK (octet_length(key_hash) = 32),
  ADD COLUMN stays boolean NOT NULL DEFAULT true;
