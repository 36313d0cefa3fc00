import { useQuery } from "@tanstack/react-query";
import { useEffect } from "react";
import { Link, useNavigate } from "react-router";
import { sentence } from "@/api/errors";
import type { ChatView } from "@/api/types.gen";
import { useFeature, useSelf } from "@/state/login_session";
import { turnsQuery } from "@/state/recorded_turns";
import { Button } from "@/ui/button";
import { Dialog } from "@/ui/dialog";
import { Spinner } from "@/ui/spinner";

/** Opens the debug records of a chat. If nothing can be recorded, it says who can change that, and where. */
export function DebugDialog({ chat, onClose }: { chat: ChatView; onClose: () => void }) {
  const navigate = useNavigate();
  const isOffered = useFeature("debug");
  const isAdmin = useSelf().role === "admin";
  const { data, error } = useQuery({ ...turnsQuery(chat.id), enabled: isOffered });
  const isThere = data && (data.recording.is_on || data.recording.is_allowed || data.runs.length > 0);
  useEffect(() => {
    if (!isThere) return;
    onClose();
    void navigate(`/c/${chat.id}?panel=debug`);
  }, [isThere, chat.id, onClose, navigate]);
  return (
    <Dialog
      open
      onOpenChange={onClose}
      title="Debug records"
      description="Debug records show what a model was sent and what it answered."
      footer={
        <Button kind="primary" onClick={onClose}>
          Close
        </Button>
      }
    >
      {error ? (
        <p className="text-danger">{sentence(error)}</p>
      ) : isOffered && !data ? (
        <Spinner />
      ) : (
        <p>
          Recording is off on this server.{" "}
          {!isOffered ? (
            "The operator has disabled it in the configuration."
          ) : isAdmin ? (
            <>
              Switch on “Users may record their chats” in{" "}
              <Link to="/settings/debug" onClick={onClose} className="text-accent underline">
                Settings, Debug records
              </Link>
              .
            </>
          ) : (
            "An administrator can switch it on."
          )}
        </p>
      )}
    </Dialog>
  );
}
