-- min_schema: 16
-- Values of a provider's headers may be keys. They are sealed here as one JSON object; `options` keeps their names with
-- masks. What is stored in the clear already is moved by the first server that starts with a key ring. A server of an
-- older version would send the masks.

ALTER TABLE model_providers ADD COLUMN headers_enc text;
