/** What a workspace may reach, in words. The names are those of `network` in templates and workspaces. */

const SHORT: Record<string, string> = {
  none: "None",
  hosts: "Listed hosts",
  public: "Public hosts",
  host: "The machine's own",
};

const WORDS: Record<string, string> = {
  none: "Reaches nothing.",
  hosts: "Reaches the hosts that its template lists, and nothing else.",
  public: "Reaches every public host, but nothing of the server's machine and of private networks.",
  host: "Has the network of the server's machine: it reaches what listens there, and is reached there itself.",
};

export const networkName = (network: string): string => SHORT[network] ?? network;
export const networkWords = (network: string): string => WORDS[network] ?? `Network: ${network}.`;
/** Whether people should be told before they trust what runs there. */
export const isOpenNetwork = (network: string | null | undefined): boolean => network === "host";
