import { expect, test } from "vitest";
import { placeOf, withPlace } from "./debug_address";

const params = (text: string) => new URLSearchParams(text);

test("the address names a run and a step", () => {
  expect(placeOf(params("panel=debug:r-1&step=3"))).toEqual({ run: "r-1", step: 3 });
  expect(placeOf(params("panel=debug"))).toEqual({ run: null, step: null });
  expect(placeOf(params("panel=files&step=3"))).toEqual({ run: null, step: null });
  expect(placeOf(params("panel=debug:r-1&step=x"))).toEqual({ run: "r-1", step: null });
});

test("going to a place keeps the rest of the address", () => {
  const address = (place: Parameters<typeof withPlace>[1], from = "m=4&panel=debug:old&step=9") =>
    decodeURIComponent(withPlace(params(from), place).toString());
  expect(address({ run: "r", step: 2 })).toBe("m=4&panel=debug:r&step=2");
  expect(address({ run: "r", step: null })).toBe("m=4&panel=debug:r");
  expect(address({ run: null, step: null })).toBe("m=4&panel=debug");
});
