import { ApiError, Unreachable } from "@/api/errors";
import { keyHeaders, sessionKey } from "@/api/session_key";
import type { ErrorBody } from "@/api/types.gen";
import { reasonHeaders } from "./access_reasons";

export type Query = Record<string, string | number | boolean | null | undefined>;

export interface RequestOptions {
  query?: Query;
  body?: unknown;
  headers?: Record<string, string>;
  signal?: AbortSignal;
  /** Complete the request even if the page is closed. */
  keepalive?: boolean;
}

type Method = "GET" | "POST" | "PUT" | "PATCH" | "DELETE";

const BASE = "/api/v1";

interface Listeners {
  /** Called when the session has ended. The user signs in again in a dialog. */
  signedOut: () => void;
  /** Called with the build of the web application that the server reports. */
  build: (id: string) => void;
}

const listeners: Listeners = { signedOut: () => {}, build: () => {} };

/** Set the listeners for events that any response may report. Called once, by the shell. */
export function listen(given: Partial<Listeners>): void {
  Object.assign(listeners, given);
}

/** Report the end of the session. Used by the stream client, which has its own connections. */
export function tellSignedOut(): void {
  listeners.signedOut();
}

/** Return an address such as `/chats/x?limit=5`. Values are encoded; undefined values are omitted. */
export function address(path: string, query: Query = {}): string {
  const pairs = Object.entries(query).filter(([, value]) => value !== undefined && value !== null && value !== "");
  const search = new URLSearchParams(pairs.map(([key, value]) => [key, String(value)])).toString();
  return `${BASE}${path}${search ? `?${search}` : ""}`;
}

/** Send one request. Throws `ApiError` if the server refuses it, and `Unreachable` if no response arrives. */
export async function request<T>(method: Method, path: string, options: RequestOptions = {}): Promise<T> {
  const { query, body, headers, signal, keepalive } = options;
  const response = await send(address(path, query), {
    method,
    credentials: "same-origin",
    headers: {
      ...(body === undefined ? {} : { "Content-Type": "application/json" }),
      ...(method === "GET" ? reasonHeaders(path) : {}),
      ...headers,
    },
    ...(body === undefined ? {} : { body: JSON.stringify(body) }),
    ...(signal ? { signal } : {}),
    ...(keepalive ? { keepalive } : {}),
  });
  return read<T>(response, path);
}

interface Early {
  requests: Record<string, Promise<Response>>;
  socket: { url: string; socket: WebSocket; heard: Event[] } | null;
}

declare global {
  /** Requests and sockets that theme.js started before this code was loaded. */
  var rookeryEarly: Early | undefined;
}

/** Return the response of a request that theme.js started. Each is used once; later requests load newer data. */
function takeEarly(url: string): Promise<Response> | null {
  const requests = globalThis.rookeryEarly?.requests;
  const response = requests?.[url];
  if (!requests || !response) return null;
  delete requests[url];
  return response;
}

/** Return a socket that theme.js opened. Messages it has received are delivered again once a listener is attached. */
export function takeEarlySocket(url: string): WebSocket | null {
  const early = globalThis.rookeryEarly;
  const found = early?.socket;
  if (!early || found?.url !== url) return null;
  early.socket = null;
  const { socket, heard } = found;
  if (socket.readyState > WebSocket.OPEN) return null;
  queueMicrotask(() => {
    for (const event of heard) {
      if (event instanceof MessageEvent) socket.onmessage?.(event);
      else socket.onopen?.(event);
    }
  });
  return socket;
}

/** Drop early requests that were not used, because another page is shown. */
export function dropEarly(): void {
  globalThis.rookeryEarly?.socket?.socket.close();
  globalThis.rookeryEarly = undefined;
}

async function send(url: string, init: RequestInit): Promise<Response> {
  try {
    // Early requests have no options, so a request with options cannot use one.
    const isPlain = init.method === "GET" && Object.keys(init.headers ?? {}).length === 0;
    const key = sessionKey();
    const response = await ((isPlain && takeEarly(url)) || fetchWithKey(url, init));
    // Another tab has signed in meanwhile: the cookie and the key of this request belong to different sessions.
    if (response.status === 401 && sessionKey() !== key) return await fetchWithKey(url, init);
    return response;
  } catch (error) {
    if (error instanceof DOMException && error.name === "AbortError") throw error;
    throw new Unreachable(error);
  }
}

function fetchWithKey(url: string, init: RequestInit): Promise<Response> {
  return fetch(url, { ...init, headers: { ...(init.headers as Record<string, string>), ...keyHeaders() } });
}

async function read<T>(response: Response, path: string): Promise<T> {
  const build = response.headers.get("X-Rookery-Build");
  if (build) listeners.build(build);
  if (response.ok) {
    if (response.status === 204 || response.headers.get("Content-Length") === "0") return undefined as T;
    return (await response.json()) as T;
  }
  throw await refusal(response, path);
}

async function refusal(response: Response, path: string): Promise<ApiError> {
  const after = Number(response.headers.get("Retry-After"));
  let body: Partial<ErrorBody> = {};
  try {
    body = (await response.json()) as Partial<ErrorBody>;
  } catch {
    // The body is an error page of a proxy; only the status is used.
  }
  const error = new ApiError(response.status, body, Number.isFinite(after) && after > 0 ? after * 1000 : null);
  // A wrong password is also 401; the login form shows it.
  if (error.status === 401 && !path.startsWith("/auth/") && path !== "/setup") listeners.signedOut();
  return error;
}

/** Send a GET request and return the response as plain text. */
export async function getText(path: string): Promise<string> {
  const response = await send(address(path), { credentials: "same-origin" });
  if (!response.ok) throw await refusal(response, path);
  return response.text();
}

export const get = <T>(path: string, query?: Query, signal?: AbortSignal): Promise<T> =>
  request<T>("GET", path, { ...(query ? { query } : {}), ...(signal ? { signal } : {}) });
export const post = <T>(path: string, body?: unknown, headers?: Record<string, string>): Promise<T> =>
  request<T>("POST", path, { ...(body === undefined ? {} : { body }), ...(headers ? { headers } : {}) });
export const put = <T>(path: string, body: unknown): Promise<T> => request<T>("PUT", path, { body });
export const patch = <T>(path: string, body: unknown): Promise<T> => request<T>("PATCH", path, { body });
export const del = <T = void>(path: string, query?: Query): Promise<T> =>
  request<T>("DELETE", path, query ? { query } : {});
