-- min_schema: 10
-- How long the leases of a replica last. Each replica says it of its own leases, so that one with a longer setting is not
-- robbed by one with a shorter one. Until all servers of a deployment run this version, older ones count 30 seconds.

ALTER TABLE replicas
  ADD COLUMN lease_ttl interval NOT NULL DEFAULT lease_ttl() CHECK (lease_ttl > interval '0 seconds');
