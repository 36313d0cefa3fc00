/** Cards of workspace operations: the server's message, quotas, and the log of the operation. */
import { useQuery } from "@tanstack/react-query";
import { useEffect, useState } from "react";
import { getText } from "@/api/http";
import { fields, list, number, text } from "@/chat/tool_texts";
import { followLog } from "@/state/workspace_operation_log";
import { Facts, Note, Output, outputView, type View } from "./card_bodies";
import type { BodyProps } from "./tool_display";

/** Return the id of the operation from the call's result or live output. */
export function operationOf(call: BodyProps["call"]): string {
  const named = text(fields(call.result).operation_id);
  if (named) return named;
  return /"operation_id"\s*:\s*"([0-9a-f-]{36})"/.exec(call.output)?.[1] ?? "";
}

export function WorkspaceBody({ call, state }: BodyProps) {
  const result = fields(call.result);
  const quota = fields(result.quota);
  const operation = operationOf(call);
  const runs = state === "running" || state === "streaming";
  const view = outputView(runs, call.isError);
  return (
    <div className="space-y-2">
      {operation && <OperationLog id={operation} runs={runs} view={view} />}
      {!operation && call.output && <Output text={call.output} label="Log" view={view} />}
      {text(result.message) && <Note warn={state === "limit" || state === "failed"}>{text(result.message)}</Note>}
      {text(result.agent_error) && <Note warn>{text(result.agent_error)}</Note>}
      {list(result.validations).map((one, index) => (
        <Note key={index} warn>
          {text(one.field)}: {text(one.detail)}
        </Note>
      ))}
      <Facts
        facts={[
          ["Workspace", text(result.workspace_name)],
          ["Agent", text(result.agent_status) === "not_ready" ? "not ready" : null],
          ["Startup script", scriptState(result)],
          [
            "Quota",
            number(quota.limit) === null
              ? null
              : `${number(quota.used) ?? "?"} of ${number(quota.limit)} ${text(quota.kind)}`,
          ],
        ]}
      />
    </div>
  );
}

function scriptState(result: Record<string, unknown>): string | null {
  const state = text(result.startup_script);
  if (!state) return null;
  const exit = number(result.startup_exit_code);
  return exit === null ? state : `${state}, exit code ${exit}`;
}

/** The log of an operation. It is streamed while the operation runs, or polled every two seconds if the stream fails. */
export function OperationLog({ id, runs, view }: { id: string; runs: boolean; view: View }) {
  const [live, setLive] = useState("");
  const [isCut, setCut] = useState(false);
  useEffect(() => {
    if (!runs) return;
    const abort = new AbortController();
    setCut(false);
    followLog(id, setLive, abort.signal).catch(() => !abort.signal.aborted && setCut(true));
    return () => abort.abort();
  }, [id, runs]);
  const { data } = useQuery({
    // The log may have grown after the last read.
    queryKey: ["operation-log", id, runs],
    queryFn: () => getText(`/operations/${encodeURIComponent(id)}/log`),
    enabled: !runs || isCut,
    refetchInterval: runs && isCut ? 2_000 : false,
    retry: false,
  });
  const shown = data ?? live;
  return shown ? <Output text={shown} label="Log" view={view} /> : null;
}
