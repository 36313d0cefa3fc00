/** The debug records of a chat: runs, their steps (model calls), and the attempts (HTTP exchanges) of a step. */
import { fetchBytes } from "@/api/files";
import { address, del, get, post } from "@/api/http";
import type {
  AttemptSummaryView,
  AttemptView,
  BodyView,
  CacheDiagnosis,
  ComparisonView,
  DebugMode,
  NormalizedMessage,
  NormalizedPart,
  NormalizedResponse,
  NormalizedTool,
  NormalizedUsage,
  Place,
  PlacesView,
  RecordingView,
  Replay,
  ReplayAnswer,
  ReplayBody,
  RunDetailView,
  RunKind,
  RunListView,
  RunStatus,
  RunView,
  StepPair,
  StepSummaryView,
  StepView,
} from "@/api/types.gen";

export type { DebugMode, Place, Replay, ReplayBody, RunKind, StepPair };
export type RecordStatus = RunStatus;
export type Recording = RecordingView;
export type Run = RunView;
export type RunDetail = RunDetailView;
export type RunPage = RunListView;
export type StepSummary = StepSummaryView;
export type Step = StepView;
export type AttemptSummary = AttemptSummaryView;
export type Attempt = AttemptView;
export type Body = BodyView;
export type Cache = CacheDiagnosis;
export type Usage = NormalizedUsage;
export type RecordMessage = NormalizedMessage;
export type RecordPart = NormalizedPart;
export type RecordResponse = NormalizedResponse;
export type RecordTool = NormalizedTool;
export type Answer = ReplayAnswer;
export type Places = PlacesView;
export type Comparison = ComparisonView;

/** Filters of the list of runs. */
export interface RunQuery {
  kind?: RunKind | undefined;
  status?: RecordStatus | undefined;
  cursor?: string | undefined;
  limit?: number;
}

const at = (chat: string, rest = "") => `/chats/${encodeURIComponent(chat)}/debug${rest}`;
const stepAt = (chat: string, run: string, step: string, rest = "") => at(chat, `/runs/${run}/steps/${step}${rest}`);

export const listRuns = (chat: string, query: RunQuery, signal?: AbortSignal) =>
  get<RunPage>(at(chat, "/runs"), { ...query }, signal);
export const getRun = (chat: string, run: string, signal?: AbortSignal) =>
  get<RunDetail>(at(chat, `/runs/${encodeURIComponent(run)}`), undefined, signal);
export const searchRun = (chat: string, run: string, q: string, signal?: AbortSignal) =>
  get<Places>(at(chat, `/runs/${run}/search`), { q }, signal);
export const compareRuns = (chat: string, run: string, other: string, signal?: AbortSignal) =>
  get<Comparison>(at(chat, `/runs/${run}/compare`), { other }, signal);
export const getStep = (chat: string, run: string, step: string, signal?: AbortSignal) =>
  get<Step>(stepAt(chat, run, step), undefined, signal);
export const getAttempt = (chat: string, run: string, step: string, number: number, signal?: AbortSignal) =>
  get<Attempt>(stepAt(chat, run, step, `/attempts/${number}`), undefined, signal);
export const replayStep = (chat: string, run: string, step: string, body: ReplayBody) =>
  post<Replay>(stepAt(chat, run, step, "/replay"), body);
export const deleteRecords = (chat: string) => del(at(chat));

/** Return the exported records of a run, or of the whole chat, and the name of the file. */
export async function exportRecords(chat: string, run: string | null): Promise<{ file: Blob; name: string }> {
  const response = await fetchBytes(address(at(chat, "/export"), { run }), chat);
  const named = /filename="?([\w.-]+)/.exec(response.headers.get("Content-Disposition") ?? "")?.[1];
  return { file: await response.blob(), name: named ?? "rookery-debug.json" };
}
