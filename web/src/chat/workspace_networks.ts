/** Descriptions of the networks of workspaces, by the value of `network` in templates and workspaces. */

const SHORT: Record<string, string> = {
  none: "None",
  hosts: "Listed hosts only",
  public: "Public hosts",
  host: "The server's own",
};

const WORDS: Record<string, string> = {
  none: "It reaches nothing.",
  hosts: "It reaches only the hosts that its template lists.",
  public: "It can connect to the internet. It cannot connect to the server's machine or to private networks.",
  host: "It uses the network of the server's machine: it can reach every program that listens there, and they can reach it.",
};

export const networkName = (network: string): string => SHORT[network] ?? network;
export const networkWords = (network: string): string => WORDS[network] ?? `Network: ${network}.`;
/** Return whether users should be warned about this network. */
export const isOpenNetwork = (network: string | null | undefined): boolean => network === "host";
