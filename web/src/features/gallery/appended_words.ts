const words = new URLSearchParams(location.search).get("words") ?? "";

/**
 * With `?words=TEXT`, append TEXT to every text of a model, tool or user. Single words (states) and times are not
 * changed.
 */
export function said<T>(value: T): T;
export function said(value: unknown): unknown {
  if (words === "" || value === null) return value;
  if (typeof value === "string")
    return /^(?:[a-z_]*|\d{4}-.*Z)$/.test(value) ? value : value.replace(/$/gm, ` ${words}`);
  if (Array.isArray(value)) return value.map((one) => said(one));
  if (typeof value !== "object") return value;
  return Object.fromEntries(Object.entries(value).map(([key, one]) => [key, said(one)]));
}
