import { ApiError, Unreachable } from "@/api/errors";
import { address } from "@/api/http";
import { keyHeaders } from "@/api/session_key";
import type { ErrorBody, FileView } from "@/api/types.gen";
import { reasonOf } from "./access_reasons";

/** Return the address of a file's bytes. An `<img>` or a link needs the signed form (`signed_links.ts`). */
export const fileAddress = (id: string) => address(`/files/${encodeURIComponent(id)}`);

/** Fetch a file of a chat. */
export async function fetchFile(id: string, chat: string, signal?: AbortSignal): Promise<Blob> {
  return (await fetchBytes(fileAddress(id), chat, signal)).blob();
}

/** Fetch data of a chat. An administrator who reads another user's data must send a reason, in a header. */
export async function fetchBytes(url: string, chat: string, signal?: AbortSignal): Promise<Response> {
  let response: Response;
  try {
    response = await fetch(url, {
      credentials: "same-origin",
      headers: { ...keyHeaders(), ...reasonOf(chat) },
      ...(signal ? { signal } : {}),
    });
  } catch (error) {
    if (error instanceof DOMException && error.name === "AbortError") throw error;
    throw new Unreachable(error);
  }
  if (!response.ok) throw new ApiError(response.status, parsed(await response.text()) as Partial<ErrorBody>);
  return response;
}

export interface Upload {
  done: Promise<FileView>;
  cancel: () => void;
}

/** Upload a file and report progress, which `fetch` does not support. */
export function upload(file: Blob, name: string, onProgress: (share: number) => void): Upload {
  const request = new XMLHttpRequest();
  const done = new Promise<FileView>((resolve, reject) => {
    request.upload.onprogress = (event) => event.lengthComputable && onProgress(event.loaded / event.total);
    request.onerror = () => reject(new Unreachable(null));
    request.onabort = () => reject(new DOMException("Cancelled", "AbortError"));
    request.onload = () => {
      const body = parsed(request.responseText);
      if (request.status >= 200 && request.status < 300) resolve(body as FileView);
      else reject(new ApiError(request.status, body as Partial<ErrorBody>));
    };
  });
  request.open("POST", address("/files"));
  request.setRequestHeader("Content-Type", file.type || "application/octet-stream");
  request.setRequestHeader("Content-Disposition", `attachment; filename*=UTF-8''${encodeURIComponent(name)}`);
  for (const [header, value] of Object.entries(keyHeaders())) request.setRequestHeader(header, value);
  request.send(file);
  return { done, cancel: () => request.abort() };
}

function parsed(text: string): unknown {
  try {
    return JSON.parse(text);
  } catch {
    return {};
  }
}
