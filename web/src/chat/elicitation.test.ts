import { describe, expect, it } from "vitest";
import type { FormField, ServerQuestion } from "@/api/types.gen";
import { initialEntries, isAnswerable, problemOf, siteOf, valuesOf } from "@/chat/elicitation";

const field = (more: Partial<FormField>): FormField => ({ name: "one", kind: "text", ...more });
const asked = (...fields: FormField[]): ServerQuestion => ({ id: "q", fields });

describe("the questions of a server", () => {
  it("begin with the defaults, and unchanged fields are sent as they are", () => {
    const question = asked(
      field({ name: "title", default: "Broken" }),
      field({ name: "size", kind: "integer", default: 3 }),
      field({ name: "tags", kind: "choices", options: [{ value: "a" }, { value: "b" }], default: ["b"] }),
      field({ name: "urgent", kind: "boolean" }),
      field({ name: "sure", kind: "boolean", required: true }),
    );
    expect(valuesOf(question, initialEntries(question))).toEqual({
      title: "Broken",
      size: 3,
      tags: ["b"],
      sure: false,
    });
  });

  it("send an emptied field as empty, because the server would use its default otherwise", () => {
    const question = asked(field({ default: "Broken" }), field({ name: "size", kind: "number", default: 3 }));
    expect(valuesOf(question, { one: "", size: " " })).toEqual({ one: "", size: "" });
  });

  it("keep a time in its place through the zone of the browser", () => {
    const question = asked(field({ format: "date-time", default: "2026-07-28T10:00:00Z" }));
    expect(valuesOf(question, initialEntries(question))).toEqual({ one: "2026-07-28T10:00:00.000Z" });
  });

  it("say what is missing or wrong before they are sent", () => {
    expect(problemOf(field({ required: true }), " ")).toBe("This is needed.");
    expect(problemOf(field({}), "")).toBeUndefined();
    expect(problemOf(field({ kind: "number" }), "many")).toBe("This must be a number.");
    expect(problemOf(field({ kind: "integer" }), "1.5")).toBe("This must be a whole number.");
    expect(problemOf(field({ kind: "integer", minimum: 2 }), "1")).toBe("At least 2.");
    expect(problemOf(field({ maximum: 2 }), "abc")).toBe("At most 2 characters.");
    expect(problemOf(field({ kind: "choices", minimum: 2 }), ["a"])).toBe("At least 2 choices.");
    expect(problemOf(field({ kind: "choice", required: true }), "")).toBe("This is needed.");
  });

  it("cannot be answered with a field that is not known, unless it may stay empty", () => {
    const strange = field({ kind: "colour" as never });
    expect(isAnswerable(asked(strange))).toBe(true);
    expect(isAnswerable(asked({ ...strange, required: true }))).toBe(false);
    expect(valuesOf(asked(strange), {})).toEqual({});
  });

  it("open only addresses of the web", () => {
    expect(siteOf("https://example.org:8443/a")).toBe("example.org:8443");
    expect(siteOf("javascript:alert(1)")).toBeNull();
    expect(isAnswerable({ id: "q", url: "file:///etc/passwd" })).toBe(false);
  });
});
