/** The choice of a server to add: a well-known one, or one by its address. */
import { useMutation, useQuery } from "@tanstack/react-query";
import { useState } from "react";
import { createMcpServer, listMcpCatalog } from "@/api/mcp_servers";
import type { CatalogEntry, McpServerView } from "@/api/types.gen";
import { formOf, toCreate } from "@/chat/mcp_form";
import { ServerDialog } from "@/features/mcp/server_dialog";
import { reloadMcpServers } from "@/state/mcp_servers";
import { Button } from "@/ui/button";
import { Dialog } from "@/ui/dialog";
import { TextField } from "@/ui/field";

interface Props {
  isOwn: boolean;
  onClose: () => void;
  onAdded: (server: McpServerView) => void;
}

/** A well-known server that needs nothing but its address is added at once. */
export function CatalogDialog({ isOwn, onClose, onAdded }: Props) {
  const [words, setWords] = useState("");
  const [entry, setEntry] = useState<CatalogEntry | "address" | null>(null);
  const { data } = useQuery({
    queryKey: ["mcp", "catalog"],
    queryFn: listMcpCatalog,
    staleTime: Number.POSITIVE_INFINITY,
  });
  const add = useMutation({
    mutationFn: (chosen: CatalogEntry) => createMcpServer(isOwn, toCreate(formOf(null, chosen))),
    onSuccess: (server) => {
      void reloadMcpServers();
      onAdded(server);
    },
    onError: (_, chosen) => setEntry(chosen),
  });
  if (entry !== null)
    return (
      <ServerDialog
        server={null}
        entry={entry === "address" ? null : entry}
        isOwn={isOwn}
        problem={add.error}
        onClose={onClose}
        onSaved={onAdded}
      />
    );
  const wanted = words.trim().toLowerCase();
  const found = (data?.items ?? []).filter((one) => `${one.name} ${one.description}`.toLowerCase().includes(wanted));
  return (
    <Dialog
      open
      wide
      onOpenChange={onClose}
      title="Add an MCP server"
      footer={
        <>
          <Button onClick={onClose}>Cancel</Button>
          <Button onClick={() => setEntry("address")}>By its address</Button>
        </>
      }
    >
      <TextField label="Search" type="search" value={words} onChange={(event) => setWords(event.target.value)} />
      <ul aria-label="Well-known servers" className="mt-3 grid gap-2 sm:grid-cols-2">
        {found.map((one) => (
          <li key={one.slug}>
            <button
              type="button"
              disabled={add.isPending}
              onClick={() => (one.needs ? setEntry(one) : add.mutate(one))}
              className="h-full w-full rounded-lg border border-line px-3 py-2 text-left hover:bg-bg2 disabled:opacity-60"
            >
              <span className="block font-medium">{one.name}</span>
              <span className="block text-small text-muted">{one.description}</span>
              <span className="block text-small text-muted">
                {one.auth_type === "oauth2"
                  ? "Each user logs in"
                  : one.auth_type === "none"
                    ? "No login"
                    : "Needs a key"}
              </span>
            </button>
          </li>
        ))}
      </ul>
      {data && found.length === 0 && <p className="mt-3 text-muted">None of them. Add it by its address.</p>}
    </Dialog>
  );
}
