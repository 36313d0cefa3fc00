/** Trying a provider before it is stored, so that a wrong key or address is noticed by the one who types it. */
import { tryProvider } from "@/api/admin";
import type { ProviderTry } from "@/api/types.gen";

/** The test of the provider failed. Nothing is stored. */
export class TryFailed extends Error {}

/** Try a provider, and return the models that it lists. With `model`, that model gets a short message instead. */
export async function attempt(given: ProviderTry): Promise<string[]> {
  const found = await tryProvider(given);
  if (!found.ok) throw new TryFailed(`${found.error?.message ?? "There was no answer."} Tried: ${found.tried}.`);
  return found.models;
}
