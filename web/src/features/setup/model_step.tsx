import { useMutation } from "@tanstack/react-query";
import { type FormEvent, useState } from "react";
import {
  createModelConfig,
  createProvider,
  listProviders,
  listUpstreamModels,
  patchProvider,
  testProvider,
} from "@/api/admin";
import { ApiError, sentence } from "@/api/errors";
import type { ProviderType, ProviderView } from "@/api/types.gen";
import { queryClient } from "@/state/queries";
import { Button } from "@/ui/button";
import { Choices } from "@/ui/choices";
import { TextField } from "@/ui/field";
import { Notice } from "@/ui/notice";
import { Select } from "@/ui/select";

type Kind = "offline" | "anthropic" | "openai" | "openai_compat";

const KINDS: { value: Kind; label: string; hint: string }[] = [
  { value: "offline", label: "Try it offline", hint: "A built-in model that follows a script. No key, no network." },
  { value: "anthropic", label: "Anthropic", hint: "Claude models, with your API key." },
  { value: "openai", label: "OpenAI", hint: "GPT models, with your API key." },
  { value: "openai_compat", label: "Other", hint: "Any server with OpenAI's API, such as Ollama or vLLM." },
];
// Chosen: small enough for every common model.
const CONTEXT_LIMIT = 128_000;

/** The form for a provider with its key and one model, which is tested; or the built-in offline model. */
export function ModelStep({ onDone }: { onDone: () => void }) {
  const [kind, setKind] = useState<Kind>("offline");
  return (
    <div className="flex flex-col gap-4">
      <Choices label="Model" value={kind} onChange={setKind} options={KINDS} />
      {kind === "offline" ? (
        <Button kind="primary" className="h-9" onClick={onDone}>
          Continue
        </Button>
      ) : (
        <ProviderForm key={kind} type={kind} onDone={onDone} />
      )}
      {kind !== "offline" && (
        <Button kind="ghost" onClick={onDone}>
          Skip for now
        </Button>
      )}
    </div>
  );
}

/** Create the provider with this key, or change one that an earlier attempt created. */
async function saveProvider(type: ProviderType, key: string, baseUrl: string): Promise<ProviderView> {
  const name = type.replaceAll("_", "-");
  const change = { ...(key ? { api_key: key } : {}), ...(baseUrl ? { base_url: baseUrl } : {}) };
  const known = (await listProviders()).items.find((one) => one.name === name && one.source !== "env");
  if (known) return patchProvider(known.id, change);
  return createProvider({ type, name, ...change, central_key_enabled: key !== "" || type === "openai_compat" });
}

function ProviderForm({ type, onDone }: { type: Exclude<Kind, "offline">; onDone: () => void }) {
  const [key, setKey] = useState("");
  const [baseUrl, setBaseUrl] = useState("");
  const [model, setModel] = useState("");
  const connect = useMutation({
    mutationFn: async () => {
      const provider = await saveProvider(type, key.trim(), baseUrl.trim());
      const found = await listUpstreamModels(provider.id);
      return { provider, models: found.items.map((one) => one.id).sort() };
    },
  });
  const test = useMutation({
    mutationFn: async (provider: ProviderView) => {
      await createModelConfig({ provider_id: provider.id, model, context_limit: CONTEXT_LIMIT, is_default: true });
      const probe = await testProvider(provider.id);
      if (!probe.ok) throw new Error(probe.error?.message ?? "The model did not answer.");
    },
    onSuccess: async () => {
      await queryClient.invalidateQueries({ queryKey: ["models"] });
      onDone();
    },
  });
  const refused = connect.error instanceof ApiError ? connect.error : null;
  const error = test.error ?? (refused?.fields.length ? null : connect.error);

  function onSubmit(event: FormEvent) {
    event.preventDefault();
    if (connect.data) test.mutate(connect.data.provider);
    else connect.mutate();
  }

  return (
    <form onSubmit={onSubmit} className="flex flex-col gap-4">
      {type === "openai_compat" && (
        <TextField
          label="Base URL"
          type="url"
          required
          placeholder="http://127.0.0.1:11434/v1"
          value={baseUrl}
          onChange={(event) => setBaseUrl(event.target.value)}
          error={refused?.field("base_url")}
        />
      )}
      <TextField
        label="API key"
        type="password"
        autoComplete="off"
        required={type !== "openai_compat"}
        value={key}
        onChange={(event) => setKey(event.target.value)}
        hint="Stored encrypted; never shown again."
        error={refused?.field("api_key")}
      />
      {connect.data && (
        <Select
          label="Model"
          value={model}
          onChange={setModel}
          options={connect.data.models.map((id) => ({ value: id, label: id }))}
          placeholder="Choose a model"
        />
      )}
      {error && <Notice kind="error">{sentence(error)}</Notice>}
      <Button
        type="submit"
        kind="primary"
        className="h-9"
        disabled={connect.isPending || test.isPending || (connect.data !== undefined && model === "")}
      >
        {connect.data
          ? test.isPending
            ? "Testing"
            : "Test and continue"
          : connect.isPending
            ? "Connecting"
            : "Connect"}
      </Button>
    </form>
  );
}
