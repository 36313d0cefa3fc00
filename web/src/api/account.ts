import { get, post, request } from "@/api/http";
import { keepSessionKey } from "@/api/session_key";
import type {
  AccessPage,
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

/** Everything that begins a session answers with its key. */
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
/** Small changes outlive the page: who chooses a theme and reloads means both. */
export const patchPreferences = (body: PreferencesChange) =>
  request<PreferencesView>("PATCH", "/me/settings", { body, keepalive: Object.keys(body).join() === "display" });
export const listOwnAccesses = () => get<AccessPage>("/me/accesses", { limit: 100 });
export const dismissAccessNotice = (through: number) => post<void>("/me/accesses/seen", { through });
export const changePassword = (body: PasswordBody) => post<void>("/auth/password", body);
export const getSpend = () => get<SpendView>("/me/spend");
export const getVersion = () => get<VersionView>("/version");
