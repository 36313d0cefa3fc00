/** Words for the purposes of model calls. */
const PURPOSES: Record<string, string> = {
  turn: "Answers",
  compaction: "Compaction of long chats",
  advisor: "Advice of the advisor",
  title: "Titles of chats",
  label: "One-line summaries of turns",
  summary: "Summaries of chats",
  replay: "Replays of recorded steps",
};

/** Return the words for a purpose; an unknown one as the server names it. */
export const purposeName = (purpose: string) => (Object.hasOwn(PURPOSES, purpose) ? PURPOSES[purpose] : purpose) ?? "";
