"""Other systems' ways to make a policy look, one concept file each."""
