/** The result of a test: the tools of the server with their descriptions, or what is wrong. */
import type { McpServerView, McpTestView } from "@/api/types.gen";
import { Connect, nameOf } from "@/features/mcp/connection";
import { Button } from "@/ui/button";
import { Dialog } from "@/ui/dialog";
import { Notice } from "@/ui/notice";
import { Spinner } from "@/ui/spinner";

interface Props {
  server: McpServerView;
  /** Null while the test runs. */
  result: McpTestView | null;
  onAgain: () => void;
  onEdit: () => void;
  onClose: () => void;
}

export function TestResult({ server, result, onAgain, onEdit, onClose }: Props) {
  const tools = result?.tools ?? [];
  return (
    <Dialog
      open
      wide
      onOpenChange={onClose}
      title={`Test of ${nameOf(server)}`}
      footer={
        <>
          <Button onClick={onClose}>Close</Button>
          <Button onClick={onEdit}>Edit</Button>
          <Button onClick={onAgain} disabled={result === null}>
            Test again
          </Button>
        </>
      }
    >
      <div className="flex flex-col gap-3" aria-live="polite">
        {result === null && (
          <p className="flex items-center gap-2 text-muted">
            <Spinner /> Connecting
          </p>
        )}
        {result?.error && (
          <Notice kind={result.error.needs_login ? "warn" : "error"}>
            <span className="flex flex-wrap items-center justify-between gap-2">
              <span className="min-w-0 break-words">{result.error.message}</span>
              {result.error.needs_login && server.auth_type === "oauth2" && <Connect server={server} />}
            </span>
          </Notice>
        )}
        {result?.ok && (
          <Notice kind="ok">
            It works. It has {tools.length} {tools.length === 1 ? "tool" : "tools"}
            {result.protocol_version ? ` and speaks revision ${result.protocol_version} of the protocol` : ""}.
          </Notice>
        )}
        {tools.length > 0 && (
          <ul aria-label="Tools" className="divide-y divide-line rounded-lg border border-line">
            {tools.map((one) => (
              <li key={one.name} className="px-3 py-2">
                <span className="font-mono text-small font-medium break-words">{one.name}</span>
                {!one.is_offered && <span className="ml-2 text-small text-muted">off</span>}
                <span className="block text-small break-words whitespace-pre-wrap text-muted">{one.description}</span>
              </li>
            ))}
          </ul>
        )}
      </div>
    </Dialog>
  );
}
