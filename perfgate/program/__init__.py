"""Any training entry, gated as it is: ``perfgate run --mode both -- CMD`` runs it per arm and block and judges its step."""
