import type { ChatView } from "@/api/types.gen";
import { EMPTY, withMessages } from "@/chat/reducer";
import type { Message, Part, Status } from "@/chat/types";
import { AGENTS, APPROVAL, MESSAGE } from "@/features/gallery/samples";
import { AgentsTab } from "@/features/panel/agents_tab";
import { ApprovalCard } from "@/features/tools/approval_card";
import { chatSession } from "@/state/chat_sessions";
import { said } from "./appended_words";

const CHAT = { id: "gallery", my_role: "owner", archived: false } as ChatView;

const step = (id: number, role: string, ...content: Part[]): Message => ({ ...MESSAGE, id, role, content }) as Message;
const HISTORY: Message[] = [
  step(1, "user", { type: "text", text: "Find all callers of put()" }),
  step(
    2,
    "assistant",
    { type: "text", text: "I look for **callers** first." },
    { type: "tool-call", tool_call_id: "inner", tool_name: "execute", args: { command: "rg 'put\\('" } },
  ),
  step(3, "tool", {
    type: "tool-result",
    tool_call_id: "inner",
    tool_name: "execute",
    result: { success: true, output: "upload.py:12: put(f)\n", exit_code: 0 },
  }),
  step(4, "assistant", { type: "text", text: "There are **3** callers." }),
];

/** Fill the timelines of the first subagents: one at work, one that has finished, one that has failed. */
export function fillAgents(): void {
  const fill = (place: number, status: Status, length: number) => {
    const agent = AGENTS[place];
    if (!agent) return;
    const error = status === "error" ? { kind: "overloaded", message: said("The provider did not answer.") } : null;
    const data = { ...withMessages(EMPTY, said(HISTORY.slice(0, length)), false), loaded: true, status, error };
    chatSession(agent.chat_id).store.setState({ data });
  };
  fill(0, "running", 2);
  fill(6, "waiting", 4);
  fill(7, "error", 3);
}

/** The subagents of a chat, and the question of one of them. */
export function AgentGallery() {
  return (
    <>
      <h2 className="pt-4 text-muted">Subagents</h2>
      <ApprovalCard
        action={APPROVAL}
        askedBy="c-4"
        origin={`Asked by the agent ${said("explore callers")}. 2 more agents wait for your answer.`}
      />
      <div className="rounded-lg border border-line p-4">
        <AgentsTab chat={CHAT} agents={AGENTS} />
      </div>
    </>
  );
}
