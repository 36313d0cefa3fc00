-- min_schema: 10
-- MCP servers of the deployment (owner_id is null), of users, and of projects (workspace_id is set), with the logins of
-- users and last known lists of tools. Older servers of a deployment neither write nor read them, except
-- `chats.mcp_server_ids`, which they keep empty.

CREATE TABLE mcp_servers (
  id uuid PRIMARY KEY DEFAULT gen_random_uuid(),
  owner_id uuid REFERENCES users ON DELETE CASCADE,
  workspace_id uuid REFERENCES workspaces ON DELETE CASCADE,
  -- The hash of the entry in the project's file to which the owner agreed. Another hash needs another consent.
  entry_hash text,
  slug text NOT NULL CHECK (slug ~ '^[a-z0-9]+(-[a-z0-9]+)*$' AND char_length(slug) <= 40),
  display_name text NOT NULL DEFAULT '' CHECK (char_length(display_name) <= 100),
  description text NOT NULL DEFAULT '' CHECK (char_length(description) <= 2000),
  icon text NOT NULL DEFAULT '' CHECK (char_length(icon) <= 200),
  url text NOT NULL CHECK (url ~ '^https?://' AND octet_length(url) <= 2048),
  transport text NOT NULL DEFAULT 'auto' CHECK (transport IN ('auto', 'streamable_http', 'sse')),
  enabled boolean NOT NULL DEFAULT true,
  availability text NOT NULL DEFAULT 'default_off' CHECK (availability IN ('force_on', 'default_on', 'default_off')),
  auth_type text NOT NULL DEFAULT 'none' CHECK (auth_type IN ('none', 'api_key', 'custom_headers', 'oauth2')),
  api_key_header text,
  api_key_enc text,
  header_names text[] NOT NULL DEFAULT '{}',
  headers_enc text,
  -- Without a client id and addresses, they are found by discovery and registration.
  oauth_client_id text,
  oauth_client_secret_enc text,
  oauth_authorization_url text,
  oauth_token_url text,
  oauth_revocation_url text,
  oauth_scopes text[] NOT NULL DEFAULT '{}',
  allow_in_plan_mode boolean NOT NULL DEFAULT false,
  model_intent boolean NOT NULL DEFAULT false,
  forward_identity boolean NOT NULL DEFAULT false,
  tool_allow_list text[] NOT NULL DEFAULT '{}',
  tool_deny_list text[] NOT NULL DEFAULT '{}',
  -- Both empty: all users. Otherwise the users and the roles that are listed.
  allowed_users uuid[] NOT NULL DEFAULT '{}',
  allowed_roles text[] NOT NULL DEFAULT '{}',
  call_timeout_seconds integer NOT NULL DEFAULT 60 CHECK (call_timeout_seconds BETWEEN 1 AND 1800),
  -- Grows with every change of what a connection or a login depends on: address, transport, authentication.
  config_version bigint NOT NULL DEFAULT 1,
  created_by uuid,
  created_at timestamptz NOT NULL DEFAULT clock_timestamp(),
  updated_at timestamptz NOT NULL DEFAULT clock_timestamp(),
  CONSTRAINT mcp_servers_project CHECK (workspace_id IS NULL OR (owner_id IS NOT NULL AND entry_hash IS NOT NULL)),
  CONSTRAINT mcp_servers_api_key CHECK ((auth_type = 'api_key') = (api_key_enc IS NOT NULL)
    AND (api_key_enc IS NULL) = (api_key_header IS NULL)),
  CONSTRAINT mcp_servers_headers CHECK ((auth_type = 'custom_headers') = (headers_enc IS NOT NULL)
    AND (headers_enc IS NULL) = (header_names = '{}')),
  CONSTRAINT mcp_servers_oauth CHECK (auth_type = 'oauth2' OR num_nonnulls(oauth_client_id, oauth_client_secret_enc,
    oauth_authorization_url, oauth_token_url, oauth_revocation_url) = 0),
  CONSTRAINT mcp_servers_oauth_manual CHECK (num_nonnulls(oauth_client_id, oauth_authorization_url, oauth_token_url)
    IN (0, 3)),
  CONSTRAINT mcp_servers_forced CHECK (availability <> 'force_on' OR owner_id IS NULL),
  CONSTRAINT mcp_servers_slug UNIQUE NULLS NOT DISTINCT (owner_id, workspace_id, slug)
);
CREATE INDEX mcp_servers_workspace ON mcp_servers (workspace_id) WHERE workspace_id IS NOT NULL;

