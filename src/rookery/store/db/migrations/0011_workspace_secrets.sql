-- min_schema: 9
-- The values of secret parameters, sealed: `parameters` is shown to owners, auditors and models, and holds masks for
-- them. An older server ignores the columns, and starts such workspaces without their secrets.

ALTER TABLE workspaces ADD COLUMN secrets_enc text;
ALTER TABLE workspace_operations ADD COLUMN secrets_enc text;  -- of one start only; emptied at its end
