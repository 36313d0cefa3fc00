/** The form of an MCP server, for administrators and for users with servers of their own. */
import { useMutation, useQuery } from "@tanstack/react-query";
import { Plus, X } from "lucide-react";
import { type ReactNode, useState } from "react";
import { getUser } from "@/api/admin";
import { ApiError, sentence } from "@/api/errors";
import { createMcpServer, patchMcpServer } from "@/api/mcp_servers";
import type { AuthType, Availability, CatalogEntry, McpServerView, Transport, UserRole } from "@/api/types.gen";
import { formOf, isOffered, type McpForm, slugOf, toChange, toCreate, withTool } from "@/chat/mcp_form";
import { nameOf } from "@/features/mcp/connection";
import { FindPeople } from "@/features/people/find_people";
import { reloadMcpServers, runMcpTest, useMcpTools } from "@/state/mcp_servers";
import { Button, IconButton } from "@/ui/button";
import { Dialog } from "@/ui/dialog";
import { FieldNote, TextField } from "@/ui/field";
import { Notice } from "@/ui/notice";
import { Choices } from "@/ui/radio_choices";
import { Select } from "@/ui/select";
import { Switch } from "@/ui/switch";

interface Props {
  /** The server to change; null to add one. */
  server: McpServerView | null;
  /** What the form of a new server begins with. */
  entry?: CatalogEntry | null;
  /** Whether the server is for the user's own chats. */
  isOwn: boolean;
  /** A problem that is known already, such as a name that is taken. */
  problem?: unknown;
  onClose: () => void;
  onSaved: (server: McpServerView) => void;
}

type Set = <K extends keyof McpForm>(name: K, value: McpForm[K]) => void;

export function ServerDialog({ server, entry = null, isOwn, problem, onClose, onSaved }: Props) {
  const [form, setForm] = useState(() => formOf(server, entry));
  const [hasOwnSlug, setOwnSlug] = useState(server !== null || entry !== null);
  const save = useMutation({
    mutationFn: () =>
      server ? patchMcpServer(server, toChange(server, form)) : createMcpServer(isOwn, toCreate(form)),
    onSuccess: (saved) => {
      void reloadMcpServers();
      onSaved(saved);
    },
  });
  const error = save.error ?? problem;
  const refused = error instanceof ApiError ? error : null;
  const set: Set = (name, value) => setForm((old) => ({ ...old, [name]: value }));
  const text = (name: keyof McpForm & string) => ({
    value: String(form[name]),
    onChange: (event: { target: { value: string } }) => set(name, event.target.value as never),
    error: refused?.field(name),
  });
  const hasNoTool = form.only_allowed && form.tool_allow_list.length === 0;
  return (
    <Dialog
      open
      wide
      onOpenChange={onClose}
      title={server ? `Edit ${nameOf(server)}` : "Add an MCP server"}
      footer={
        <>
          <Button onClick={onClose}>Cancel</Button>
          <Button
            kind="primary"
            disabled={save.isPending || !form.url.trim() || !form.slug.trim() || hasNoTool}
            onClick={() => save.mutate()}
          >
            {server ? "Save" : "Add"}
          </Button>
        </>
      }
    >
      <div className="flex flex-col gap-4">
        {error !== undefined && error !== null && <Notice kind="error">{sentence(error)}</Notice>}
        {entry?.needs && <Notice>{entry.needs}</Notice>}
        <TextField
          label="Address"
          type="url"
          placeholder="https://example.com/mcp"
          spellCheck={false}
          {...text("url")}
        />
        <div className="grid gap-4 sm:grid-cols-2">
          <TextField
            label="Name"
            {...text("display_name")}
            onChange={(event) => {
              set("display_name", event.target.value);
              if (!hasOwnSlug) set("slug", slugOf(event.target.value));
            }}
          />
          <TextField
            label="Short name"
            hint="Its tools and approval rules begin with it: a-z, 0-9, hyphens."
            spellCheck={false}
            {...text("slug")}
            onChange={(event) => {
              setOwnSlug(true);
              set("slug", event.target.value);
            }}
          />
        </div>
        <TextField label="Description" {...text("description")} />
        <Authentication {...{ server, form, set, text }} error={refused} />
        <Availabilities {...{ form, set, isOwn }} />
        {server && <Tools {...{ server, form, set }} />}
        {hasNoTool && <Notice kind="warn">Choose at least one tool.</Notice>}
        <Part title="More">
          {!isOwn && <Roles {...{ form, set }} />}
          {!isOwn && <Users {...{ form, set }} error={refused?.field("allowed_users")} />}
          <Switch
            label="Use it in plan mode"
            hint="Its tools may change things. Plan mode is for looking only."
            checked={form.allow_in_plan_mode}
            onChange={(on) => set("allow_in_plan_mode", on)}
          />
          <Switch
            label="Ask the agent what each call is for"
            hint="The answer is shown as the title of the call. It costs a few tokens."
            checked={form.model_intent}
            onChange={(on) => set("model_intent", on)}
          />
          <Switch
            label="Tell the server who asks"
            hint="It gets the ids of the user, the chat and the workspace with every call."
            checked={form.forward_identity}
            onChange={(on) => set("forward_identity", on)}
          />
          <div className="grid gap-4 sm:grid-cols-3">
            <TextField
              label="Time limit of a call, in seconds"
              inputMode="numeric"
              hint="1 to 1800"
              {...text("call_timeout_seconds")}
            />
            <Select
              label="Transport"
              value={form.transport}
              onChange={(next) => set("transport", next as Transport)}
              options={[
                { value: "auto", label: "Find out" },
                { value: "streamable_http", label: "Streamable HTTP" },
                { value: "sse", label: "SSE (old servers)" },
              ]}
            />
            <TextField label="Icon" hint="One character, such as an emoji" {...text("icon")} />
          </div>
        </Part>
      </div>
    </Dialog>
  );
}

