import { describe, expect, it } from "vitest";
import { whyNone } from "@/state/templates";

const works = { enabled: true, unavailable: null };
const fails = { enabled: true, unavailable: "Run `sysctl`." };

describe("why no workspace can be started", () => {
  it("is said when every template is unavailable", () => {
    expect(whyNone([fails, fails])).toBe("Run `sysctl`.");
  });

  it("is not said while one template works, or nothing is known", () => {
    expect(whyNone([fails, works])).toBeNull();
    expect(whyNone([])).toBeNull();
    expect(whyNone(undefined)).toBeNull();
  });

  it("does not count templates that are switched off", () => {
    expect(whyNone([fails, { ...works, enabled: false }])).toBe("Run `sysctl`.");
  });
});
