import { useMutation, useQuery } from "@tanstack/react-query";
import { useState } from "react";
import { Link } from "react-router";
import { createProvider, deleteProvider, listProviders, patchProvider, testProvider } from "@/api/admin";
import { ApiError, sentence } from "@/api/errors";
import type { ProviderCreate, ProviderType, ProviderView } from "@/api/types.gen";
import { fields } from "@/chat/tool_texts";
import { useSelf } from "@/state/login_session";
import { attempt, TryFailed } from "@/state/provider_try";
import { keys, queryClient } from "@/state/queries";
import { Button } from "@/ui/button";
import { Confirm, Dialog } from "@/ui/dialog";
import { TextField } from "@/ui/field";
import { Notice } from "@/ui/notice";
import { Ago } from "@/ui/relative_time";
import { Select } from "@/ui/select";
import { Spinner } from "@/ui/spinner";
import { Switch } from "@/ui/switch";
import { toast } from "@/ui/toast";
import { Table } from "./responsive_table";
import { Section } from "./settings_form";

export const PROVIDERS_KEY = ["providers"];

export const TYPES: { value: ProviderType; label: string }[] = [
  { value: "anthropic", label: "Anthropic" },
  { value: "openai", label: "OpenAI" },
  { value: "openai_compat", label: "OpenAI-compatible" },
  { value: "azure_openai", label: "Azure OpenAI" },
  { value: "openrouter", label: "OpenRouter" },
  { value: "google", label: "Google" },
  { value: "bedrock", label: "Amazon Bedrock" },
  { value: "bridge", label: "Other, through the bridge" },
  { value: "scripted", label: "Offline model" },
];
/** The types that work without an API key. */
const KEYLESS: ReadonlySet<string> = new Set(["bedrock", "google", "bridge", "openai_compat", "scripted"]);
const typeName = (type: string) => TYPES.find((one) => one.value === type)?.label ?? type;

function changed() {
  void queryClient.invalidateQueries({ queryKey: PROVIDERS_KEY });
  void queryClient.invalidateQueries({ queryKey: keys.models });
}

type TestState = { kind: "running" } | { kind: "ok" | "error"; text: string; at: string };

/** The result of the last test of a provider, below its name. A new test replaces it. */
function TestResult({ state }: { state: TestState | undefined }) {
  return (
    <span role="status" className="block text-small [overflow-wrap:anywhere] whitespace-normal empty:hidden">
      {state?.kind === "running" && (
        <span className="inline-flex items-center gap-1.5 text-muted">
          <Spinner className="size-3.5" /> Testing
        </span>
      )}
      {state && state.kind !== "running" && (
        <>
          <span className={state.kind === "ok" ? "text-ok" : "text-danger"}>{state.text}</span>
          <span className="text-muted">
            {" "}
            <Ago at={state.at} />
          </span>
        </>
      )}
    </span>
  );
}

