"""Small, seeded training programs that show what a whole step pays for determinism: dense, moe, hybrid."""