function Part({ title, children }: { title: string; children: ReactNode }) {
  return (
    <details className="rounded-lg border border-line">
      <summary className="cursor-pointer px-3 py-2 font-medium">{title}</summary>
      <div className="flex flex-col gap-4 px-3 pt-1 pb-3">{children}</div>
    </details>
  );
}

interface PartProps {
  form: McpForm;
  set: Set;
}

interface AuthProps extends PartProps {
  server: McpServerView | null;
  text: (name: keyof McpForm & string) => {
    value: string;
    onChange: (event: { target: { value: string } }) => void;
    error: string | undefined;
  };
  error: ApiError | null;
}

function Authentication({ server, form, set, text, error }: AuthProps) {
  const isStored = server?.auth_type === form.auth_type;
  return (
    <>
      <Select
        label="Login"
        value={form.auth_type}
        onChange={(next) => set("auth_type", next as AuthType)}
        error={error?.field("auth_type")}
        options={[
          { value: "none", label: "None" },
          { value: "oauth2", label: "Each user logs in (OAuth)" },
          { value: "api_key", label: "One key for all" },
          { value: "custom_headers", label: "Headers" },
        ]}
      />
      {form.auth_type === "api_key" && (
        <div className="grid gap-4 sm:grid-cols-2">
          <TextField label="Header" spellCheck={false} {...text("api_key_header")} />
          <TextField
            label="Key"
            type="password"
            autoComplete="off"
            hint="Sent as it is. Many servers need Bearer and a space before it."
            placeholder={isStored ? "Leave empty to keep the key" : ""}
            {...text("api_key")}
          />
        </div>
      )}
      {form.auth_type === "custom_headers" && <Headers {...{ form, set }} error={error?.field("headers")} />}
      {form.auth_type === "oauth2" && (
        <Part title="OAuth client, if the server does not register one by itself">
          <div className="grid gap-4 sm:grid-cols-2">
            <TextField label="Client id" spellCheck={false} {...text("oauth_client_id")} />
            <TextField
              label="Client secret"
              type="password"
              autoComplete="off"
              placeholder={server?.has_oauth_client_secret ? "Leave empty to keep the secret" : ""}
              {...text("oauth_client_secret")}
            />
            <TextField label="Authorization URL" type="url" spellCheck={false} {...text("oauth_authorization_url")} />
            <TextField label="Token URL" type="url" spellCheck={false} {...text("oauth_token_url")} />
            <TextField label="Revocation URL" type="url" spellCheck={false} {...text("oauth_revocation_url")} />
            <TextField label="Scopes" hint="With spaces between them" spellCheck={false} {...text("oauth_scopes")} />
          </div>
        </Part>
      )}
    </>
  );
}

