import { useMutation } from "@tanstack/react-query";
import { type FormEvent, useState } from "react";
import { createModelConfig, createProvider, listProviders, patchProvider } from "@/api/admin";
import { ApiError, sentence } from "@/api/errors";
import type { ProviderType, ProviderView } from "@/api/types.gen";
import { attempt, TryFailed } from "@/state/provider_try";
import { queryClient } from "@/state/queries";
import { Button } from "@/ui/button";
import { TextField } from "@/ui/field";
import { Notice } from "@/ui/notice";
import { Choices } from "@/ui/radio_choices";
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
  const given = {
    type,
    ...(key.trim() ? { api_key: key.trim() } : {}),
    ...(baseUrl.trim() ? { base_url: baseUrl.trim() } : {}),
  };
  const save = async () => {
    const provider = await saveProvider(type, key.trim(), baseUrl.trim());
    if (model.trim())
      await createModelConfig({
        provider_id: provider.id,
        model: model.trim(),
        context_limit: CONTEXT_LIMIT,
        is_default: true,
      });
    await queryClient.invalidateQueries({ queryKey: ["models"] });
  };
  const connect = useMutation({ mutationFn: () => attempt(given) });
  const test = useMutation({
    mutationFn: () => attempt({ ...given, model: model.trim() }).then(save),
    onSuccess: onDone,
  });
  const saveAnyway = useMutation({ mutationFn: save, onSuccess: onDone });
  const failed = saveAnyway.error ?? test.error ?? connect.error;
  const refused = failed instanceof ApiError ? failed : null;
  const isShown =
    refused !== null && Boolean(refused.field("api_key") ?? (hasAddress(type) && refused.field("base_url")));
  const isTried = failed instanceof TryFailed;
  const busy = connect.isPending || test.isPending || saveAnyway.isPending;
  // A server without a list of models can still be tested with the id of one.
  const asksId = connect.error instanceof TryFailed && connect.data === undefined;

  function change(set: (value: string) => void, value: string) {
    set(value);
    connect.reset();
    test.reset();
    saveAnyway.reset();
  }

  function onSubmit(event: FormEvent) {
    event.preventDefault();
    saveAnyway.reset();
    if (model.trim() && (connect.data || asksId)) test.mutate();
    else {
      test.reset();
      connect.mutate();
    }
  }

  return (
    <form onSubmit={onSubmit} noValidate className="flex flex-col gap-4">
      {hasAddress(type) && (
        <TextField
          label="Base URL"
          type="url"
          required
          placeholder="http://127.0.0.1:11434/v1"
          value={baseUrl}
          onChange={(event) => change(setBaseUrl, event.target.value)}
          error={refused?.field("base_url")}
        />
      )}
      <TextField
        label="API key"
        type="password"
        autoComplete="off"
        required={!hasAddress(type)}
        value={key}
        onChange={(event) => change(setKey, event.target.value)}
        hint="Stored encrypted after a successful test; never shown again."
        error={refused?.field("api_key")}
      />
      {connect.data && connect.data.length > 0 && (
        <Select
          label="Model"
          value={model}
          onChange={(id) => {
            setModel(id);
            test.reset();
          }}
          options={connect.data.map((id) => ({ value: id, label: id }))}
          placeholder="Choose a model"
        />
      )}
      {(asksId || connect.data?.length === 0) && (
        <TextField
          label="Model id (optional)"
          autoComplete="off"
          autoCapitalize="none"
          spellCheck={false}
          value={model}
          onChange={(event) => setModel(event.target.value)}
          hint="To test a model that the server does not list."
        />
      )}
      {failed && !isShown && (
        <Notice kind="error">
          {sentence(failed)}
          {isTried && " Nothing was saved."}
        </Notice>
      )}
      <Button
        type="submit"
        kind="primary"
        className="h-9"
        disabled={busy || (connect.data !== undefined && model.trim() === "")}
      >
        {connect.data || (asksId && model.trim())
          ? test.isPending
            ? "Testing"
            : "Test and continue"
          : connect.isPending
            ? "Connecting"
            : "Connect"}
      </Button>
      {isTried && (
        <Button disabled={busy} onClick={() => saveAnyway.mutate()}>
          Save anyway
        </Button>
      )}
    </form>
  );
}

/** Whether the address is asked for. Other types have a fixed one. */
const hasAddress = (type: Kind) => type === "openai_compat";
