import { expect, test } from "vitest";
import { compactionTitle } from "@/features/timeline/row";

test("a failed summary is not called one", () => {
  expect(compactionTitle({ error: "No." }, "automatically", false)).toBe("The summary failed: No.");
});

test("pieces and a cut message are told", () => {
  const result = { summary: "So far.", rungs: ["pieces", "spilled"], calls: 7, spilled: [{ bytes: 9, path: null }] };

  expect(compactionTitle(result, "after an overflow", false)).toBe(
    "Summarized after an overflow, in 7 requests; the model reads the beginning and the end of the last message",
  );
  expect(compactionTitle({ ...result, summary: "", rungs: ["spilled"] }, "after an overflow", false)).toBe(
    "Shortened after an overflow; the model reads the beginning and the end of the last message",
  );
  expect(compactionTitle({ summary: "So far." }, "on request", false)).toBe("Summarized on request");
  expect(compactionTitle({}, "on request", true)).toBe("Summarizing the conversation");
});
