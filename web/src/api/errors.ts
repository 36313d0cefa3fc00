import type { ErrorBody, FieldError } from "@/api/types.gen";

/** The server refused the request. `message` is a sentence for users. */
export class ApiError extends Error {
  readonly status: number;
  readonly code: string;
  readonly body: Partial<ErrorBody>;
  readonly retryAfterMs: number | null;

  constructor(status: number, body: Partial<ErrorBody>, retryAfterMs: number | null = null) {
    super(body.message ?? `The server answered with status ${status}.`);
    this.name = "ApiError";
    this.status = status;
    this.code = body.code ?? "unknown";
    this.body = body;
    this.retryAfterMs = retryAfterMs;
  }

  get fields(): FieldError[] {
    return this.body.fields ?? [];
  }

  /** Return the error message for one field of the request, if the server named the field. */
  field(name: string): string | undefined {
    return this.fields.find((one) => one.field === name || one.field.endsWith(`.${name}`))?.message;
  }
}

/**
 * No response arrived, so it is unknown whether the server did anything. Repeat with the same `client_id` or
 * `Idempotency-Key`.
 */
export class Unreachable extends Error {
  constructor(cause: unknown) {
    super("The server cannot be reached. Check the connection and try again.", { cause });
    this.name = "Unreachable";
  }
}

/** Return the error message to show for any exception. */
export function sentence(error: unknown): string {
  if (error instanceof Error && error.message) return error.message;
  return "Something went wrong.";
}

export function isStatus(error: unknown, ...statuses: number[]): error is ApiError {
  return error instanceof ApiError && statuses.includes(error.status);
}

/** Return whether the server could not be reached, or a proxy says so. The same request may work a moment later. */
export function isAway(error: unknown): boolean {
  return error instanceof Unreachable || isStatus(error, 502, 503, 504);
}

export function hasCode(error: unknown, ...codes: string[]): error is ApiError {
  return error instanceof ApiError && codes.includes(error.code);
}

/** Return whether the queued message no longer exists: it was sent, or another client deleted it. */
export function leftQueue(error: unknown): boolean {
  return hasCode(error, "queued_message_not_found", "queue_empty");
}
