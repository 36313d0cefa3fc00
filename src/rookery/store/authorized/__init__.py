"""The store as one actor may use it, in parts by subject. Start with `store`; the checks are those of `store.authz`."""
