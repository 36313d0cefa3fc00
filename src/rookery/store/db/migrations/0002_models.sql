-- min_schema: 1
-- Providers, their keys, model configs, the ledger of model calls, and runtime settings. Without it no model can be
-- configured and no call is accounted for. Everything added has a default, so code of schema 1 goes on working.

-- `type` has no CHECK: the set grows with the code, and a row of a newer version is shown as unavailable by an older.
ALTER TABLE model_providers
  ADD COLUMN display_name text NOT NULL DEFAULT '',
  ADD COLUMN icon text NOT NULL DEFAULT '',
  ADD COLUMN base_url text,
  ADD COLUMN enabled boolean NOT NULL DEFAULT true,
  ADD COLUMN source text NOT NULL DEFAULT 'db',
  ADD COLUMN options jsonb NOT NULL DEFAULT '{}',
  ADD COLUMN send_correlation boolean NOT NULL DEFAULT false,
  ADD COLUMN api_key_enc text,
  ADD COLUMN central_key_enabled boolean NOT NULL DEFAULT true,
  ADD COLUMN allow_user_key boolean NOT NULL DEFAULT false,
  ADD COLUMN allow_central_fallback boolean NOT NULL DEFAULT false,
  ADD COLUMN updated_at timestamptz NOT NULL DEFAULT clock_timestamp(),
  ADD CONSTRAINT model_providers_name_form CHECK (name ~ '^[a-z0-9]+(-[a-z0-9]+)*$'),
  ADD CONSTRAINT model_providers_base_url CHECK (base_url ~ '^https?://'),
  ADD CONSTRAINT model_providers_source CHECK (source IN ('db', 'env')),
  ADD CONSTRAINT model_providers_options CHECK (jsonb_typeof(options) = 'object'),
  -- The key of a preset lives in the environment and nowhere else.
  ADD CONSTRAINT model_providers_env_key CHECK (source = 'db' OR api_key_enc IS NULL),
  ADD CONSTRAINT model_providers_env_stays CHECK (source = 'db' OR NOT deleted),
  ADD CONSTRAINT model_providers_some_key CHECK (central_key_enabled OR allow_user_key),
  ADD CONSTRAINT model_providers_fallback CHECK (
    NOT allow_central_fallback OR (central_key_enabled AND allow_user_key));
CREATE UNIQUE INDEX model_providers_env ON model_providers (type) WHERE source = 'env';

CREATE TABLE user_provider_keys (
  user_id uuid NOT NULL REFERENCES users ON DELETE CASCADE,
  provider_id uuid NOT NULL REFERENCES model_providers ON DELETE CASCADE,
  key_enc text NOT NULL,
  updated_at timestamptz NOT NULL DEFAULT clock_timestamp(),
  PRIMARY KEY (user_id, provider_id)
);
CREATE INDEX user_provider_keys_provider ON user_provider_keys (provider_id);

-- Prices are USD per million tokens, which is the same as micro-dollars per token.
ALTER TABLE model_configs
  ADD COLUMN display_name text NOT NULL DEFAULT '',
  ADD COLUMN enabled boolean NOT NULL DEFAULT true,
  ADD COLUMN is_default boolean NOT NULL DEFAULT false,
  ADD COLUMN compression_threshold smallint NOT NULL DEFAULT 70,
  ADD COLUMN options jsonb NOT NULL DEFAULT '{}',
  ADD COLUMN price_input numeric,
  ADD COLUMN price_output numeric,
  ADD COLUMN price_cache_read numeric,
  ADD COLUMN price_cache_write numeric,
  ADD COLUMN price_cache_write_1h numeric,
  ADD COLUMN created_by uuid,
  ADD COLUMN updated_by uuid,
  ADD COLUMN updated_at timestamptz NOT NULL DEFAULT clock_timestamp(),
  ADD CONSTRAINT model_configs_threshold CHECK (compression_threshold BETWEEN 0 AND 100),
  ADD CONSTRAINT model_configs_options CHECK (jsonb_typeof(options) = 'object'),
  ADD CONSTRAINT model_configs_prices CHECK (
    least(price_input, price_output, price_cache_read, price_cache_write, price_cache_write_1h) >= 0
    AND greatest(price_input, price_output, price_cache_read, price_cache_write, price_cache_write_1h) < 1000000),
  ADD CONSTRAINT model_configs_price_pair CHECK ((price_input IS NULL) = (price_output IS NULL)),
  ADD CONSTRAINT model_configs_price_cache CHECK (
    price_input IS NOT NULL OR coalesce(price_cache_read, price_cache_write, price_cache_write_1h) IS NULL),
  ADD CONSTRAINT model_configs_default_live CHECK (NOT (is_default AND deleted));
