import { expect, test } from "vitest";
import type { RepositoryState } from "@/api/types.gen";
import { merged } from "./repository_stream";

const repository = (root: string, more: Partial<RepositoryState> = {}): RepositoryState => ({
  root,
  branch: "main",
  remote_origin: null,
  diff: "",
  additions: 0,
  deletions: 0,
  changed_files: 0,
  untracked_omitted: 0,
  removed: false,
  ...more,
});

test("news replace what they are about, and what is gone goes", () => {
  const known = [repository("/a"), repository("/b")];

  const next = merged(known, [
    repository("/b", { additions: 2 }),
    repository("/c"),
    repository("/a", { removed: true }),
  ]);

  expect(next.map((one) => [one.root, one.additions])).toEqual([
    ["/b", 2],
    ["/c", 0],
  ]);
  expect(merged(known, [])).toEqual(known);
});
