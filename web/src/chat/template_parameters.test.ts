import { describe, expect, test } from "vitest";
import type { ParameterView } from "@/api/types.gen";
import { initialEntries, recentEntries, repositoryName, toValues } from "./template_parameters";

function parameter(name: string, more: Partial<ParameterView> = {}): ParameterView {
  return {
    name,
    type: "string",
    required: false,
    default: null,
    mutable: false,
    ephemeral: false,
    display_name: "",
    description: "",
    options: [],
    regex: null,
    min: null,
    max: null,
    suggestions: [],
    ...more,
  };
}

describe("values of a form", () => {
  const all = [
    parameter("repository", { required: true }),
    parameter("depth", { type: "number", default: 1 }),
    parameter("clean", { type: "bool", default: true }),
    parameter("packages", { type: "list(string)", default: [] }),
    parameter("token", { type: "secret" }),
  ];

  test("begin with given values, then defaults, and never with a secret", () => {
    expect(initialEntries(all, { repository: "a", token: "***" })).toEqual({
      repository: "a",
      depth: "1",
      clean: true,
      packages: "",
      token: "",
    });
  });

  test("are sent with their types, and defaults are left to the server", () => {
    const entries = { repository: " a ", depth: "3", clean: false, packages: "x\n\n y ", token: " s " };
    expect(toValues(all, entries)).toEqual({
      repository: "a",
      depth: "3",
      clean: false,
      packages: ["x", "y"],
      token: " s ",
    });
    expect(toValues(all, initialEntries(all))).toEqual({});
  });
});

describe("recent values", () => {
  const used = (value: unknown, template = "git") => ({ template, parameters: { repository: value } });

  test("are those of the same template, newest first, each once, without masked credentials", () => {
    const rows = [used("b"), used("https://***@host/x"), used("a"), used("b"), used("c", "other"), used(undefined)];
    expect(recentEntries(rows, "git", parameter("repository", { suggestions: ["d"] }))).toEqual(["b", "a", "d"]);
  });

  test("are not those of workspaces whose start failed", () => {
    const rows = [
      { ...used("a"), status: "running", agent_state: "script_failed" },
      { ...used("b"), status: "stopped", startup_exit_code: 128 },
      { ...used("c"), status: "failed" },
      { ...used("d"), status: "running", agent_state: "ready", startup_exit_code: 0 },
    ];
    expect(recentEntries(rows, "git", parameter("repository"))).toEqual(["d"]);
  });

  test("are never those of a secret", () => {
    expect(recentEntries([used("key")], "git", parameter("repository", { type: "secret" }))).toEqual([]);
  });
});

test.each([
  ["https://host.example/group/Tidy.Tools.git", [], "tidy-tools"],
  ["git@host.example:ada/notes.git", [], "notes"],
  ["https://host.example/notes/", ["notes", "notes-2"], "notes-3"],
  ["not an address", [], ""],
  ["", [], ""],
])("the repository %s gives its name to the workspace", (address, taken, name) => {
  expect(repositoryName(address, taken)).toBe(name);
});