-- Clients that this deployment has registered at authorization servers, one for each issuer and redirect address.
CREATE TABLE mcp_oauth_clients (
  id uuid PRIMARY KEY DEFAULT gen_random_uuid(),
  server_id uuid NOT NULL REFERENCES mcp_servers ON DELETE CASCADE,
  issuer text NOT NULL,
  redirect_uri text NOT NULL,
  client_id text NOT NULL,
  client_secret_enc text,
  token_auth_method text NOT NULL,
  secret_expires_at timestamptz,
  created_at timestamptz NOT NULL DEFAULT clock_timestamp(),
  UNIQUE (server_id, issuer, redirect_uri)
);

-- Logins that have begun. A row is deleted by its callback, so that every state is good once. `details_enc` has the
-- PKCE verifier, the endpoints and the client.
CREATE TABLE mcp_oauth_flows (
  state_hash bytea PRIMARY KEY,
  id uuid NOT NULL DEFAULT gen_random_uuid(),
  server_id uuid NOT NULL REFERENCES mcp_servers ON DELETE CASCADE,
  user_id uuid NOT NULL REFERENCES users ON DELETE CASCADE,
  config_version bigint NOT NULL,
  details_enc text NOT NULL,
  expires_at timestamptz NOT NULL
);
CREATE INDEX mcp_oauth_flows_age ON mcp_oauth_flows (expires_at);

-- A user's login at a server. `version` grows with every change: a refresh is redeemed only for the version that was read
-- under the lock of the row. `dead_at`: the grant is gone, and the user must connect again.
CREATE TABLE mcp_oauth_tokens (
  id uuid PRIMARY KEY DEFAULT gen_random_uuid(),
  server_id uuid NOT NULL REFERENCES mcp_servers ON DELETE CASCADE,
  user_id uuid NOT NULL REFERENCES users ON DELETE CASCADE,
  issuer text NOT NULL,
  resource text NOT NULL,
  token_url text NOT NULL,
  revocation_url text,
  client_id text NOT NULL,
  client_secret_enc text,
  token_auth_method text NOT NULL,
  access_token_enc text NOT NULL,
  refresh_token_enc text,
  scopes text[] NOT NULL DEFAULT '{}',
  -- Scopes that the server has asked for in a 403: the next login asks for them too.
  wanted_scopes text[] NOT NULL DEFAULT '{}',
  expires_at timestamptz,
  version bigint NOT NULL DEFAULT 1,
  refreshed_at timestamptz,
  dead_at timestamptz,
  dead_reason text CHECK (char_length(dead_reason) <= 500),
  connected_at timestamptz NOT NULL DEFAULT clock_timestamp(),
  UNIQUE (user_id, server_id),
  CONSTRAINT mcp_oauth_tokens_dead CHECK ((dead_at IS NULL) = (dead_reason IS NULL))
);
CREATE INDEX mcp_oauth_tokens_server ON mcp_oauth_tokens (server_id);

-- The last list of tools that a server has given. user_id is null where all users get the same list.
CREATE TABLE mcp_tool_lists (
  server_id uuid NOT NULL REFERENCES mcp_servers ON DELETE CASCADE,
  user_id uuid REFERENCES users ON DELETE CASCADE,
  config_version bigint NOT NULL,
  tools jsonb NOT NULL CHECK (jsonb_typeof(tools) = 'array'),
  hash text NOT NULL,
  fetched_at timestamptz NOT NULL DEFAULT clock_timestamp(),
  fresh_until timestamptz,
  UNIQUE NULLS NOT DISTINCT (server_id, user_id)
);
