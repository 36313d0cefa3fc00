/** Delays between connection attempts, and the meaning of close codes (docs/api/streams.md). All clients use the same. */
const FIRST_MS = 1_000;
const MOST_MS = 10_000;
const JITTER = 0.3;

/** Return the delay in milliseconds before an attempt, counted from 0. `random` is in [0, 1). */
export function backoff(attempt: number, random: number): number {
  const plain = Math.min(FIRST_MS * 2 ** Math.min(attempt, 16), MOST_MS);
  return Math.min(plain * (1 - JITTER + 2 * JITTER * random), MOST_MS);
}

/** The action of a client after a connection has ended. */
export type Ending = "reconnect" | "stop" | "signed_out" | "forbidden" | "gone" | "refused";

export function ending(code: number): Ending {
  switch (code) {
    case 1000:
      return "stop";
    case 4401:
      return "signed_out";
    case 4403:
      return "forbidden";
    case 4404:
      return "gone";
    case 1008:
    case 1009:
    case 4429:
      return "refused";
    default:
      return "reconnect";
  }
}

/** Return what a client does after a stream request was refused with this status. */
export function endingOfStatus(status: number): Ending {
  if (status === 401) return "signed_out";
  if (status === 403) return "forbidden";
  if (status === 404) return "gone";
  // 409: the data of the stream does not exist, and retrying does not help.
  return status === 400 || status === 409 ? "refused" : "reconnect";
}