/** The model providers: address, key, and who may use which key. */
export function Providers() {
  const isAdmin = useSelf().role === "admin";
  const { data, error } = useQuery({ queryKey: PROVIDERS_KEY, queryFn: listProviders });
  const [editing, setEditing] = useState<ProviderView | "new" | null>(null);
  const [deleting, setDeleting] = useState<ProviderView | null>(null);
  const [tests, setTests] = useState<Record<string, TestState>>({});
  const test = async (one: ProviderView) => {
    const show = (state: TestState) => setTests((old) => ({ ...old, [one.id]: state }));
    show({ kind: "running" });
    try {
      const probe = await testProvider(one.id);
      const at = new Date().toISOString();
      if (probe.ok) show({ kind: "ok", at, text: `Works: answered in ${(probe.latency_ms / 1000).toFixed(1)} s` });
      else show({ kind: "error", at, text: probe.error?.message ?? "It did not answer." });
    } catch (failure) {
      show({ kind: "error", at: new Date().toISOString(), text: sentence(failure) });
    }
  };
  const remove = useMutation({
    mutationFn: (one: ProviderView) => deleteProvider(one.id),
    onSuccess: changed,
    onError: (failure) => toast(sentence(failure), { kind: "error" }),
  });
  return (
    <Section text="Keys are stored encrypted and never shown.">
      <p className="text-muted">
        The models of a provider are added in{" "}
        <Link to="/settings/models" className="text-accent underline">
          Models
        </Link>
        .
      </p>
      {error && <Notice kind="error">{sentence(error)}</Notice>}
      {isAdmin && (
        <Button kind="primary" className="self-start" onClick={() => setEditing("new")}>
          Add provider
        </Button>
      )}
      <Table
        label="Providers"
        rows={data?.items ?? []}
        keyOf={(one) => one.id}
        empty="No providers yet."
        columns={[
          {
            title: "Name",
            cell: (one) => (
              <>
                <span className="font-medium">{one.display_name || one.name}</span>
                {!one.enabled && <span className="ml-2 text-muted">off</span>}
                <TestResult state={tests[one.id]} />
              </>
            ),
          },
          { title: "Type", cell: (one) => typeName(one.type) },
          { title: "Key", cell: (one) => (one.has_key ? "Set" : one.allow_user_key ? "Users' own" : "None") },
          {
            title: "",
            right: true,
            cell: (one) =>
              isAdmin && (
                <span className="inline-flex gap-1.5">
                  <Button size="small" disabled={tests[one.id]?.kind === "running"} onClick={() => void test(one)}>
                    Test
                  </Button>
                  {one.source === "env" ? (
                    <span className="self-center text-small text-muted">by the environment</span>
                  ) : (
                    <>
                      <Button size="small" onClick={() => setEditing(one)}>
                        Edit
                      </Button>
                      <Button size="small" kind="danger" onClick={() => setDeleting(one)}>
                        Delete
                      </Button>
                    </>
                  )}
                </span>
              ),
          },
        ]}
      />
      {editing && <ProviderDialog provider={editing === "new" ? null : editing} onClose={() => setEditing(null)} />}
      <Confirm
        open={deleting !== null}
        onOpenChange={() => setDeleting(null)}
        title={`Delete ${deleting?.display_name || deleting?.name}?`}
        text="Its models cannot be used any more. Chats keep their messages."
        action="Delete"
        danger
        onConfirm={() => deleting && remove.mutate(deleting)}
      />
    </Section>
  );
}

/** The fields that show their errors themselves. */
const SHOWN = ["name", "display_name", "base_url", "api_key"] as const;

interface Form {
  type: ProviderType;
  name: string;
  display_name: string;
  base_url: string;
  api_key: string;
  enabled: boolean;
  central_key_enabled: boolean;
  allow_user_key: boolean;
}

/** Return whether a test would tell something: the provider is new, or its address or key changes. */
function needsTry(form: Form, provider: ProviderView | null): boolean {
  // Users bring their own keys, so there is nothing to test with yet.
  const hasKey = form.api_key !== "" || provider?.has_key || KEYLESS.has(form.type);
  if (!hasKey && form.allow_user_key) return false;
  return provider === null || form.api_key !== "" || form.base_url !== (provider.base_url ?? "");
}

