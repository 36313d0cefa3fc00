import { address, del, get, patch, post, put } from "@/api/http";
import type {
  AffectedView,
  ItemsOfJobView,
  ItemsOfModelConfigView,
  ItemsOfProviderView,
  ItemsOfReplicaView,
  ItemsOfUpstreamModel,
  ModelConfigChange,
  ModelConfigCreate,
  ModelConfigView,
  NewUser,
  NewUserBody,
  OneTimeLink,
  PageOfEntry,
  PageOfUser,
  ProbeView,
  ProviderChange,
  ProviderCreate,
  ProviderTry,
  ProviderView,
  TryView,
  UsageReportView,
  User,
  UserPatchBody,
} from "@/api/types.gen";

const one = (base: string, id: string, rest = "") => `${base}/${encodeURIComponent(id)}${rest}`;

export const listProviders = () => get<ItemsOfProviderView>("/model-providers");
export const createProvider = (body: ProviderCreate) => post<ProviderView>("/model-providers", body);
/** Try a provider that is not stored: list its models, or send a short message to one. */
export const tryProvider = (body: ProviderTry) => post<TryView>("/model-providers/try", body);
export const patchProvider = (id: string, body: ProviderChange) =>
  patch<ProviderView>(one("/model-providers", id), body);
export const deleteProvider = (id: string) => del(one("/model-providers", id));
export const testProvider = (id: string) => post<ProbeView>(one("/model-providers", id, "/test"));
export const listUpstreamModels = (id: string) =>
  get<ItemsOfUpstreamModel>(one("/model-providers", id, "/upstream-models"));

export const listModelConfigs = () => get<ItemsOfModelConfigView>("/model-configs");
export const createModelConfig = (body: ModelConfigCreate) => post<ModelConfigView>("/model-configs", body);
export const patchModelConfig = (id: string, body: ModelConfigChange) =>
  patch<ModelConfigView>(one("/model-configs", id), body);
export const deleteModelConfig = (id: string) => del(one("/model-configs", id));
export const forgetModelWindow = (id: string) => del(`${one("/model-configs", id)}/learned-window`);

export const getGroup = <T>(group: string) => get<T>(`/settings/${group}`);
export const countAffected = (query: { auto_archive_days?: number; retention_days?: number }) =>
  get<AffectedView>("/settings/chats/affected", query);
export const putGroup = <T>(group: string, body: unknown) => put<T>(`/settings/${group}`, body);

export const listUsers = (q: string, cursor?: string) => get<PageOfUser>("/users", { q, cursor });
export const getUser = (id: string) => get<User>(one("/users", id));
export const createUser = (body: NewUserBody) => post<NewUser>("/users", body);
export const patchUser = (id: string, body: UserPatchBody) => patch<User>(one("/users", id), body);
export const deleteUser = (id: string) => del(one("/users", id));
export const resetPassword = (id: string) => post<OneTimeLink>(one("/users", id, "/reset-password"));

export interface UsageQuery {
  from?: string;
  to?: string;
  group_by: string;
  user?: string;
  [key: string]: string | undefined;
}
export const getUsage = (query: UsageQuery) => get<UsageReportView>("/usage", query);
export const usageCsv = (query: UsageQuery) => address("/usage", { ...query, format: "csv" });

export const listAudit = (query: { action?: string; cursor?: string }) => get<PageOfEntry>("/audit", query);
export const auditCsv = () => address("/audit", { format: "csv", limit: 200 });
export const listReplicas = () => get<ItemsOfReplicaView>("/replicas");
export const listJobs = () => get<ItemsOfJobView>("/jobs");
