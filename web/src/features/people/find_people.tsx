/** A search for people of this server, by name or username. */
import { queryOptions, useQuery } from "@tanstack/react-query";
import { useState } from "react";
import { sentence } from "@/api/errors";
import { get } from "@/api/http";
import type { ItemsOfPublicUser } from "@/api/types.gen";
import { queryClient } from "@/state/queries";
import { TextField } from "@/ui/field";
import { toast } from "@/ui/toast";

interface Props {
  label?: string;
  /** The ids of people who are not offered. */
  known: readonly string[];
  onPick: (id: string) => void;
}

export function FindPeople({ label = "Add people", known, onPick }: Props) {
  const [typed, setTyped] = useState("");
  const wanted = typed.trim();
  const isLong = wanted.length >= 2;
  const query = queryOptions({
    queryKey: ["directory", wanted],
    queryFn: () => get<ItemsOfPublicUser>("/users/directory", { q: wanted }),
  });
  const { data } = useQuery({ ...query, enabled: isLong });
  const found = (data?.items ?? []).filter((one) => !known.includes(one.id));
  const pick = (id: string) => {
    setTyped("");
    onPick(id);
  };
  return (
    <div>
      <TextField
        label={label}
        placeholder="Name, username or whole email address"
        autoComplete="off"
        value={typed}
        onChange={(event) => setTyped(event.target.value)}
        onKeyDown={(event) => {
          if (event.key !== "Enter" || event.nativeEvent.isComposing) return;
          event.preventDefault();
          if (!isLong) return;
          // Waits for the answer, because Enter is often pressed before it.
          void queryClient
            .ensureQueryData(query)
            .then(({ items }) => {
              const first = items.find((one) => !known.includes(one.id));
              if (first) pick(first.id);
            })
            .catch((error: unknown) => toast(sentence(error), { kind: "error" }));
        }}
      />
      <ul className="mt-1 flex flex-col empty:hidden">
        {found.map((person) => (
          <li key={person.id}>
            <button
              type="button"
              className="w-full rounded-md px-2 py-1.5 text-left hover:bg-bg3"
              onClick={() => pick(person.id)}
            >
              {person.name || person.username} <span className="text-muted">@{person.username}</span>
            </button>
          </li>
        ))}
      </ul>
      {isLong && data && found.length === 0 && <p className="mt-1 text-small text-muted">No users found.</p>}
    </div>
  );
}
