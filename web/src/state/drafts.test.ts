import { beforeEach, expect, test } from "vitest";
import { Drafts, EMPTY_DRAFT, type Storage } from "@/state/drafts";

class FakeStorage implements Storage {
  readonly items = new Map<string, string>();
  isFull = false;
  get length() {
    return this.items.size;
  }
  key = (index: number) => [...this.items.keys()][index] ?? null;
  getItem = (key: string) => this.items.get(key) ?? null;
  removeItem = (key: string) => void this.items.delete(key);
  setItem = (key: string, value: string) => {
    if (this.isFull) throw new Error("quota");
    this.items.set(key, value);
  };
}

let storage: FakeStorage;
let now: number;
let warnings: number;
let drafts: Drafts;

beforeEach(() => {
  storage = new FakeStorage();
  now = 1_000;
  warnings = 0;
  drafts = new Drafts(
    storage,
    () => now,
    () => {
      warnings += 1;
    },
  );
});

test("a draft survives a reload and belongs to one person and chat", () => {
  drafts.save("ann", "c1", { ...EMPTY_DRAFT, text: "half a thou" });

  const later = new Drafts(
    storage,
    () => now,
    () => {},
  );
  expect(later.load("ann", "c1").text).toBe("half a thou");
  expect(later.load("bob", "c1")).toEqual(EMPTY_DRAFT);
  expect(later.load("ann", "new")).toEqual(EMPTY_DRAFT);
});

test("an emptied draft leaves nothing behind, and neither does one of a month ago", () => {
  drafts.save("ann", "c1", { ...EMPTY_DRAFT, text: "x" });
  drafts.save("ann", "c1", EMPTY_DRAFT);
  expect(storage.length).toBe(0);

  drafts.save("ann", "c1", { ...EMPTY_DRAFT, text: "old" });
  now += 31 * 24 * 3600_000;
  expect(drafts.load("ann", "c1")).toEqual(EMPTY_DRAFT);
  expect(storage.length).toBe(0);
});

test("a full storage keeps drafts in memory and says so once", () => {
  storage.isFull = true;
  drafts.save("ann", "c1", { ...EMPTY_DRAFT, text: "kept" });
  drafts.save("ann", "c1", { ...EMPTY_DRAFT, text: "kept more" });

  expect(drafts.load("ann", "c1").text).toBe("kept more");
  expect(warnings).toBe(1);
});

test("answers to a question are kept beside the text, and forgotten alone", () => {
  const answering = { at: 1, chosen: { 0: 2, 1: "other" as const }, other: { 1: "neither" } };
  drafts.save("ann", "c1", { ...EMPTY_DRAFT, text: "half a thou" });
  drafts.saveAnswers("ann", "c1", "call-1", answering);

  const later = new Drafts(
    storage,
    () => now,
    () => {},
  );
  expect(later.load("ann", "c1").answers).toEqual({ "call-1": answering });
  later.saveAnswers("ann", "c1", "call-1", null);
  expect(later.load("ann", "c1")).toMatchObject({ text: "half a thou", answers: {} });
});

test("signing out removes drafts and nothing else", () => {
  storage.setItem("rookery.theme", "dark");
  drafts.save("ann", "c1", { ...EMPTY_DRAFT, text: "x" });
  drafts.clear();
  expect([...storage.items.keys()]).toEqual(["rookery.theme"]);
});

test("a remark that is being written outlives a reload and the sending of the message", () => {
  const reference = { type: "file-reference" as const, file_name: "a.py", start_line: 1, end_line: 2, content: "x" };
  drafts.saveRemark("ann", "c1", { reference, text: "not like th" });
  drafts.save("ann", "c1", { ...EMPTY_DRAFT, text: "words" });
  drafts.remove("ann", "c1");

  const later = new Drafts(
    storage,
    () => now,
    () => {},
  );
  expect(later.loadRemark("ann", "c1")).toEqual({ reference, text: "not like th" });
  expect(later.loadRemark("ann", "c2")).toBeNull();
  later.saveRemark("ann", "c1", { reference, text: "  " });
  expect(later.loadRemark("ann", "c1")).toBeNull();
});

test("the entries of a form survive a reload, and are forgotten with the questions and the answer", () => {
  const entries = { call: { question: { seat: "12" } } };
  drafts.saveForm("ann", "c1", "which seat", entries);
  const later = new Drafts(
    storage,
    () => now,
    () => {},
  );
  expect(later.loadForm("ann", "c1", "which seat")).toEqual(entries);
  expect(later.loadForm("ann", "c1", "another question")).toBeNull();
  expect(later.loadForm("ben", "c1", "which seat")).toBeNull();
  expect(later.load("ann", "c1").text).toBe("");
  later.saveForm("ann", "c1", "which seat", null);
  expect(later.loadForm("ann", "c1", "which seat")).toBeNull();
  expect(storage.length).toBe(0);
});
