import { keepPreviousData, useInfiniteQuery, useMutation } from "@tanstack/react-query";
import { useState } from "react";
import { ApiError, sentence } from "@/api/errors";
import {
  deleteSavedPrompt,
  getSavedPrompt,
  listSavedPrompts,
  type PromptScope,
  putSavedPrompt,
} from "@/api/saved_prompts";
import type { SavedPrompt, SavedPromptSummary } from "@/api/types.gen";
import { useSelf } from "@/state/login_session";
import { queryClient } from "@/state/queries";
import { Button } from "@/ui/button";
import { useDebounced } from "@/ui/debounced";
import { Confirm, Dialog } from "@/ui/dialog";
import { TextArea, TextField } from "@/ui/field";
import { Notice } from "@/ui/notice";
import { Select } from "@/ui/select";
import { toast } from "@/ui/toast";
import { Table } from "./responsive_table";
import { Section } from "./settings_form";

const KEY = ["saved_prompts"];
const PAGE = 50;
const WAIT_MS = 200;
const reload = () => queryClient.invalidateQueries({ queryKey: KEY });

/** The saved prompts: the user's own, and those that administrators share. */
export function SavedPrompts() {
  const isAdmin = useSelf().role === "admin";
  const [words, setWords] = useState("");
  const q = useDebounced(words.trim(), WAIT_MS);
  const list = useInfiniteQuery({
    queryKey: [...KEY, "page", q],
    queryFn: ({ pageParam, signal }) =>
      listSavedPrompts({ q, limit: PAGE, ...(pageParam ? { cursor: pageParam } : {}) }, signal),
    initialPageParam: "",
    getNextPageParam: (page) => page.next_cursor ?? undefined,
    placeholderData: keepPreviousData,
  });
  const [editing, setEditing] = useState<SavedPrompt | "new" | null>(null);
  const [deleting, setDeleting] = useState<SavedPromptSummary | null>(null);
  const showError = (error: unknown) => toast(sentence(error), { kind: "error" });
  const open = useMutation({
    mutationFn: (one: SavedPromptSummary) => getSavedPrompt(one.name, one.scope),
    onSuccess: setEditing,
    onError: showError,
  });
  const remove = useMutation({
    mutationFn: (one: SavedPromptSummary) => deleteSavedPrompt(one.name, one.scope),
    onSettled: reload,
    onError: showError,
  });
  const rows = list.data?.pages.flatMap((page) => page.items) ?? [];
  return (
    <Section text="Type / and the name of a prompt in an empty message to insert its text. A prompt can contain variables such as {{topic}}. When you insert the prompt, the first variable is selected: type its value, then press Tab to go to the next one.">
      {list.error && <Notice kind="error">{sentence(list.error)}</Notice>}
      <div className="flex flex-wrap items-end gap-2">
        <TextField
          label="Search"
          type="search"
          className="min-w-48 flex-1"
          maxLength={200}
          value={words}
          onChange={(event) => setWords(event.target.value)}
        />
        <Button onClick={() => setEditing("new")}>Create a prompt</Button>
      </div>
      {list.data && (
        <Table
          label="Saved prompts"
          rows={rows}
          keyOf={(one) => `${one.scope}/${one.name}`}
          empty={q ? "No prompt matches." : "No saved prompts yet."}
          columns={[
            {
              title: "Name",
              cell: (one) => <span className="font-mono max-sm:break-all sm:whitespace-nowrap">/{one.name}</span>,
            },
            { title: "Text", cell: (one) => <span className="line-clamp-2 break-words">{one.summary}</span> },
            { title: "For", cell: (one) => (one.scope === "user" ? "You" : "Everyone") },
            {
              title: "",
              right: true,
              cell: (one) =>
                (one.scope === "user" || isAdmin) && (
                  <span className="flex justify-end gap-1">
                    <Button size="small" aria-label={`Edit ${one.name}`} onClick={() => open.mutate(one)}>
                      Edit
                    </Button>
                    <Button
                      size="small"
                      kind="danger"
                      aria-label={`Delete ${one.name}`}
                      onClick={() => setDeleting(one)}
                    >
                      Delete
                    </Button>
                  </span>
                ),
            },
          ]}
        />
      )}
      {list.hasNextPage && (
        <Button className="self-center" disabled={list.isFetchingNextPage} onClick={() => list.fetchNextPage()}>
          More
        </Button>
      )}
      {editing && (
        <PromptDialog prompt={editing === "new" ? null : editing} isAdmin={isAdmin} onClose={() => setEditing(null)} />
      )}
      {deleting && (
        <Confirm
          open
          danger
          onOpenChange={() => setDeleting(null)}
          title={`Delete /${deleting.name}?`}
          text="Messages in which it was used do not change."
          action="Delete"
          onConfirm={() => remove.mutate(deleting)}
        />
      )}
    </Section>
  );
}

interface DialogProps {
  /** The prompt to change; null to create one. */
  prompt: SavedPrompt | null;
  isAdmin: boolean;
  onClose: () => void;
}

function PromptDialog({ prompt, isAdmin, onClose }: DialogProps) {
  const [name, setName] = useState(prompt?.name ?? "");
  const [scope, setScope] = useState<PromptScope>(prompt?.scope ?? "user");
  const [text, setText] = useState(prompt?.text ?? "");
  const save = useMutation({
    mutationFn: () => putSavedPrompt(name.trim(), scope, text),
    onSuccess: () => {
      void reload();
      onClose();
    },
  });
  const refused = save.error instanceof ApiError ? save.error : null;
  return (
    <Dialog
      open
      onOpenChange={onClose}
      wide
      title={prompt ? `Edit /${prompt.name}` : "Create a prompt"}
      footer={
        <>
          <Button onClick={onClose}>Cancel</Button>
          <Button
            kind="primary"
            disabled={!name.trim() || !text.trim() || save.isPending}
            onClick={() => save.mutate()}
          >
            Save
          </Button>
        </>
      }
    >
      <div className="flex flex-col gap-4">
        {save.error && !refused?.fields.length && <Notice kind="error">{sentence(save.error)}</Notice>}
        {!prompt && (
          <TextField
            label="Name"
            hint="Lowercase letters, digits and hyphens, such as fix-tests."
            value={name}
            maxLength={64}
            onChange={(event) => setName(event.target.value)}
            error={refused?.field("name")}
          />
        )}
        {!prompt && isAdmin && (
          <Select
            label="For"
            value={scope}
            onChange={(next) => setScope(next as PromptScope)}
            options={[
              { value: "user", label: "You" },
              { value: "deployment", label: "Everyone on this server" },
            ]}
          />
        )}
        <TextArea
          label="Text"
          rows={10}
          hint="Variables are written in double braces, such as {{file}}."
          value={text}
          onChange={(event) => setText(event.target.value)}
          error={refused?.field("text")}
        />
      </div>
    </Dialog>
  );
}
