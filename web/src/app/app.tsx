/** The whole application: routes and shell. */
export function App() {
  return <main className="p-6">Rookery</main>;
}
