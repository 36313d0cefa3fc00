"""The store on behalf of one actor, by subject. Read `actor_store` first; `rights` has the checks."""
