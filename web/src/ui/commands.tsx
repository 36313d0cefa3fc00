/** A sentence of the server. What stands between backticks in it is a command or a name to type. */
export function Commands({ text }: { text: string }) {
  return text.split("`").map((part, index) =>
    index % 2 === 0 ? (
      part
    ) : (
      <code key={index} className="rounded bg-bg3 font-mono text-[0.92em]">
        {part.split(" ").map((word, place) => (
          // In one piece each: browsers would break a line between the dashes of an option.
          <span key={place}>
            {place > 0 && " "}
            <span className="inline-block max-w-full break-words">{word}</span>
          </span>
        ))}
      </code>
    ),
  );
}
