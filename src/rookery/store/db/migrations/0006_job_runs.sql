-- min_schema: 1
-- The last runs of each job of housekeeping, for those who look after a deployment. Without it a job that has failed for
-- weeks is found in the logs alone. No foreign key: a run stays listed when its replica is gone.
CREATE TABLE job_runs (
  id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
  job text NOT NULL,
  replica_id uuid NOT NULL,
  started_at timestamptz NOT NULL,
  finished_at timestamptz NOT NULL,
  outcome text NOT NULL CHECK (outcome IN ('done', 'failed')),
  removed bigint NOT NULL DEFAULT 0 CHECK (removed >= 0),
  skipped bigint NOT NULL DEFAULT 0 CHECK (skipped >= 0),
  error text,
  CONSTRAINT job_runs_error CHECK ((outcome = 'failed') = (error IS NOT NULL))
);
CREATE INDEX job_runs_newest ON job_runs (job, id DESC);
