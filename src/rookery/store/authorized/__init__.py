"""The store on behalf of one actor, by subject. Read `store` first; `rights` has the checks."""