/** The form of a provider. It is tested before it is stored, unless the user saves it anyway. */
function ProviderDialog({ provider, onClose }: { provider: ProviderView | null; onClose: () => void }) {
  const [form, setForm] = useState<Form>({
    type: (provider?.type ?? "anthropic") as ProviderType,
    name: provider?.name ?? "",
    display_name: provider?.display_name ?? "",
    base_url: provider?.base_url ?? "",
    api_key: "",
    enabled: provider?.enabled ?? true,
    central_key_enabled: provider?.central_key_enabled ?? true,
    allow_user_key: provider?.allow_user_key ?? false,
  });
  const [model, setModel] = useState("");
  const isTried = needsTry(form, provider);
  const save = useMutation({
    mutationFn: async ({ anyway }: { anyway: boolean }) => {
      const { type, api_key, base_url, ...rest } = form;
      const access = { base_url: base_url || null, ...(api_key ? { api_key } : {}) };
      if (isTried && !anyway) {
        const stored = provider ? { provider_id: provider.id } : {};
        await attempt({ type, ...stored, ...access, ...(model.trim() ? { model: model.trim() } : {}) });
      }
      const body = { ...rest, ...access };
      return provider ? patchProvider(provider.id, body) : createProvider({ ...body, type } as ProviderCreate);
    },
    onSuccess: () => {
      changed();
      onClose();
    },
  });
  const refused = save.error instanceof ApiError ? save.error : null;
  const hasFailed = save.error instanceof TryFailed;
  const headers = Object.keys(fields(provider?.options.headers));
  const set = <K extends keyof Form>(name: K, value: Form[K]) => {
    setForm((old) => ({ ...old, [name]: value }));
    save.reset();
  };
  const text = (name: "name" | "display_name" | "base_url" | "api_key") => ({
    value: form[name],
    onChange: (event: { target: { value: string } }) => set(name, event.target.value),
    error: refused?.field(name),
  });
  return (
    <Dialog
      open
      onOpenChange={onClose}
      title={provider ? "Edit provider" : "Add provider"}
      footer={
        <>
          <Button onClick={onClose}>Cancel</Button>
          {hasFailed && (
            <Button disabled={save.isPending} onClick={() => save.mutate({ anyway: true })}>
              Save anyway
            </Button>
          )}
          <Button kind="primary" disabled={save.isPending} onClick={() => save.mutate({ anyway: false })}>
            {isTried ? (save.isPending ? "Testing" : "Test and save") : "Save"}
          </Button>
        </>
      }
    >
      <div className="flex flex-col gap-4">
        {save.error && !SHOWN.some((name) => refused?.field(name)) && (
          <Notice kind="error">
            {sentence(save.error)}
            {hasFailed && " Nothing was saved."}
          </Notice>
        )}
        {!provider && (
          <Select
            label="Type"
            value={form.type}
            onChange={(type) => set("type", type as ProviderType)}
            options={TYPES}
          />
        )}
        <TextField label="Name" hint="Lowercase letters, digits and hyphens." {...text("name")} />
        <TextField label="Shown as (optional)" {...text("display_name")} />
        <TextField label="Base URL" placeholder="The provider's own" {...text("base_url")} />
        <TextField
          label="API key"
          type="password"
          autoComplete="off"
          placeholder={provider?.has_key ? "Leave empty to keep the key" : ""}
          {...text("api_key")}
        />
        {(hasFailed || model !== "") && (
          <TextField
            label="Model id for the test (optional)"
            autoComplete="off"
            autoCapitalize="none"
            spellCheck={false}
            value={model}
            onChange={(event) => setModel(event.target.value)}
            hint="For a provider that does not list its models: this model gets a short message."
          />
        )}
        {headers.length > 0 && (
          <p className="text-small [overflow-wrap:anywhere] text-muted">
            With every request it gets the {headers.length === 1 ? "header" : "headers"} {headers.join(", ")}. The
            values are stored encrypted and never shown.
          </p>
        )}
        <Switch label="Enabled" checked={form.enabled} onChange={(on) => set("enabled", on)} />
        <Switch
          label="Share this API key with all users"
          hint="Their calls are billed to the account of this key."
          checked={form.central_key_enabled}
          onChange={(on) => set("central_key_enabled", on)}
        />
        <Switch
          label="Let users add their own API keys"
          hint="Calls with a user's key are billed to that user's account."
          checked={form.allow_user_key}
          onChange={(on) => set("allow_user_key", on)}
        />
      </div>
    </Dialog>
  );
}
