"""The store on behalf of one actor, in parts by subject. Start with `store`; the checks are in `rights`."""