CREATE UNIQUE INDEX model_configs_default ON model_configs (is_default) WHERE is_default;
CREATE INDEX model_configs_provider ON model_configs (provider_id) WHERE NOT deleted;

-- One row per model call, also of those that failed. No foreign keys to users and models: the ledger outlives them.
-- `root_chat_id` is the family's root, for the root's own calls too.
CREATE TABLE model_usage (
  id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
  at timestamptz NOT NULL DEFAULT clock_timestamp(),
  owner_id uuid NOT NULL,
  chat_id uuid REFERENCES chats ON DELETE SET NULL,
  root_chat_id uuid REFERENCES chats ON DELETE SET NULL,
  message_id bigint,
  purpose text NOT NULL,
  provider_id uuid NOT NULL,
  model_config_id uuid,
  model text NOT NULL,
  key_source text NOT NULL,
  status text NOT NULL,
  input_tokens bigint,
  cache_read_tokens bigint,
  cache_write_tokens bigint,
  cache_write_1h_tokens bigint,
  output_tokens bigint,
  reasoning_tokens bigint,
  total_tokens bigint,
  web_searches bigint,
  context_tokens bigint,
  cost_micros bigint,
  priced boolean GENERATED ALWAYS AS (cost_micros IS NOT NULL) STORED,
  runtime_ms bigint NOT NULL,
  request_id text,
  CONSTRAINT model_usage_key_source CHECK (key_source IN ('user', 'central', 'env', 'ambient')),
  CONSTRAINT model_usage_status CHECK (status IN ('ok', 'failed', 'interrupted')),
  CONSTRAINT model_usage_cost CHECK (cost_micros >= 0),
  CONSTRAINT model_usage_runtime CHECK (runtime_ms >= 0)
);
-- What a user spent in a period is read before every model call, from this index alone.
CREATE INDEX model_usage_spend ON model_usage (owner_id, at) INCLUDE (cost_micros) WHERE key_source <> 'user';
CREATE INDEX model_usage_family ON model_usage (root_chat_id) WHERE root_chat_id IS NOT NULL;
CREATE INDEX model_usage_chat ON model_usage (chat_id) WHERE chat_id IS NOT NULL;
CREATE INDEX model_usage_at ON model_usage (at);

-- Append-only. What passes is the database itself, letting go of chats that are deleted.
CREATE FUNCTION model_usage_is_append_only() RETURNS trigger LANGUAGE plpgsql AS $$
DECLARE
  -- `priced` is computed after this trigger, so NEW does not have it yet.
  aside constant text[] := '{chat_id, root_chat_id, priced}';
BEGIN
  IF TG_OP = 'UPDATE' AND to_jsonb(NEW) - aside = to_jsonb(OLD) - aside
     AND (NEW.chat_id IS NULL OR NEW.chat_id = OLD.chat_id)
     AND (NEW.root_chat_id IS NULL OR NEW.root_chat_id = OLD.root_chat_id) THEN
    RETURN NEW;
  END IF;
  RAISE EXCEPTION 'rows of model_usage are never changed or removed' USING ERRCODE = 'RK002';
END $$;
CREATE TRIGGER model_usage_is_append_only BEFORE UPDATE OR DELETE ON model_usage
  FOR EACH ROW EXECUTE FUNCTION model_usage_is_append_only();

ALTER TABLE users
  ADD COLUMN spend_limit_micros bigint,
  ADD CONSTRAINT users_spend_limit CHECK (spend_limit_micros > 0);

-- One row per group of runtime settings; what a row does not say has its default.
CREATE TABLE settings (
  key text PRIMARY KEY,
  value jsonb NOT NULL,
  updated_at timestamptz NOT NULL DEFAULT clock_timestamp(),
  updated_by uuid
);

-- The same for one user's own preferences.
CREATE TABLE user_settings (
  user_id uuid NOT NULL REFERENCES users ON DELETE CASCADE,
  key text NOT NULL,
  value jsonb NOT NULL,
  updated_at timestamptz NOT NULL DEFAULT clock_timestamp(),
  PRIMARY KEY (user_id, key)
);
