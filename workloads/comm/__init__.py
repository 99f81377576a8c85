"""Communication that no deterministic form exists for: kept in the catalog as exempt."""
