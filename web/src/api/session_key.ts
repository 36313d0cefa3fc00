/**
 * The session key. A session is its cookie together with this key: browsers send the cookie to every port of the host,
 * while this storage belongs to our origin alone. theme.js reads it by the same name.
 */
const NAME = "rookery.session_key";
const HEADER = "Rookery-Session-Key";

// For this tab alone, where storage is forbidden.
let inMemory: string | null = null;

export function sessionKey(): string | null {
  try {
    return localStorage.getItem(NAME) ?? inMemory;
  } catch {
    return inMemory;
  }
}

export function keepSessionKey(key: string): void {
  inMemory = key;
  try {
    localStorage.setItem(NAME, key);
    inMemory = null;
  } catch {
    // It stays in memory, and is asked for again after a reload.
  }
}

export function forgetSessionKey(): void {
  inMemory = null;
  try {
    localStorage.removeItem(NAME);
  } catch {
    // There is none.
  }
}

/** What every request of the session says. */
export function keyHeaders(): Record<string, string> {
  const key = sessionKey();
  return key === null ? {} : { [HEADER]: key };
}

/** What a socket offers, which cannot send headers. The server answers with the first. */
export function socketProtocols(): string[] {
  const key = sessionKey();
  return key === null ? ["rookery.v1"] : ["rookery.v1", `rookery.session.${key}`];
}

/** Hear that another tab has signed in, or out: then there is no key. */
export function onSessionKey(hear: (key: string | null) => void): void {
  window.addEventListener("storage", (event) => {
    // All of the storage was cleared where there is no name.
    if (event.storageArea === localStorage && (event.key === NAME || event.key === null)) hear(sessionKey());
  });
}
