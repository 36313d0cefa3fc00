/** Format micro-dollars: `$0.42`, or `<$0.01` for smaller amounts. */
export function dollars(micros: number): string {
  if (micros > 0 && micros < 10_000) return "<$0.01";
  return new Intl.NumberFormat("en-US", { style: "currency", currency: "USD" }).format(micros / 1_000_000);
}

/** Format a number of tokens: `12.3k`. */
export function compact(count: number): string {
  return new Intl.NumberFormat("en-US", { notation: "compact", maximumFractionDigits: 1 }).format(count);
}
