import { Plus, X } from "lucide-react";
import { type FormEvent, useState } from "react";
import type { ChatView } from "@/api/types.gen";
import { Button, IconButton } from "@/ui/button";
import { Dialog } from "@/ui/dialog";
import { TextField } from "@/ui/field";
import { relabel } from "./chat_actions";

const KEY = /^[a-zA-Z0-9][a-zA-Z0-9._/-]{0,63}$/;

/** The dialog to edit the labels of a chat. */
export function LabelsDialog({ chat, onClose }: { chat: ChatView; onClose: () => void }) {
  const [labels, setLabels] = useState(chat.labels);
  const [key, setKey] = useState("");
  const [value, setValue] = useState("");
  const isBadKey = key !== "" && !KEY.test(key);

  function add(event: FormEvent) {
    event.preventDefault();
    if (!KEY.test(key) || !value.trim()) return;
    setLabels({ ...labels, [key]: value.trim() });
    setKey("");
    setValue("");
  }

  return (
    <Dialog
      open
      onOpenChange={onClose}
      title="Labels"
      footer={
        <>
          <Button onClick={onClose}>Cancel</Button>
          <Button
            kind="primary"
            onClick={() => {
              onClose();
              void relabel(chat, labels);
            }}
          >
            Save
          </Button>
        </>
      }
    >
      <ul className="mb-4 flex flex-wrap gap-1.5 empty:hidden">
        {Object.entries(labels).map(([name, text]) => (
          <li key={name} className="flex items-center gap-1 rounded-md bg-bg3 py-0.5 pr-0.5 pl-2">
            <span className="font-medium">{name}</span>: {text}
            <IconButton
              label={`Remove ${name}`}
              size="small"
              onClick={() => setLabels(Object.fromEntries(Object.entries(labels).filter(([one]) => one !== name)))}
            >
              <X />
            </IconButton>
          </li>
        ))}
      </ul>
      <form onSubmit={add} className="flex items-start gap-2">
        <TextField
          label="Key"
          className="min-w-0 flex-1"
          value={key}
          onChange={(event) => setKey(event.target.value)}
          error={isBadKey ? "Letters, digits, dot, dash, slash." : undefined}
        />
        <TextField
          label="Value"
          className="min-w-0 flex-1"
          value={value}
          maxLength={256}
          onChange={(event) => setValue(event.target.value)}
        />
        <IconButton label="Add label" type="submit" kind="plain" className="mt-6">
          <Plus />
        </IconButton>
      </form>
    </Dialog>
  );
}