function Headers({ form, set, error }: PartProps & { error: string | undefined }) {
  const change = (at: number, more: Partial<McpForm["headers"][number]>) =>
    set(
      "headers",
      form.headers.map((one, index) => (index === at ? { ...one, ...more } : one)),
    );
  return (
    <fieldset className="flex flex-col gap-2">
      <legend className="mb-1 font-medium">Headers</legend>
      {form.headers.map((one, index) => (
        <div key={index} className="flex items-start gap-2">
          <input
            aria-label={`Name of header ${index + 1}`}
            className="min-h-9 min-w-0 flex-1 rounded-lg border border-control bg-bg1 px-3"
            value={one.name}
            onChange={(event) => change(index, { name: event.target.value, isStored: false })}
          />
          <input
            aria-label={`Value of header ${index + 1}`}
            type="password"
            autoComplete="off"
            placeholder={one.isStored ? "Leave empty to keep it" : ""}
            className="min-h-9 min-w-0 flex-1 rounded-lg border border-control bg-bg1 px-3"
            value={one.value}
            onChange={(event) => change(index, { value: event.target.value })}
          />
          <IconButton
            label={`Remove header ${index + 1}`}
            onClick={() =>
              set(
                "headers",
                form.headers.filter((_, at) => at !== index),
              )
            }
          >
            <X />
          </IconButton>
        </div>
      ))}
      {error && <p className="text-small text-danger">{error}</p>}
      <Button
        size="small"
        className="self-start"
        onClick={() => set("headers", [...form.headers, { name: "", value: "", isStored: false }])}
      >
        <Plus aria-hidden className="size-3.5" /> Add a header
      </Button>
    </fieldset>
  );
}

function Availabilities({ form, set, isOwn }: PartProps & { isOwn: boolean }) {
  return (
    <>
      <Switch
        label="Enabled"
        hint="Chats do not use a server that is off."
        checked={form.enabled}
        onChange={(on) => set("enabled", on)}
      />
      <Select
        label="In chats"
        value={form.availability}
        onChange={(next) => set("availability", next as Availability)}
        options={[
          { value: "default_off", label: "Off, until it is switched on in the chat" },
          { value: "default_on", label: "On in new chats, can be switched off" },
          ...(isOwn ? [] : [{ value: "force_on", label: "Always on" }]),
        ]}
      />
    </>
  );
}

const ROLES: { value: UserRole; label: string }[] = [
  { value: "member", label: "Members" },
  { value: "admin", label: "Administrators" },
  { value: "auditor", label: "Auditors" },
];

function Roles({ form, set }: PartProps) {
  return (
    <fieldset>
      <legend className="font-medium">Only for</legend>
      <p className="mb-1 text-small text-muted">
        Everyone may use the server if neither a role nor a person is chosen here.
      </p>
      <div className="flex flex-wrap gap-x-5">
        {ROLES.map((role) => (
          <label key={role.value} className="flex items-center gap-2 pointer-coarse:min-h-11">
            <input
              type="checkbox"
              className="accent-(--accent-color)"
              checked={form.allowed_roles.includes(role.value)}
              onChange={(event) =>
                set(
                  "allowed_roles",
                  event.target.checked
                    ? [...form.allowed_roles, role.value]
                    : form.allowed_roles.filter((one) => one !== role.value),
                )
              }
            />
            {role.label}
          </label>
        ))}
      </div>
    </fieldset>
  );
}

