import { useMutation, useQuery } from "@tanstack/react-query";
import { useState } from "react";
import {
  createModelConfig,
  deleteModelConfig,
  forgetModelWindow,
  listModelConfigs,
  listProviders,
  listUpstreamModels,
  patchModelConfig,
} from "@/api/admin";
import { ApiError, sentence } from "@/api/errors";
import type { ModelConfigView } from "@/api/types.gen";
import { PROVIDERS_KEY } from "@/features/settings/providers";
import { useSelf } from "@/state/login_session";
import { keys, queryClient } from "@/state/queries";
import { Button } from "@/ui/button";
import { Confirm, Dialog } from "@/ui/dialog";
import { TextField } from "@/ui/field";
import { compact } from "@/ui/money";
import { Notice } from "@/ui/notice";
import { Select } from "@/ui/select";
import { Switch } from "@/ui/switch";
import { toast } from "@/ui/toast";
import { Table } from "./responsive_table";
import { Section } from "./settings_form";

const KEY = ["model-configs"];

function changed() {
  void queryClient.invalidateQueries({ queryKey: KEY });
  void queryClient.invalidateQueries({ queryKey: keys.models });
}

/** The models of this server, with limits and prices. */
export function Models() {
  const isAdmin = useSelf().role === "admin";
  const { data, error } = useQuery({ queryKey: KEY, queryFn: listModelConfigs });
  const { data: providers } = useQuery({ queryKey: PROVIDERS_KEY, queryFn: listProviders });
  const [editing, setEditing] = useState<ModelConfigView | "new" | null>(null);
  const [deleting, setDeleting] = useState<ModelConfigView | null>(null);
  const nameOf = (id: string) => {
    const found = providers?.items.find((one) => one.id === id);
    return found ? found.display_name || found.name : "Deleted provider";
  };
  const remove = useMutation({
    mutationFn: (one: ModelConfigView) => deleteModelConfig(one.id),
    onSuccess: changed,
    onError: (failure) => toast(sentence(failure), { kind: "error" }),
  });
  const makeDefault = useMutation({
    mutationFn: (one: ModelConfigView) => patchModelConfig(one.id, { is_default: true }),
    onSuccess: changed,
    onError: (failure) => toast(sentence(failure), { kind: "error" }),
  });
  return (
    <Section text="New chats use the default model. Users can choose any enabled model.">
      {error && <Notice kind="error">{sentence(error)}</Notice>}
      {isAdmin && (
        <Button kind="primary" className="self-start" onClick={() => setEditing("new")}>
          Add model
        </Button>
      )}
      <Table
        label="Models"
        rows={data?.items ?? []}
        keyOf={(one) => one.id}
        empty={providers?.items.length ? "No models yet." : "No models yet. Add a provider first."}
        columns={[
          {
            title: "Model",
            cell: (one) => (
              <>
                <span className="font-medium">{one.display_name || one.model}</span>
                {one.is_default && <span className="ml-2 rounded-md bg-bg3 px-1.5 text-small">default</span>}
                {!one.enabled && <span className="ml-2 text-muted">off</span>}
              </>
            ),
          },
          { title: "Provider", cell: (one) => nameOf(one.provider_id) },
          { title: "Context", right: true, cell: (one) => <Context config={one} /> },
          { title: "$ in / out", right: true, cell: (one) => priceOf(one) },
          {
            title: "",
            right: true,
            cell: (one) =>
              isAdmin && (
                <span className="inline-flex gap-1.5">
                  {!one.is_default && (
                    <Button size="small" onClick={() => makeDefault.mutate(one)}>
                      Make default
                    </Button>
                  )}
                  <Button size="small" onClick={() => setEditing(one)}>
                    Edit
                  </Button>
                  <Button size="small" kind="danger" onClick={() => setDeleting(one)}>
                    Delete
                  </Button>
                </span>
              ),
          },
        ]}
      />
      {editing && <ModelDialog config={editing === "new" ? null : editing} onClose={() => setEditing(null)} />}
      <Confirm
        open={deleting !== null}
        onOpenChange={() => setDeleting(null)}
        title={`Delete ${deleting?.display_name || deleting?.model}?`}
        text="Chats that used it continue with the default."
        action="Delete"
        danger
        onConfirm={() => deleting && remove.mutate(deleting)}
      />
    </Section>
  );
}

/** The context window of a model: the effective size, and a mark if sources differ. */
function Context({ config }: { config: ModelConfigView }) {
  const { window } = config;
  const others = window.differs ? windowsOf(config).filter(([, tokens]) => tokens !== window.effective) : [];
  return (
    <>
      {compact(window.effective)}
      {others.map(([who, tokens]) => (
        <span key={who} className="block text-small whitespace-normal text-warn">
          {who}: {compact(tokens)}
        </span>
      ))}
    </>
  );
}

/** Return the known sizes of the context window, by source. */
export function windowsOf({ context_limit, window }: ModelConfigView): [string, number][] {
  const learned = window.learned_from === "halving" ? "Guessed after a refusal" : "Named by the provider's refusal";
  const said: [string, number | null][] = [
    ["Configured", context_limit],
    ["Listed in this version of Rookery", window.catalogued ?? null],
    ["Reported by the provider", window.reported ?? null],
    [learned, window.learned ?? null],
  ];
  return said.filter((each): each is [string, number] => each[1] !== null);
}

