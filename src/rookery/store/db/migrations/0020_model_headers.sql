-- min_schema: 20
-- Header values of a single model may be keys, like those of a provider (0016). They are sealed here as one JSON object;
-- `options` keeps their names with masks. The first server that starts with a key ring seals values that are stored
-- unsealed. A server of an older version would send the masks.

ALTER TABLE model_configs ADD COLUMN headers_enc text;
