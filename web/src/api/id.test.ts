import { afterEach, expect, test, vi } from "vitest";
import { newId } from "@/api/id";

afterEach(() => vi.unstubAllGlobals());

test("names are random UUIDs, also where the browser makes none itself", () => {
  vi.stubGlobal("crypto", { getRandomValues: crypto.getRandomValues.bind(crypto) });

  const names = Array.from({ length: 200 }, newId);

  for (const name of names)
    expect(name).toMatch(/^[0-9a-f]{8}-[0-9a-f]{4}-4[0-9a-f]{3}-[89ab][0-9a-f]{3}-[0-9a-f]{12}$/);
  expect(new Set(names).size).toBe(200);
});
