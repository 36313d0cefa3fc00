import { expect, test } from "vitest";
import { ApiError } from "@/api/errors";
import { complaintOf } from "./settings_form";

const refused = (field: string) =>
  new ApiError(400, { message: `${field}: Too many wildcards.`, fields: [{ field, message: "Too many wildcards." }] });

test("a rule that is refused is named by the number that the page shows", () => {
  expect(complaintOf(refused("approval_rules[1].match.command"))).toBe("Rule 2: Too many wildcards.");
  expect(complaintOf(refused("rules[0].tool"))).toBe("Rule 1: Too many wildcards.");
});

test("any other complaint is told as the server puts it", () => {
  expect(complaintOf(refused("name"))).toBe("name: Too many wildcards.");
  expect(complaintOf(new Error("The server cannot be reached."))).toBe("The server cannot be reached.");
});