/** People who may use the server, besides those with a chosen role. */
function Users({ form, set, error }: PartProps & { error: string | undefined }) {
  const ids = form.allowed_users;
  return (
    <div>
      <FindPeople label="And for these people" known={ids} onPick={(id) => set("allowed_users", [...ids, id])} />
      <ul aria-label="People who may use the server" className="mt-1 flex flex-col empty:hidden">
        {ids.map((id) => (
          <AllowedUser
            key={id}
            id={id}
            onRemove={() =>
              set(
                "allowed_users",
                ids.filter((one) => one !== id),
              )
            }
          />
        ))}
      </ul>
      <FieldNote id="allowed-users-note" error={error} />
    </div>
  );
}

function AllowedUser({ id, onRemove }: { id: string; onRemove: () => void }) {
  const { data, isError } = useQuery({ queryKey: ["user", id], queryFn: () => getUser(id), retry: false });
  const name = data ? data.name || data.username : isError ? "A deleted account" : "";
  return (
    <li className="flex items-center gap-2 py-1">
      <span className="min-w-0 flex-1 truncate">
        {name} {data && <span className="text-muted">@{data.username}</span>}
      </span>
      <IconButton label={`Remove ${data?.username ?? name}`} size="small" onClick={onRemove}>
        <X />
      </IconButton>
    </li>
  );
}

/** The tools that the server had when it was asked last, each with a switch. */
function Tools({ server, form, set }: PartProps & { server: McpServerView }) {
  const { data } = useMcpTools(server.id);
  const ask = useMutation({ mutationFn: () => runMcpTest(server) });
  const problem = ask.error ? sentence(ask.error) : ask.data?.error?.message;
  if (!data) return null;
  const live = data.items.map((one) => one.name);
  // Names of the lists that the server does not have now are kept, and can be removed here.
  const listed = [...form.tool_allow_list, ...form.tool_deny_list].filter((name) => !live.includes(name));
  const rows = [...data.items, ...[...new Set(listed)].map((name) => ({ name, description: "Not there now." }))];
  const on = rows.filter((one) => isOffered(form, one.name)).length;
  return (
    <Part title={rows.length > 0 ? `Tools: ${on} of ${rows.length} are on` : "Tools"}>
      {rows.length === 0 ? (
        <p className="text-muted">Not known yet.</p>
      ) : (
        <>
          <Choices
            label="New tools of the server"
            value={form.only_allowed ? "off" : "on"}
            onChange={(next) => set("only_allowed", next === "off")}
            options={[
              { value: "on", label: "New tools are on", hint: "All tools except those that are off below." },
              { value: "off", label: "New tools are off", hint: "Only the tools that are on below." },
            ]}
          />
          <ul aria-label="Tools" className="flex max-h-80 flex-col gap-1 overflow-y-auto">
            {rows.map((one) => (
              <li key={one.name}>
                <Switch
                  label={one.name}
                  hint={<span className="line-clamp-2">{one.description}</span>}
                  checked={isOffered(form, one.name)}
                  onChange={(isOn) => {
                    const lists = withTool(form, one.name, isOn);
                    set("tool_allow_list", lists.tool_allow_list);
                    set("tool_deny_list", lists.tool_deny_list);
                  }}
                />
              </li>
            ))}
          </ul>
        </>
      )}
      {problem && <Notice kind="error">{problem}</Notice>}
      <Button size="small" className="self-start" disabled={ask.isPending} onClick={() => ask.mutate()}>
        {ask.isPending ? "Asking" : "Ask the server for its tools"}
      </Button>
    </Part>
  );
}
