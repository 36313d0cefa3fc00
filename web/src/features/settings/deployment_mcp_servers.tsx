import { sentence } from "@/api/errors";
import type { McpSettingsValues, ToolSearch } from "@/api/types.gen";
import { ServerTable } from "@/features/mcp/server_table";
import { useSelf } from "@/state/login_session";
import { useMcpServers } from "@/state/mcp_servers";
import { Notice } from "@/ui/notice";
import { Select } from "@/ui/select";
import { Switch } from "@/ui/switch";
import { Section } from "./settings_form";
import { Group } from "./settings_group";

/** The MCP servers of the deployment, and the settings for all of them. */
export function Mcp() {
  const isAdmin = useSelf().role === "admin";
  const { data, error } = useMcpServers();
  return (
    <>
      <Section text="MCP servers give agents more tools. Keys are stored encrypted and never shown.">
        {error && <Notice kind="error">{sentence(error)}</Notice>}
        {data && (
          <ServerTable
            label="MCP servers"
            servers={data.items.filter((one) => !one.is_own)}
            isOwn={false}
            canChange={isAdmin}
          />
        )}
      </Section>
      <Section title="For all servers">
        <Group
          group="mcp"
          read={(values: McpSettingsValues) => ({
            allow_user_servers: values.allow_user_servers ?? true,
            tool_search: values.tool_search ?? ("auto" as ToolSearch),
            allow_private_addresses: values.allow_private_addresses ?? false,
          })}
        >
          {({ values, set }) => (
            <>
              <Switch
                label="Users may add servers of their own"
                hint="Such a server is only for the chats of its user. Without this, addresses that projects name are not used either."
                checked={values.allow_user_servers}
                onChange={(on) => set("allow_user_servers", on)}
              />
              <Select
                label="Agents get"
                value={values.tool_search}
                onChange={(next) => set("tool_search", next as ToolSearch)}
                options={[
                  { value: "auto", label: "All tools, or a search if there are many" },
                  { value: "always", label: "A search for tools" },
                  { value: "never", label: "All tools" },
                ]}
              />
              <Switch
                label="Allow servers in private networks"
                hint="Users with servers of their own can then reach addresses behind the firewall."
                checked={values.allow_private_addresses}
                onChange={(on) => set("allow_private_addresses", on)}
              />
            </>
          )}
        </Group>
      </Section>
    </>
  );
}
