import { expect, test } from "vitest";
import { isOpenNetwork, networkName, networkWords } from "./workspace_networks";

test("every network has a name and a sentence", () => {
  expect(["none", "hosts", "public", "host"].map(networkName)).toEqual([
    "None",
    "Listed hosts only",
    "Public hosts",
    "The server's own",
  ]);
  expect(networkWords("public")).toContain("cannot connect to the server's machine");
  expect(networkWords("host")).toContain("network of the server's machine");
});

test("a network of a newer server is shown by its name", () => {
  expect(networkName("mesh")).toBe("mesh");
  expect(networkWords("mesh")).toBe("Network: mesh.");
});

test("only the machine's own network is pointed out", () => {
  expect(["none", "hosts", "public", "host", null, undefined].map(isOpenNetwork)).toEqual([
    false,
    false,
    false,
    true,
    false,
    false,
  ]);
});
