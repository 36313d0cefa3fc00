/**
 * The session key. A session is its cookie together with this key: browsers send the cookie to every port of the host,
 * while this storage belongs to our origin alone. theme.js reads it by the same name.
 */
const NAME = "rookery.session_key";
const HEADER = "Rookery-Session-Key";

// For this tab only, if the storage is not available.
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
    // The key stays in memory. After a reload the user signs in again.
  }
}

export function forgetSessionKey(): void {
  inMemory = null;
  try {
    localStorage.removeItem(NAME);
  } catch {
    // The storage is not available.
  }
}

/** Return the header that each request of the session sends. */
export function keyHeaders(): Record<string, string> {
  const key = sessionKey();
  return key === null ? {} : { [HEADER]: key };
}

/** Return the subprotocols for a WebSocket, which cannot send headers. The server selects the first. */
export function socketProtocols(): string[] {
  const key = sessionKey();
  return key === null ? ["rookery.v1"] : ["rookery.v1", `rookery.session.${key}`];
}

/** Call the listener when another tab signs in (with the new key) or out (with null). */
export function onSessionKey(hear: (key: string | null) => void): void {
  window.addEventListener("storage", (event) => {
    // An event without a key means that the whole storage was cleared.
    if (event.storageArea === localStorage && (event.key === NAME || event.key === null)) hear(sessionKey());
  });
}
