/** The part of the address that says which run and step the Debug tab shows: `?panel=debug:<run>&step=<number>`. */
import { useCallback, useRef } from "react";
import { useSearchParams } from "react-router";

export interface DebugPlace {
  run: string | null;
  /** The number of a step in the run. */
  step: number | null;
}

// On narrower screens the panel covers the conversation, and the back button goes one view back.
const BESIDE_PX = 1024;

export function placeOf(params: URLSearchParams): DebugPlace {
  const run = /^debug:(.+)$/.exec(params.get("panel") ?? "")?.[1] ?? null;
  return { run, step: run === null ? null : Number(params.get("step")) || null };
}

export function withPlace(params: URLSearchParams, { run, step }: DebugPlace): URLSearchParams {
  const next = new URLSearchParams(params);
  next.set("panel", run === null ? "debug" : `debug:${run}`);
  if (step === null) next.delete("step");
  else next.set("step", String(step));
  return next;
}

/** Return a function that opens a place in the Debug tab. The function never changes. */
export function useGoToPlace(): (place: DebugPlace) => void {
  const [, setParams] = useSearchParams();
  const latest = useRef(setParams);
  latest.current = setParams;
  return useCallback((place) => {
    latest.current((params) => withPlace(params, place), { replace: window.innerWidth >= BESIDE_PX });
  }, []);
}
