import { ApiError, Unreachable } from "@/api/errors";
import { reasonHeaders } from "@/api/reasons";
import { keyHeaders, sessionKey } from "@/api/session_key";
import type { ErrorBody } from "@/api/types.gen";

export type Query = Record<string, string | number | boolean | null | undefined>;

export interface RequestOptions {
  query?: Query;
  body?: unknown;
  headers?: Record<string, string>;
  signal?: AbortSignal;
  /** The page is going away, and the request must outlive it. */
  keepalive?: boolean;
}

type Method = "GET" | "POST" | "PUT" | "PATCH" | "DELETE";

const BASE = "/api/v1";

interface Listeners {
  /** The session is over: sign in again over the page. */
  signedOut: () => void;
  /** The build that the server has, when it says so. */
  build: (id: string) => void;
}

const listeners: Listeners = { signedOut: () => {}, build: () => {} };

/** Be told of what any answer may bring. Called once, by the shell. */
export function listen(given: Partial<Listeners>): void {
  Object.assign(listeners, given);
}

/** The stream client hears of the end of a session as well. */
export function tellSignedOut(): void {
  listeners.signedOut();
}

/** `/chats/x?limit=5` with every value encoded; absent values are left out. */
export function address(path: string, query: Query = {}): string {
  const pairs = Object.entries(query).filter(([, value]) => value !== undefined && value !== null && value !== "");
  const search = new URLSearchParams(pairs.map(([key, value]) => [key, String(value)])).toString();
  return `${BASE}${path}${search ? `?${search}` : ""}`;
}

/** One request. Raises `ApiError` for refusals and `Unreachable` when no answer came. */
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
  /** What theme.js asked for before this code was there. */
  var rookeryEarly: Early | undefined;
}

/** The answer to a request that is under way already. Once, and to the first question: a later one wants a newer one. */
function takeEarly(url: string): Promise<Response> | null {
  const requests = globalThis.rookeryEarly?.requests;
  const response = requests?.[url];
  if (!requests || !response) return null;
  delete requests[url];
  return response;
}

/** A socket that is open or opens already. It tells what it heard so far when its new owner has begun to listen. */
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

/** Nobody came for what was asked for early: another page is shown. */
export function dropEarly(): void {
  globalThis.rookeryEarly?.socket?.socket.close();
  globalThis.rookeryEarly = undefined;
}

async function send(url: string, init: RequestInit): Promise<Response> {
  try {
    // A question that says more than where it goes was not foreseen.
    const isPlain = init.method === "GET" && Object.keys(init.headers ?? {}).length === 0;
    const key = sessionKey();
    const response = await ((isPlain && takeEarly(url)) || fetchWithKey(url, init));
    // Another tab has signed in meanwhile: this request had the cookie of the one session and the key of the other.
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
    // A proxy's page; the status alone has to do.
  }
  const error = new ApiError(response.status, body, Number.isFinite(after) && after > 0 ? after * 1000 : null);
  // Wrong passwords are 401 as well, and are the login form's to show.
  if (error.status === 401 && !path.startsWith("/auth/") && path !== "/setup") listeners.signedOut();
  return error;
}

/** An answer that is plain text. */
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
