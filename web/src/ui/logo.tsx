/** The logo. */
export function Logo({ className }: { className?: string }) {
  return (
    <svg viewBox="0 0 32 32" aria-hidden="true" className={className}>
      <rect width="32" height="32" rx="8" fill="var(--accent-color)" />
      <path fill="var(--on-accent)" d="M9 8h3v3h2.5V8h3v3H20V8h3v6l-2 2v5l2 2v2H9v-2l2-2v-5l-2-2z" />
    </svg>
  );
}
