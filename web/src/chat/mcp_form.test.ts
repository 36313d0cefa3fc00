import { describe, expect, it } from "vitest";
import type { McpServerView } from "@/api/types.gen";
import { formOf, isOffered, slugOf, toChange, toCreate, withTool } from "@/chat/mcp_form";

const SERVER: McpServerView = {
  id: "s-1",
  slug: "docs",
  display_name: "Docs",
  description: "",
  icon: "",
  enabled: true,
  availability: "default_off",
  auth_type: "custom_headers",
  is_own: false,
  workspace_id: null,
  is_editable: true,
  connected: true,
  login: { state: "none" },
  url: "https://docs.example/mcp",
  transport: "auto",
  headers: [{ name: "X-Key", has_value: true }],
  tool_allow_list: [],
  tool_deny_list: ["remove"],
  call_timeout_seconds: 60,
};

describe("the form of a server", () => {
  it("sends only what was changed, and keeps stored secrets", () => {
    const form = formOf(SERVER);
    expect(toChange(SERVER, form)).toEqual({});
    expect(toChange(SERVER, { ...form, display_name: "Manuals" })).toEqual({ display_name: "Manuals" });
    const more = [...form.headers, { name: "X-Team", value: "web", isStored: false }];
    expect(toChange(SERVER, { ...form, headers: more })).toEqual({ headers: { "X-Key": "***", "X-Team": "web" } });
  });

  it("has no fields of other authentication types", () => {
    const form = { ...formOf(null), slug: "a", url: "https://a.example", auth_type: "oauth2" as const };
    const body = toCreate({ ...form, api_key: "left over", oauth_scopes: "read, write" });
    expect(body).toMatchObject({ slug: "a", auth_type: "oauth2", oauth_scopes: ["read", "write"] });
    expect(body).not.toHaveProperty("api_key");
    expect(body).not.toHaveProperty("oauth_client_id");
  });

  it("switches tools off by the deny list, or on by the allow list", () => {
    const form = formOf(SERVER);
    expect([isOffered(form, "find"), isOffered(form, "remove")]).toEqual([true, false]);
    expect(withTool(form, "remove", true).tool_deny_list).toEqual([]);
    expect(withTool(form, "find", false).tool_deny_list).toEqual(["remove", "find"]);
    const only = { ...form, only_allowed: true };
    expect(isOffered(only, "find")).toBe(false);
    expect(withTool(only, "remove", true)).toEqual({ tool_allow_list: ["remove"], tool_deny_list: [] });
  });

  it("suggests a slug that the server takes", () => {
    expect(slugOf("My Server (EU)")).toBe("my-server-eu");
  });
});
