/** The form of an MCP server: what is edited, and what is sent. */
import type {
  AuthType,
  Availability,
  CatalogEntry,
  McpServerChange,
  McpServerCreate,
  McpServerView,
  Transport,
  UserRole,
} from "@/api/types.gen";

/** A header with a secret. `isStored`: the server has a value, which an empty `value` keeps. */
export interface HeaderEntry {
  name: string;
  value: string;
  isStored: boolean;
}

export interface McpForm {
  slug: string;
  display_name: string;
  description: string;
  icon: string;
  url: string;
  transport: Transport;
  enabled: boolean;
  availability: Availability;
  auth_type: AuthType;
  api_key_header: string;
  api_key: string;
  headers: HeaderEntry[];
  oauth_client_id: string;
  oauth_client_secret: string;
  oauth_authorization_url: string;
  oauth_token_url: string;
  oauth_revocation_url: string;
  oauth_scopes: string;
  allow_in_plan_mode: boolean;
  model_intent: boolean;
  forward_identity: boolean;
  /** Whether only the tools of the allow list are offered. */
  only_allowed: boolean;
  tool_allow_list: string[];
  tool_deny_list: string[];
  allowed_roles: UserRole[];
  allowed_users: string[];
  call_timeout_seconds: string;
}

export function formOf(server: McpServerView | null, entry: CatalogEntry | null = null): McpForm {
  const allowed = server?.tool_allow_list ?? [];
  return {
    slug: server?.slug ?? entry?.slug ?? "",
    display_name: server?.display_name ?? entry?.name ?? "",
    description: server?.description ?? entry?.description ?? "",
    icon: server?.icon ?? "",
    url: server?.url ?? entry?.url ?? "",
    transport: server?.transport ?? "auto",
    enabled: server?.enabled ?? true,
    availability: server?.availability ?? "default_off",
    auth_type: server?.auth_type ?? entry?.auth_type ?? "none",
    api_key_header: server?.api_key?.name ?? entry?.api_key_header ?? "Authorization",
    api_key: "",
    headers: (server?.headers ?? []).map(({ name, has_value }) => ({ name, value: "", isStored: has_value })),
    oauth_client_id: server?.oauth_client_id ?? "",
    oauth_client_secret: "",
    oauth_authorization_url: server?.oauth_authorization_url ?? "",
    oauth_token_url: server?.oauth_token_url ?? "",
    oauth_revocation_url: server?.oauth_revocation_url ?? "",
    oauth_scopes: (server?.oauth_scopes ?? []).join(" "),
    allow_in_plan_mode: server?.allow_in_plan_mode ?? false,
    model_intent: server?.model_intent ?? false,
    forward_identity: server?.forward_identity ?? false,
    only_allowed: allowed.length > 0,
    tool_allow_list: allowed,
    tool_deny_list: server?.tool_deny_list ?? [],
    allowed_roles: server?.allowed_roles ?? [],
    allowed_users: server?.allowed_users ?? [],
    call_timeout_seconds: String(server?.call_timeout_seconds ?? 60),
  };
}

/** Return the fields of the form as the server has them. Secrets that were not entered are absent. */
function bodyOf(form: McpForm): McpServerChange {
  const { auth_type } = form;
  return {
    slug: form.slug.trim(),
    display_name: form.display_name.trim(),
    description: form.description.trim(),
    icon: form.icon.trim(),
    url: form.url.trim(),
    transport: form.transport,
    enabled: form.enabled,
    availability: form.availability,
    auth_type,
    ...(auth_type === "api_key" ? { api_key_header: form.api_key_header.trim() } : {}),
    ...(auth_type === "api_key" && form.api_key ? { api_key: form.api_key } : {}),
    ...(auth_type === "custom_headers" ? { headers: headersOf(form.headers) } : {}),
    ...(auth_type === "oauth2" ? oauthOf(form) : {}),
    allow_in_plan_mode: form.allow_in_plan_mode,
    model_intent: form.model_intent,
    forward_identity: form.forward_identity,
    tool_allow_list: form.only_allowed ? form.tool_allow_list : [],
    tool_deny_list: form.tool_deny_list,
    allowed_roles: form.allowed_roles,
    allowed_users: form.allowed_users,
    call_timeout_seconds: Number(form.call_timeout_seconds),
  };
}

function oauthOf(form: McpForm): McpServerChange {
  return {
    oauth_client_id: form.oauth_client_id.trim() || null,
    oauth_authorization_url: form.oauth_authorization_url.trim() || null,
    oauth_token_url: form.oauth_token_url.trim() || null,
    oauth_revocation_url: form.oauth_revocation_url.trim() || null,
    oauth_scopes: form.oauth_scopes.split(/[\s,]+/).filter(Boolean),
    ...(form.oauth_client_secret ? { oauth_client_secret: form.oauth_client_secret } : {}),
  };
}

/** The value that keeps a stored secret. */
const KEPT = "***";

function headersOf(entries: readonly HeaderEntry[]): Record<string, string> {
  return Object.fromEntries(
    entries
      .filter((one) => one.name.trim() !== "")
      .map((one) => [one.name.trim(), one.value === "" && one.isStored ? KEPT : one.value]),
  );
}

export function toCreate(form: McpForm): McpServerCreate {
  const filled = Object.entries(bodyOf(form)).filter(([, value]) => value !== null);
  return Object.fromEntries(filled) as unknown as McpServerCreate;
}

/** Return the changed fields. */
export function toChange(server: McpServerView, form: McpForm): McpServerChange {
  const before = bodyOf(formOf(server)) as Record<string, unknown>;
  const changed = Object.entries(bodyOf(form)).filter(
    ([name, value]) => JSON.stringify(before[name]) !== JSON.stringify(value),
  );
  return Object.fromEntries(changed);
}

export const isOffered = (form: McpForm, tool: string): boolean =>
  !form.tool_deny_list.includes(tool) && (!form.only_allowed || form.tool_allow_list.includes(tool));

/** Return the lists after a tool was switched on or off. */
export function withTool(
  form: McpForm,
  tool: string,
  isOn: boolean,
): Pick<McpForm, "tool_allow_list" | "tool_deny_list"> {
  const without = (names: string[]) => names.filter((one) => one !== tool);
  const { only_allowed, tool_allow_list: allowed, tool_deny_list: denied } = form;
  if (isOn)
    return {
      tool_allow_list: only_allowed ? [...without(allowed), tool] : allowed,
      tool_deny_list: without(denied),
    };
  if (only_allowed) return { tool_allow_list: without(allowed), tool_deny_list: denied };
  return { tool_allow_list: allowed, tool_deny_list: [...without(denied), tool] };
}

/** Return a slug for an address or a name: letters, digits and single hyphens. */
export function slugOf(text: string): string {
  return text
    .toLowerCase()
    .replace(/[^a-z0-9]+/g, "-")
    .slice(0, 40)
    .replace(/^-|-$/g, "");
}
