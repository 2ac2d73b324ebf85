"""What a program needs around its idea: questions, ranks, checkpoints, a plan of its cost, pictures, statistics."""
