"""What a program needs around its idea: ranks, checkpoints, a plan of its cost, pictures, statistics."""
