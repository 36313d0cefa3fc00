import { type ReactNode, useState } from "react";
import type { ChatView } from "@/api/types.gen";
import { AttemptBody } from "@/features/debug/attempts";
import { ComparisonView } from "@/features/debug/compare_dialog";
import { RecordingBar } from "@/features/debug/recording";
import { ReplayView } from "@/features/debug/replay_dialog";
import { RunList } from "@/features/debug/run_list";
import { RunHead, Steps } from "@/features/debug/run_view";
import { StepView } from "@/features/debug/step_view";
import {
  ATTEMPTS,
  COMPARISON,
  PLACES,
  RECORDINGS,
  REPLAY,
  RUN_DETAIL,
  RUNS,
  STEPS,
  wholeStep,
} from "@/features/gallery/debug_samples";

const CHAT = { id: "gallery", my_role: "owner", parent_chat_id: null } as ChatView;
const nothing = () => {};
const ACTIONS = { onPrevious: nothing, onNext: null, onBack: nothing, onShowMessage: nothing, onReplay: nothing };

/** The Debug tab in every state. */
export function DebugGallery() {
  const [query, setQuery] = useState("");
  return (
    <>
      <h2 className="pt-4 text-muted">Debug records</h2>
      {RECORDINGS.map((recording, index) => (
        <RecordingBar key={index} chat={CHAT} recording={recording} />
      ))}
      {[RUNS, [], undefined].map((runs, index) => (
        <Box key={index} label={`Runs ${index + 1}`}>
          <RunList
            chat={CHAT}
            runs={runs}
            recording={RECORDINGS[index]}
            error={runs ? null : new Error("The server cannot be reached.")}
            filter="all"
            onFilter={nothing}
            onOpen={nothing}
            onMore={nothing}
            isLoadingMore={false}
            onRetry={nothing}
          />
        </Box>
      ))}
      <Box label="Run">
        <RunHead
          chat="gallery"
          run={{
            ...RUN_DETAIL,
            parent_run_id: "p",
            summary: { ...RUN_DETAIL.summary, continues: "c", truncated: true },
          }}
          onBack={nothing}
          onRun={nothing}
          onShowMessage={nothing}
          onCompare={nothing}
        />
        <Steps
          run={RUN_DETAIL}
          current="step-2"
          onOpen={nothing}
          query={query}
          onQuery={setQuery}
          places={PLACES}
          error={null}
        />
      </Box>
      {STEPS.map((step) => (
        <section
          key={step.id}
          aria-label={`Sample of step ${step.number}`}
          className="@container rounded-lg border border-line"
        >
          <StepView
            chat="gallery"
            run="run-1"
            summary={step}
            count={STEPS.length}
            step={step.status === "in_progress" ? undefined : wholeStep(step)}
            error={null}
            onRetry={nothing}
            wanted=""
            actions={ACTIONS}
          />
        </section>
      ))}
      {ATTEMPTS.map((attempt) => (
        <section
          key={attempt.number}
          aria-label={`Sample of attempt ${attempt.number}`}
          className="rounded-lg border border-line p-3"
        >
          <AttemptBody attempt={attempt} />
        </section>
      ))}
      <ReplayView replay={REPLAY} />
      <section aria-label="Comparison" className="flex flex-col gap-5 rounded-lg border border-line p-3">
        <ComparisonView comparison={COMPARISON} onStep={nothing} />
      </section>
    </>
  );
}

function Box({ label, children }: { label: string; children: ReactNode }) {
  return (
    <section
      aria-label={label}
      className="@container flex h-[30rem] flex-col overflow-hidden rounded-lg border border-line"
    >
      {children}
    </section>
  );
}
