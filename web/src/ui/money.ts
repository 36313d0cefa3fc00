const DOLLARS = new Intl.NumberFormat("en-US", { style: "currency", currency: "USD" });
const COMPACT = new Intl.NumberFormat("en-US", { notation: "compact", maximumFractionDigits: 1 });

/** Format micro-dollars: `$0.42`, or `$0.0042` for amounts below a cent. */
export function dollars(micros: number): string {
  if (micros > 0 && micros < 100) return "<$0.0001";
  return micros > 0 && micros < 10_000 ? `$${(micros / 1_000_000).toFixed(4)}` : DOLLARS.format(micros / 1_000_000);
}

/** Return the format for amounts in one list, so that the parts visibly add up: four digits if one of them needs four. */
export function dollarsIn(list: readonly number[]): (micros: number) => string {
  const isFine = list.some((micros) => micros > 0 && micros < 10_000);
  if (!isFine) return dollars;
  return (micros) => (micros > 0 && micros < 100 ? dollars(micros) : `$${(micros / 1_000_000).toFixed(4)}`);
}

/** Format a number of tokens: `12.3K`. */
export function compact(count: number): string {
  return COMPACT.format(count);
}