/** The sizes of the context window in the dialog of a model, and a button to forget the learned size. */
function Windows({ config }: { config: ModelConfigView }) {
  const forget = useMutation({
    mutationFn: () => forgetModelWindow(config.id),
    onSuccess: changed,
    onError: (failure) => toast(sentence(failure), { kind: "error" }),
  });
  if (!config.window.differs && config.window.learned == null) return null;
  return (
    <div className="rounded-md bg-bg2 p-3 text-small">
      <p className="mb-1">
        The model gets at most {config.window.effective.toLocaleString("en")} tokens, the smallest of these:
      </p>
      <ul>
        {windowsOf(config).map(([who, tokens]) => (
          <li key={who}>
            {who}: {tokens.toLocaleString("en")}
          </li>
        ))}
      </ul>
      {config.window.learned != null && (
        <div className="mt-2">
          <Button size="small" onClick={() => forget.mutate()} disabled={forget.isPending || forget.isSuccess}>
            {forget.isSuccess ? "Forgotten" : "Forget the learned size"}
          </Button>
        </div>
      )}
    </div>
  );
}

function ModelDialog({ config, onClose }: { config: ModelConfigView | null; onClose: () => void }) {
  const { data: providers } = useQuery({ queryKey: PROVIDERS_KEY, queryFn: listProviders });
  const [form, setForm] = useState({
    provider_id: config?.provider_id ?? "",
    model: config?.model ?? "",
    display_name: config?.display_name ?? "",
    context_limit: String(config?.context_limit ?? 200_000),
    compression_threshold: String(config?.compression_threshold ?? 70),
    price_input: config?.price_input ?? "",
    price_output: config?.price_output ?? "",
    enabled: config?.enabled ?? true,
  });
  // The only provider is chosen already.
  const only = providers?.items.length === 1 ? (providers.items[0]?.id ?? "") : "";
  const providerId = form.provider_id || only;
  const upstream = useQuery({
    queryKey: ["upstream", providerId],
    queryFn: () => listUpstreamModels(providerId),
    enabled: providerId !== "",
    retry: false,
  });
  const save = useMutation({
    mutationFn: () => {
      const body = {
        ...form,
        provider_id: providerId,
        context_limit: Number(form.context_limit),
        compression_threshold: Number(form.compression_threshold),
        price_input: form.price_input || null,
        price_output: form.price_output || null,
      };
      return config ? patchModelConfig(config.id, body) : createModelConfig(body);
    },
    onSuccess: () => {
      changed();
      onClose();
    },
  });
  const refused = save.error instanceof ApiError ? save.error : null;
  const set = (name: keyof typeof form) => (event: { target: { value: string } }) =>
    setForm((old) => ({ ...old, [name]: event.target.value }));
  return (
    <Dialog
      open
      onOpenChange={onClose}
      title={config ? "Edit model" : "Add model"}
      footer={
        <>
          <Button onClick={onClose}>Cancel</Button>
          <Button kind="primary" disabled={!providerId || save.isPending} onClick={() => save.mutate()}>
            Save
          </Button>
        </>
      }
    >
      <div className="flex flex-col gap-4">
        {save.error && !refused?.fields.length && <Notice kind="error">{sentence(save.error)}</Notice>}
        <Select
          label="Provider"
          value={providerId}
          onChange={(id) => setForm((old) => ({ ...old, provider_id: id }))}
          placeholder="Choose a provider"
          options={(providers?.items ?? []).map((one) => ({ value: one.id, label: one.display_name || one.name }))}
        />
        <TextField
          label="Model"
          list="upstream-models"
          hint={
            upstream.data
              ? `${upstream.data.items.length} are offered by the provider.`
              : upstream.error
                ? `The id that the provider uses. The provider did not send its list of models: ${sentence(upstream.error)}`
                : "The id that the provider uses."
          }
          value={form.model}
          onChange={set("model")}
          error={refused?.field("model")}
        />
        <datalist id="upstream-models">
          {upstream.data?.items.map((one) => (
            <option key={one.id} value={one.id} />
          ))}
        </datalist>
        <TextField
          label="Shown as (optional)"
          value={form.display_name}
          onChange={set("display_name")}
          error={refused?.field("display_name")}
        />
        <div className="grid gap-4 sm:grid-cols-2">
          <TextField
            label="Context, in tokens"
            inputMode="numeric"
            value={form.context_limit}
            onChange={set("context_limit")}
            error={refused?.field("context_limit")}
          />
          <TextField
            label="Compact at, in percent"
            inputMode="numeric"
            value={form.compression_threshold}
            onChange={set("compression_threshold")}
            error={refused?.field("compression_threshold")}
          />
          <TextField
            label="$ per million tokens in"
            inputMode="decimal"
            value={form.price_input}
            onChange={set("price_input")}
            error={refused?.field("price_input")}
          />
          <TextField
            label="$ per million tokens out"
            inputMode="decimal"
            value={form.price_output}
            onChange={set("price_output")}
            error={refused?.field("price_output")}
          />
        </div>
        {config && <Windows config={config} />}
        <Switch label="Enabled" checked={form.enabled} onChange={(on) => setForm((old) => ({ ...old, enabled: on }))} />
      </div>
    </Dialog>
  );
}

/** The prices of a million input and output tokens; a dash if they are not set. */
function priceOf({ price_input, price_output }: ModelConfigView) {
  if (price_input === null && price_output === null) return <span className="text-muted">not set</span>;
  return `${price_input ?? "–"} / ${price_output ?? "–"}`;
}
