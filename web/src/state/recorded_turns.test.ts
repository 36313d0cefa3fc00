import { expect, test, vi } from "vitest";
import type { Run } from "@/api/debug";
import { runOfTurn } from "@/state/recorded_turns";

vi.stubGlobal("localStorage", { getItem: () => null });

const run = (id: string, trigger_message_id: number, kind = "chat_turn") => ({ id, trigger_message_id, kind }) as Run;

test("the run of a turn is its newest, and not that of another turn", () => {
  const runs = [run("again", 5), run("first", 5), run("title", 8, "title_generation"), run("before", 1)];
  expect(runOfTurn(runs, 5, 7)).toBe("again");
  expect(runOfTurn(runs, 8, 9)).toBeNull();
  expect(runOfTurn(runs, 2, 4)).toBeNull();
});
