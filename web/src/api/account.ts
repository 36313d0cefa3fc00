import { del, get, post, request } from "@/api/http";
import { keepSessionKey } from "@/api/session_key";
import type {
  AccessPage,
  KindBody,
  KindsView,
  KindView,
  LinkBody,
  LoginBody,
  LoginView,
  Me,
  ModelsView,
  PasswordBody,
  PreferencesChange,
  PreferencesView,
  SetupBody,
  SpendView,
  VersionView,
} from "@/api/types.gen";

export const getMe = () => get<Me>("/users/me");

/** Send a request that starts a session, and store the session key of its response. */
async function enter(path: string, body: unknown): Promise<LoginView> {
  const user = await post<LoginView>(path, body);
  keepSessionKey(user.session_key);
  return user;
}

export const login = (body: LoginBody) => enter("/auth/login", body);
export const setUp = (body: SetupBody) => enter("/setup", body);
export const chooseLinkPassword = (body: LinkBody) => enter("/auth/link", body);
export const logout = () => post<void>("/auth/logout");
export const listModels = () => get<ModelsView>("/models");
export const getPreferences = () => get<PreferencesView>("/me/settings");
/** Save preferences. The request continues if the page is reloaded right after a change. */
export const patchPreferences = (body: PreferencesChange) =>
  request<PreferencesView>("PATCH", "/me/settings", { body, keepalive: Object.keys(body).join() === "display" });
export const listOwnAccesses = () => get<AccessPage>("/me/accesses", { limit: 100 });
export const dismissAccessNotice = (through: number) => post<void>("/me/accesses/seen", { through });
export const changePassword = (body: PasswordBody) => post<void>("/auth/password", body);
export const getSpend = () => get<SpendView>("/me/spend");
export const getVersion = () => get<VersionView>("/version");

/** Who can use a kind of subagent: only the user, or everyone. */
export type KindScope = "user" | "deployment";

const kindAt = (name: string) => `/agent-kinds/${encodeURIComponent(name)}`;
export const listKinds = () => get<KindsView>("/agent-kinds");
export const putKind = (name: string, scope: KindScope, body: KindBody) =>
  request<KindView>("PUT", kindAt(name), { query: { scope }, body });
export const deleteKind = (name: string, scope: KindScope) => del(kindAt(name), { scope });
